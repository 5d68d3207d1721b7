"""The rules file: strict, and one source for resources, labels and flavors."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpubank.domain import contract, device
from gpubank.domain.errors import PolicyError
from gpubank.domain.pool import Flavor, GPUPoolSpec
from nodeagent.classes import labels, rules
from nodeagent.classes.classify import classify
from nodeagent.classes.facts import Facts

DEFAULT = rules.DEFAULT_RULES.read_text()
RULES = rules.load()


def body(**changes: Any) -> dict[str, Any]:
    rule = {"name": "x1-8gb", "model": "x1", "products": ["NVIDIA X1"], "memoryMib": {"min": 8000, "max": 8192}}
    return {
        "apiVersion": rules.API_VERSION,
        "kind": "DeviceClassRules",
        "revision": "r1",
        "classes": [{**rule, "memoryGib": 8, **changes}],
    }


def with_second(**changes: Any) -> dict[str, Any]:
    both = body()
    both["classes"].append(
        {**both["classes"][0], "name": "x1-16gb", "memoryMib": {"min": 16000, "max": 16384}, **changes}
    )
    return both


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param(body(drivers=["580"]), "drivers: is no field", id="unknown field"),
        pytest.param(body(name="X1"), "classes[0].name", id="upper case"),
        pytest.param(body(name="a.b"), "DNS label without dots", id="a dot parts resource names"),
        pytest.param(body(name="unknown"), "is the quarantine", id="the quarantine's own name"),
        pytest.param(body(products=[]), "at least 1", id="no product"),
        pytest.param(body(products=["NVIDIA X1 MIG 1g.5gb"]), "not a MIG device", id="a MIG device as product"),
        pytest.param(body(memoryMib={"min": 9000, "max": 8192}), "must be at least min", id="band upside down"),
        pytest.param(body(memoryMib={"min": "8000", "max": 8192}), "whole number", id="number in quotes"),
        pytest.param(body(computeCapability="nine"), "computeCapability", id="capability"),
        pytest.param(body(partitions=["1g.10gb"]), "partitions[0]", id="partition without mig-"),
        pytest.param(body(partitions=["full", "full"]), "listed twice", id="partition twice"),
        pytest.param(body(sharing=["mps"]), "sharing[0]", id="sharing that is not supported"),
        pytest.param({**body(), "apiVersion": "accelerator.aik8s.run/v2"}, "apiVersion", id="another version"),
        pytest.param({**body(), "classes": []}, "at least 1", id="no class"),
        pytest.param({**body(), "revision": ""}, "revision", id="no revision"),
        pytest.param(with_second(name="x1-8gb"), "names a class twice", id="class twice"),
        pytest.param(with_second(memoryMib={"min": 8192, "max": 9000}), "bands overlap", id="product in two classes"),
        pytest.param(
            with_second(products=["Tesla x1"], memoryMib={"min": 8000, "max": 8100}), "bands overlap", id="spelled anew"
        ),
    ],
)
def test_a_mistake_is_refused_with_its_place(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match="refused") as error:
        rules.parse(yaml.safe_dump(wrong))
    assert words in str(error.value)


def test_two_classes_may_list_one_product_with_bands_apart() -> None:
    book = rules.parse(yaml.safe_dump(with_second()))
    assert [classify(Facts("NVIDIA X1", mib), book).device_class for mib in (8100, 16100, 12000)] == [
        "x1-8gb",
        "x1-16gb",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is no YAML"),
        ("- 1", "holds no object"),
        ("a: 1\na: 2", "stands there twice"),
        ("kind: ConfigMap\ndata: {}", "without data['rules.yaml']"),
        ("", "holds no object"),
    ],
)
def test_what_is_no_rules_file_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as error:
        rules.parse(text)
    assert words in str(error.value)


def test_rules_are_read_from_a_file_a_mounted_configmap_and_a_configmap(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(DEFAULT)
    configmap = tmp_path / "configmap.yaml"
    configmap.write_text(rules.as_configmap(DEFAULT))
    assert rules.load(tmp_path) == rules.load(tmp_path / "rules.yaml") == rules.load(configmap) == RULES


def test_the_committed_configmap_is_the_default_rules() -> None:
    committed = Path(__file__).parents[3] / "manifests" / "nodeagent" / "rules" / "configmap.yaml"
    assert committed.read_text() == rules.as_configmap(DEFAULT)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"rules file '.*nowhere' cannot be read"):
        rules.load(tmp_path / "nowhere")


def test_the_quarantine_can_be_published_for_administrators() -> None:
    book = rules.parse(DEFAULT.replace("resource: false", "resource: true"))
    verdict = classify(Facts("NVIDIA New", 1000), book)
    assert (verdict.device_class, verdict.resource) == ("unknown", "accelerator.aik8s.run/unknown")
    assert book.publishes(device.Offer("unknown"))
    assert not RULES.publishes(device.Offer("unknown"))


def test_only_combinations_that_the_rules_publish_are_offered() -> None:
    published = rules.parse(yaml.safe_dump(body(partitions=["mig-1g.10gb"])))
    assert classify(Facts("NVIDIA X1", 8100), published).resource is None
    assert classify(Facts("NVIDIA X1", 8100, mig_profile="1g.10gb"), published).resource is not None
    shared = rules.parse(yaml.safe_dump(body(sharing=["time-slicing"])))
    assert classify(Facts("NVIDIA X1", 8100), shared).resource is None
    assert shared.publishes(device.Offer("x1-8gb", sharing=device.Sharing.TIME_SLICING))
    assert not shared.publishes(device.Offer("other"))


def test_every_resource_name_is_one_that_a_pool_accepts_and_takes_apart() -> None:
    for found in RULES.classes:
        for partition in found.partitions:
            for sharing in found.sharing:
                offer = device.Offer(found.name, partition, sharing)
                assert GPUPoolSpec(resource_name=offer.resource, capacity=1).resource_name == offer.resource
                assert device.Offer.of(offer.resource) == offer
                assert len(offer.name) <= 63


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/gpu", "accelerator.aik8s.run/", "accelerator.aik8s.run/a.b", "accelerator.aik8s.run/a.full", "x"],
)
def test_a_resource_that_is_not_ours_is_not_taken_apart(name: str) -> None:
    assert device.Offer.of(name) is None


def test_the_control_plane_and_the_node_use_one_prefix() -> None:
    assert device.RESOURCE_PREFIX == contract.NODE_PREFIX


def test_a_pools_flavor_selects_the_nodes_that_the_rules_label() -> None:
    found = RULES.by_name["h100-80gb"]
    flavor = Flavor(**labels.flavor_labels(found))
    node = labels.node_labels([classify(Facts("NVIDIA H100 80GB HBM3", 81559), RULES)] * 8, RULES)
    assert node[contract.NODE_MODEL_LABEL] == flavor.model == "h100"
    assert node[contract.NODE_VENDOR_LABEL] == flavor.vendor == "nvidia"
    assert node[device.CLASS_LABEL] == "h100-80gb"
    assert node[f"{device.COUNT_LABEL_PREFIX}/h100-80gb"] == "8"


def test_a_mixed_node_counts_its_classes_and_claims_no_model() -> None:
    verdicts = [
        classify(Facts(name, mib), RULES) for name, mib in (("NVIDIA L4", 23034), ("NVIDIA L40S", 46068), ("?", 1))
    ]
    node = labels.node_labels(verdicts, RULES)
    assert node == {
        "count.accelerator.aik8s.run/l4-24gb": "1",
        "count.accelerator.aik8s.run/l40s-48gb": "1",
        "count.accelerator.aik8s.run/unknown": "1",
        "accelerator.aik8s.run/vendor": "nvidia",
    }
    assert labels.node_labels([], RULES) == {}


def test_the_exporters_labels_come_from_the_same_rules() -> None:
    known = classify(Facts("NVIDIA H100 80GB HBM3", 81559, mig_profile="1g.10gb"), RULES)
    assert labels.exporter_labels(known, RULES) == {
        "accelerator_class": "h100-80gb",
        "accelerator_model": "h100",
        "accelerator_partition": "mig-1g.10gb",
        "accelerator_sharing": "exclusive",
    }
    assert labels.exporter_labels(classify(Facts("?", 1), RULES), RULES)["accelerator_model"] == ""
