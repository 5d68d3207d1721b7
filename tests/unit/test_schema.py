import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from gpubank.cli.schema import app
from gpubank.domain.errors import PolicyError
from gpubank.schema import (
    KINDS,
    admission_policies,
    crd,
    crds,
    generated_files,
    json_schema,
    kind_named,
    lease_policies,
    priority_policies,
    write,
)
from tests.data.bad_examples import BAD, Bad, By
from tests.data.good_examples import GOOD, PUBLISHED, name_of

ROOT = Path(__file__).parents[2]
CLI = CliRunner()
# What only CEL says, an editor's JSON Schema does not: rules between fields, and bounds of durations.
STRUCTURAL = ("one of", "whole number", "required", "no field", "DNS label", "whole hours", "list", "mapping", "text")


@cache
def editor_validator(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(generated_files()[f"docs/reference/{kind.lower()}.schema.json"]))


def test_the_written_files_are_those_of_the_models() -> None:
    assert write(ROOT, check=True) == [], "run `gpubank schema write`"


def test_a_change_and_a_stale_file_are_found_and_repaired(tmp_path: Path) -> None:
    assert set(write(tmp_path)) == set(generated_files())
    crd_file, stale = tmp_path / "manifests/crds/gpupools.yaml", tmp_path / "manifests/crds/gone.yaml"
    crd_file.write_text("changed")
    stale.write_text("stale")
    different = ["manifests/crds/gone.yaml", "manifests/crds/gpupools.yaml"]
    assert write(tmp_path, check=True) == different
    assert stale.exists()
    assert write(tmp_path) == different
    assert write(tmp_path, check=True) == []
    assert not stale.exists()


@pytest.mark.parametrize("body", [*GOOD.values(), *PUBLISHED], ids=name_of)
def test_the_schema_for_editors_accepts_good_examples(body: dict[str, Any]) -> None:
    editor_validator(body["kind"]).validate(body)


@pytest.mark.parametrize(
    "bad",
    [bad for bad in BAD if bad.by is By.BOTH and bad.rule in STRUCTURAL and 16.0 not in bad.changes.values()],
    ids=lambda bad: bad.name,
)
def test_the_schema_for_editors_refuses_what_needs_no_cel(bad: Bad) -> None:
    assert bad.field.startswith("metadata.name") or not editor_validator(bad.kind).is_valid(bad.body)


def schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema below, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from schemas(node[key], f"{path}[]")


def every_schema() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in KINDS.values():
        yield from schemas(crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], kind.name)


def test_every_default_satisfies_its_own_schema() -> None:
    with_default = [(path, schema) for path, schema in every_schema() if "default" in schema]
    assert len(with_default) > 40
    for path, schema in with_default:
        assert jsonschema.Draft202012Validator(schema).is_valid(schema["default"]), path


def test_every_list_and_text_of_a_spec_is_bounded_so_that_rules_have_a_cost() -> None:
    for path, schema in every_schema():
        if ".spec." not in path:
            continue
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if schema.get("type") == "string" and "enum" not in schema:
            assert "maxLength" in schema, path


def test_every_field_of_a_spec_is_described() -> None:
    for path, schema in every_schema():
        if ".spec" in path and not path.endswith("[]"):
            assert schema.get("description"), path


def test_no_schema_holds_what_a_structural_schema_may_not() -> None:
    forbidden = {"$ref", "$defs", "anyOf", "const", "title", "patternProperties", "propertyNames", "exclusiveMinimum"}
    for path, schema in every_schema():
        assert not forbidden & set(schema), path
        assert schema.get("additionalProperties") is not False, path


def test_crds_are_presented_as_kubectl_users_expect() -> None:
    for definition in crds():
        version = definition["spec"]["versions"][0]
        names = definition["spec"]["names"]
        assert definition["metadata"]["name"] == f"{names['plural']}.platform.aik8s.run"
        assert version["subresources"] == {"status": {}}
        assert version["additionalPrinterColumns"][-1]["name"] == "Age"
        assert names["shortNames"]
        assert names["categories"] == ["gpubank"]
    assert {d["spec"]["names"]["kind"] for d in crds() if d["spec"]["scope"] == "Cluster"} == {
        "GPUPool",
        "BusinessGroup",
    }


def test_printer_columns_point_to_fields_that_exist() -> None:
    for kind in KINDS.values():
        definition = crd(kind)["spec"]["versions"][0]
        known = {path for path, _ in schemas(definition["schema"]["openAPIV3Schema"])}
        for column in kind.columns:
            path = column.path.split("[?")[0]
            assert path in known or path == ".metadata.creationTimestamp", f"{kind.name} {column.name}"


def test_every_admission_policy_denies_and_fails_closed_for_what_is_new() -> None:
    everything = [*admission_policies(), *lease_policies(), *priority_policies()]
    policies = [manifest for manifest in everything if manifest["kind"] == "ValidatingAdmissionPolicy"]
    bindings = {
        manifest["spec"]["policyName"]: manifest for manifest in everything if manifest["kind"].endswith("Binding")
    }
    assert policies
    for policy in policies:
        assert bindings[policy["metadata"]["name"]]["spec"]["validationActions"] == ["Deny"]
    by_name = {policy["metadata"]["name"]: policy["spec"] for policy in policies}
    lenient = {name: spec for name, spec in by_name.items() if spec["failurePolicy"] != "Fail"}
    assert sorted(lenient) == [
        "borrow-termination-changed.platform.aik8s.run",
        "priority-class-jobs-changed.platform.aik8s.run",
        "priority-class-other-kinds-changed.platform.aik8s.run",
        "priority-class-pods-changed.platform.aik8s.run",
    ]
    for name, spec in lenient.items():  # only where the same is judged before, of everything new
        strict = by_name[name.replace("-changed", "")]
        assert (strict["failurePolicy"], spec["failurePolicy"]) == ("Fail", "Ignore")
        assert (operations(strict), operations(spec)) == ({"CREATE"}, {"UPDATE"})
        assert [strict[part] for part in JUDGED] == [spec[part] for part in JUDGED]


JUDGED = ("matchConditions", "paramKind", "validations", "variables")


def operations(policy: dict[str, Any]) -> set[str]:
    return {each for rule in policy["matchConstraints"]["resourceRules"] for each in rule["operations"]}


def test_generated_yaml_reads_back_as_what_was_rendered() -> None:
    files = generated_files()
    for kind in KINDS.values():
        assert yaml.safe_load(files[f"manifests/crds/{kind.plural}.yaml"]) == crd(kind)
    for name, rendered in (
        ("borrow-queues", admission_policies()),
        ("leases", lease_policies()),
        ("priority-classes", priority_policies()),
    ):
        assert list(yaml.safe_load_all(files[f"manifests/base/admission/{name}.yaml"])) == rendered


@pytest.mark.parametrize("name", ["GPUPool", "gpupools", "gpool", "GPUPOOL"])
def test_a_kind_is_found_by_any_of_its_names(name: str) -> None:
    assert kind_named(name).name == "GPUPool"


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match="there are GPUPool, BusinessGroup"):
        kind_named("Pod")


def test_the_command_shows_and_checks() -> None:
    shown = CLI.invoke(app, ["show", "gqp"])
    assert yaml.safe_load(shown.stdout) == crd(KINDS["GPUQuotaPolicy"])
    as_json = CLI.invoke(app, ["show", "gqp", "-o", "json-schema"])
    assert json.loads(as_json.stdout) == json_schema(KINDS["GPUQuotaPolicy"].model)
    assert CLI.invoke(app, ["show", "pod"]).exit_code == 2
    assert CLI.invoke(app, ["write", "--check", "--root", str(ROOT)]).exit_code == 0


def test_the_check_fails_where_files_are_missing(tmp_path: Path) -> None:
    result = CLI.invoke(app, ["write", "--check", "--root", str(tmp_path)])
    assert result.exit_code == 1
    assert "manifests/crds/gpupools.yaml: differs" in result.stdout
    assert list(tmp_path.iterdir()) == []
