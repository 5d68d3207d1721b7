"""`gpubank nodeagent classify`: JSON facts in, class, resource and reason out, in order."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gpubank.cli.context import ExitCode
from gpubank.cli.main import app
from gpubank.domain.errors import PolicyError
from nodeagent.classes.factsfile import read_facts
from tests.native.facts import NvmlFacts

H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}


def classify(*words: str, stdin: Any = None) -> Result:
    text = stdin if isinstance(stdin, str) else json.dumps(stdin)
    return CliRunner().invoke(app, ["nodeagent", "classify", *words], input=text)


def items(facts: Any) -> list[dict[str, Any]]:
    result = classify("--facts", "-", "-o", "json", stdin=facts)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["items"]
    return found


def test_every_gpu_is_answered_in_order_with_class_resource_and_reason() -> None:
    facts = [
        H100,
        {"name": "NVIDIA Tomorrow", "memory_mib": 1},
        {**H100, "compute_capability": "9.0", "pci_device_id": "0x233010de", "mig_profile": "1g.10gb"},
    ]
    first, second, third = items(facts)
    assert (first["class"], first["resource"]) == ("h100-80gb", "accelerator.aik8s.run/h100-80gb")
    assert (second["class"], second["resource"]) == ("unknown", None)
    assert "no class lists the product 'NVIDIA Tomorrow'" in second["reason"]
    assert third["resource"] == "accelerator.aik8s.run/h100-80gb.mig-1g.10gb"
    assert (third["index"], third["pci_device_id"], third["mig_profile"]) == (2, "0x233010de", "1g.10gb")


def test_the_table_shows_one_line_per_gpu_and_says_aloud_what_is_in_quarantine(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps([H100, {"name": "?", "memory_mib": 1}]))
    result = classify("--facts", str(file))
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["INDEX", "0", "1"]
    assert "1 of 2 GPUs are in quarantine" in result.stderr
    assert classify("--facts", str(file), "-o", "name").stdout == "h100-80gb\nunknown\n"


def test_an_empty_list_is_no_error() -> None:
    assert items([]) == []


@pytest.mark.parametrize("capability", [9.0, "9.0", 9])
def test_a_capability_may_be_a_number(capability: Any) -> None:
    (found,) = items([{**H100, "compute_capability": capability}])
    assert (found["class"], found["compute_capability"]) == ("h100-80gb", "9.0")


def test_optional_fields_may_be_null() -> None:
    (found,) = items([{**H100, "compute_capability": None, "pci_device_id": None, "mig_profile": None}])
    assert found["class"] == "h100-80gb"


def test_own_rules_are_used_instead_of_the_defaults(tmp_path: Path) -> None:
    own = tmp_path / "rules.yaml"
    own.write_text(
        "apiVersion: accelerator.aik8s.run/v1\nkind: DeviceClassRules\nrevision: mine\nclasses:\n"
        "  - {name: big, model: big, products: [NVIDIA H100 80GB HBM3],\n"
        "     memoryMib: {min: 1000, max: 90000}, memoryGib: 80}\n"
    )
    result = classify("--facts", "-", "--rules", str(own), "-o", "json", stdin=[H100])
    assert json.loads(result.stdout)["items"][0]["class"] == "big"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        pytest.param("{", "is no JSON", id="no JSON"),
        pytest.param({}, "holds no list", id="no list"),
        pytest.param([1], "[0] is 1: must be an object", id="no object"),
        pytest.param([{"memory_mib": 1}], "[0].name: is required", id="no name"),
        pytest.param([{"name": "x"}], "[0].memory_mib: is required", id="no memory"),
        pytest.param([{"name": "", "memory_mib": 1}], "must be the product's name", id="empty name"),
        pytest.param([{"name": "x", "memory_mib": "80"}], '[0].memory_mib is "80"', id="memory as text"),
        pytest.param([{"name": "x", "memory_mib": True}], "whole MiB", id="memory as boolean"),
        pytest.param([{"name": "x", "memory_mib": -1}], "whole MiB", id="negative memory"),
        pytest.param([{**H100, "memory": 1}], "[0].memory: is no field", id="unknown field"),
        pytest.param([{**H100, "compute_capability": "nine"}], "compute capability", id="capability"),
        pytest.param([{**H100, "mig_profile": 1}], "[0].mig_profile is 1: must be text", id="profile"),
    ],
)
def test_facts_that_are_none_are_refused_in_a_sentence(facts: Any, words: str) -> None:
    result = classify("--facts", "-", stdin=facts)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    result = classify("--facts", str(tmp_path / "no.json"))
    assert result.exit_code == ExitCode.USAGE
    assert "cannot be read" in result.stderr


def test_a_node_without_the_binding_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    result = classify()
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "the binding of NVML is not installed" in result.stderr


def test_the_rules_are_printed_as_they_are_used() -> None:
    from nodeagent.classes import rules

    printed = CliRunner().invoke(app, ["nodeagent", "rules"])
    assert rules.parse(printed.stdout) == rules.load()
    as_configmap = CliRunner().invoke(app, ["nodeagent", "rules", "--configmap"])
    assert rules.parse(as_configmap.stdout) == rules.load()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["name", "memory_mib", "compute_capability", "pci_device_id", "mig_profile"])


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=5) | JSON, max_size=4))
def test_no_json_makes_the_reader_fail_otherwise_than_in_words(facts: Any) -> None:
    with suppress(PolicyError):
        assert len(read_facts(json.dumps(facts), "fuzz")) == len(facts)


def test_without_facts_this_nodes_gpus_are_judged_and_mig_slices_each_by_itself(nvml_facts: NvmlFacts) -> None:
    nvml_facts.gpu("GPU-0")
    nvml_facts.gpu("GPU-1", "NVIDIA L40S")
    nvml_facts.gpu("GPU-2", "NVIDIA A100-SXM4-40GB")
    nvml_facts.mig("GPU-2", "MIG-a", "1g.5gb", gi=7)
    result = classify("-o", "json")
    assert result.exit_code == 0, result.output
    found = [(item["uuid"], item["class"], item["partition"]) for item in json.loads(result.stdout)["items"]]
    assert found == [
        ("GPU-0", "h100-80gb", "full"),
        ("GPU-1", "l40s-48gb", "full"),
        ("MIG-a", "a100-40gb", "mig-1g.5gb"),
    ]


def test_a_lost_gpu_is_said_aloud_and_the_others_are_judged(nvml_facts: NvmlFacts) -> None:
    nvml_facts.gpu("GPU-0", lost=1)
    nvml_facts.gpu("GPU-1", "NVIDIA L40S")
    result = classify("-o", "name")
    assert result.stdout == "l40s-48gb\n"
    assert "GPU 0 cannot be read: GPU is lost" in result.stderr


def test_a_node_without_a_driver_is_a_sentence_and_exit_code_5(nvml_facts: NvmlFacts) -> None:
    nvml_facts.set_system(fail=9)
    result = classify()
    assert (result.exit_code, "NVML does not start" in result.stderr) == (ExitCode.UNREACHABLE, True)
