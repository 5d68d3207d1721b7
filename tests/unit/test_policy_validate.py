import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpubank.cli.policy import app
from gpubank.schema.manifest import UnreadableError, read_documents
from gpubank.schema.validate import Finding, Verdict, validate
from tests.data.bad_examples import BAD, Bad
from tests.data.good_examples import DOCUMENTS

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 12, 1, 6, tzinfo=UTC)
CLI = CliRunner()

POOL = """
apiVersion: platform.aik8s.run/v1alpha1
kind: GPUPool
metadata: {name: h100}
spec:
  capacity: 40
  shares:
    - {businessGroup: search, guaranteed: 32, maxBorrow: 8, maxCapacity: 44}
    - {businessGroup: ads, guaranteed: 16}
  limits: {maxLease: 2h}
"""
GROUPS = """
apiVersion: platform.aik8s.run/v1alpha1
kind: BusinessGroup
metadata: {name: search}
spec: {owner: mia, namespaces: [search]}
---
apiVersion: platform.aik8s.run/v1alpha1
kind: BusinessGroup
metadata: {name: ads}
spec: {owner: ben, namespaces: [ads]}
"""


def a_policy(name: str = "a", namespace: str = "search", group: str = "search", **spec: Any) -> str:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"businessGroup": group, "resourcePool": "h100", "guaranteed": 8, **spec}
    return json.dumps(
        {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": "GPUQuotaPolicy", "metadata": metadata, "spec": body}
    )


def judged(*texts: str, now: datetime = NOW) -> list[Finding]:
    return validate(read_documents("\n---\n".join(texts), "f"), now=now)


def refusals(*texts: str) -> list[tuple[str, str]]:
    return [(problem.field, problem.rule) for finding in judged(*texts) for problem in finding.problems]


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CLI.invoke(app, ["validate", *arguments], input=stdin)


def test_the_published_examples_agree_with_each_other() -> None:
    findings = validate(DOCUMENTS, now=NOW)
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    assert {finding.kind for finding in findings} >= {"GPUPool", "BusinessGroup", "GPUQuotaPolicy", "CapacityLease"}


def test_the_users_policies_are_fine_by_themselves() -> None:
    result = run(str(ROOT / "examples/policies.yaml"))
    assert result.exit_code == 0, result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ok"] * 4


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_example_is_one_line_with_field_rule_and_remedy_and_exit_code_1(bad: Bad) -> None:
    result = run("-", stdin=json.dumps(bad.body))
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"refused   {bad.kind} ")
    assert bad.field in line
    assert bad.rule in line
    assert ";" in line


def test_json_output_is_stable() -> None:
    result = run("-", "-o", "json", stdin=f"# two\n{a_policy(lendingLimit=9)}\n---\n{a_policy('b', group='ads')}")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "schema": "gpubank/policy-validate/v1",
        "objects": [
            {
                "source": "standard input",
                "line": 2,
                "kind": "GPUQuotaPolicy",
                "key": "search/a",
                "verdict": "refused",
                "problems": [
                    {
                        "field": "spec.lendingLimit",
                        "value": "9",
                        "rule": "must not exceed guaranteed (8): a group lends only what it is guaranteed",
                        "remedy": "write at most 8",
                    }
                ],
            },
            {
                "source": "standard input",
                "line": 4,
                "kind": "GPUQuotaPolicy",
                "key": "search/b",
                "verdict": "ok",
                "problems": [],
            },
        ],
        "unreadable": [],
        "counts": {"ok": 1, "refused": 1, "skipped": 0},
    }


# Between objects --------------------------------------------------------------------------------------------


def test_policies_within_their_shares_are_fine_together_with_pool_and_groups() -> None:
    fine = judged(POOL, GROUPS, a_policy(guaranteed=32, borrowLimit=8), a_policy("b", "ads", "ads"))
    assert [finding.verdict for finding in fine] == [Verdict.OK] * 5


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"guaranteed": 33}, "spec.guaranteed"),
        ({"guaranteed": 8, "borrowLimit": 9}, "spec.borrowLimit"),
        ({"guaranteed": 8, "maxCapacity": 45, "borrowLimit": 0}, "spec.maxCapacity"),
        ({"guaranteed": 8, "maxCapacity": 20}, "spec.borrowLimit"),
    ],
)
def test_a_policy_beyond_its_share_is_refused(spec: dict[str, Any], field: str) -> None:
    ((where, rule),) = refusals(POOL, GROUPS, a_policy(**spec))
    assert where == field
    assert "share" in rule


def test_the_share_counts_although_the_group_is_not_in_the_files() -> None:
    assert [where for where, _ in refusals(POOL, a_policy(guaranteed=33))] == ["spec.guaranteed"]


def test_a_group_without_a_share_is_refused() -> None:
    ((where, rule),) = refusals(POOL, a_policy(group="maps", namespace="maps"))
    assert where == "spec.businessGroup"
    assert "no share" in rule


def test_the_second_policy_for_a_group_and_pool_is_refused() -> None:
    ((where, rule),) = refusals(a_policy("a"), a_policy("b"))
    assert where == "spec.resourcePool"
    assert "one policy for a pool" in rule


def test_a_policy_outside_its_groups_namespaces_is_refused() -> None:
    ((where, _),) = refusals(GROUPS, a_policy(namespace="ads"))
    assert where == "metadata.namespace"


def test_a_policy_that_leaves_its_namespace_to_the_command_line_is_fine() -> None:
    assert refusals(GROUPS, POOL, a_policy(namespace="")) == []
    assert refusals(a_policy("a", namespace=""), a_policy("a2", namespace="", group="ads")) == []


def test_guarantees_beyond_the_capacity_are_refused() -> None:
    ((where, rule),) = refusals(
        POOL, GROUPS, a_policy(guaranteed=32), a_policy("b", namespace="ads", group="ads", guaranteed=16)
    )
    assert where == "spec.guaranteed"
    assert "of its 40 GPUs left" in rule


def test_a_namespace_of_two_groups_is_refused() -> None:
    twice = GROUPS.replace("[ads]", "[search]")
    ((where, rule),) = refusals(twice)
    assert where == "spec.namespaces"
    assert "one group" in rule


def test_the_same_object_twice_is_refused_and_names_where_the_first_stands() -> None:
    ((where, rule),) = refusals(POOL, POOL)
    assert where == "metadata.name"
    assert "f:2" in rule


def test_a_namespace_on_a_kind_without_namespaces_is_refused() -> None:
    ((where, rule),) = refusals(POOL.replace("{name: h100}", "{name: h100, namespace: x}"))
    assert where == "metadata.namespace"
    assert "no namespace" in rule


@pytest.mark.parametrize(
    ("until", "fine"), [("07:00:00", True), ("08:00:00", True), ("09:00:00", False), ("06:00:00", False)]
)
def test_a_lease_ends_within_its_pools_limit(until: str, fine: bool) -> None:
    lease = f"""
apiVersion: platform.aik8s.run/v1alpha1
kind: CapacityLease
metadata: {{name: l}}
spec: {{pool: h100, gpus: 1, until: 2026-12-01T{until}Z, reason: launch}}
"""
    assert (refusals(POOL, lease) == []) == fine


# Files ------------------------------------------------------------------------------------------------------


def test_other_kinds_are_skipped_and_kinds_that_nearly_are_ours_refused() -> None:
    other = "apiVersion: v1\nkind: Namespace\nmetadata: {name: search}"
    near = [
        POOL.replace("kind: GPUPool", "kind: GpuPool"),
        POOL.replace("v1alpha1", "v1"),
        POOL.replace("platform.aik8s.run", "aik8s.run"),
    ]
    assert [finding.verdict for finding in judged(other, *near)] == [Verdict.SKIPPED, *[Verdict.REFUSED] * 3]


def test_an_object_without_kind_or_version_is_refused() -> None:
    assert [where for where, _ in refusals("metadata: {name: x}")] == ["apiVersion", "kind"]


def test_lists_empty_documents_anchors_and_unquoted_times_are_read() -> None:
    text = f"""
---
# nothing
---
apiVersion: v1
kind: List
items:
  - {a_policy("a")}
  - {a_policy("b", group="ads", namespace="ads")}
---
apiVersion: platform.aik8s.run/v1alpha1
kind: CapacityLease
metadata: &m {{name: l, namespace: search}}
spec: {{pool: h100, gpus: 1, until: 2026-12-01T07:00:00Z, reason: launch}}
---
apiVersion: platform.aik8s.run/v1alpha1
kind: TidalPolicy
metadata: {{name: t, annotations: {{<<: {{a: b}}, c: d}}}}
spec:
  timezone: UTC
  windows:
    - &w {{name: a, start: 0 8 * * *, end: 0 9 * * *, inferenceReplicaFloor: 1, trainingBorrowLimit: 1}}
    - {{<<: *w, name: b}}
"""
    findings = judged(text)
    assert [finding.verdict for finding in findings] == [Verdict.OK] * 4
    assert [finding.document.line for finding in findings] == [5, 5, 11, 16]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "f:2:1: the key 'a' stands here twice"),
        ("spec:\n  a: {b: 1, b: 2}", "f:2:13: the key 'b' stands here twice"),
        ("a: [1", "f:1:6: "),
        ("a: *nowhere", "f:1:4: found undefined alias"),
        ("a: !!python/object:os.system x", "f:1:4: could not determine a constructor"),
        ("- a", "here stands a list, not an object"),
        ("hello", 'here stands the value "hello"'),
        ("1: 2", "the key 1 is no text"),
        ("a: \0", "is no YAML"),
        ("a: &x [*x]", "not expressible as JSON"),
        ("a: !!binary aGVsbG8=", "not expressible as JSON"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(text: str, says: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        list(read_documents(text, "f"))
    assert says in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("value", ["010", "1_000", "0x10", "1:30", "1e1", "1.0", "yes", "~"])
def test_numbers_that_yaml_could_take_for_others_are_refused(value: str) -> None:
    text = a_policy().replace('"guaranteed": 8', f'"guaranteed": {value}')
    assert [where for where, _ in refusals(text)] == ["spec.guaranteed"]


def test_an_unreadable_file_is_exit_code_2_and_the_others_are_still_judged(tmp_path: Path) -> None:
    good, broken, binary = tmp_path / "good.yaml", tmp_path / "broken.yaml", tmp_path / "binary.yaml"
    good.write_text(a_policy())
    broken.write_text("a: [")
    binary.write_bytes(b"\xff\xfe\x00")
    result = run(str(good), str(broken), str(binary), str(tmp_path / "none.yaml"), str(tmp_path))
    assert result.exit_code == 2
    assert result.stdout.startswith("ok        GPUQuotaPolicy search/a")
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["unreadable"] * 4
    assert "no text in UTF-8" in result.stderr


def test_files_without_any_object_are_exit_code_2(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("---\n# nothing\n")
    result = run(str(empty))
    assert result.exit_code == 2
    assert "hold no object" in result.stderr


def test_objects_are_judged_across_files(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "policy.json").write_text(a_policy(guaranteed=33))
    result = run(str(tmp_path / "policy.json"), str(tmp_path / "pool.yaml"))
    assert result.exit_code == 1
    assert "share of the pool allows at most 32" in result.stdout.splitlines()[0]
