"""What a node sells: by class, partition and sharing, each physical GPU once, and nothing unpublished."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.device import Offer, Sharing
from gpubank.domain.errors import PolicyError
from gpubank.domain.refusal import read
from nodeagent.classes import rules
from nodeagent.nvml.snapshot import Gpu, MigDevice, NodeSnapshot
from nodeagent.plugin.inventory import Inventory, base_id, build
from nodeagent.settings import AgentSettings

RULES = rules.load()
OPEN_QUARANTINE = rules.parse(rules.DEFAULT_RULES.read_text().replace("resource: false", "resource: true"))
NAMES = {"NVIDIA H100 80GB HBM3": 81559, "NVIDIA L40S": 46068, "NVIDIA A100-SXM4-40GB": 40960, "NVIDIA Tomorrow": 1000}


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", *profiles: str, mig: bool = False) -> Gpu:
    migs = tuple(MigDevice(f"MIG-{index}-{gi}", profile, gi, 0) for gi, profile in enumerate(profiles, start=1))
    return Gpu(f"GPU-{index}", index, name, NAMES[name], mig_enabled=mig or bool(profiles), migs=migs)


def settings(**changes: Any) -> AgentSettings:
    return read(AgentSettings, changes)


def sold(inventory: Inventory) -> dict[str, list[str]]:
    return {offer.name: [device.id for device in devices] for offer, devices in inventory.devices.items()}


def sells(*gpus: Gpu, **changes: Any) -> dict[str, list[str]]:
    return sold(build(NodeSnapshot(gpus), RULES, settings(**changes)))


def test_a_mixed_node_sells_each_class_by_its_name() -> None:
    assert sells(gpu(0), gpu(1, "NVIDIA L40S"), gpu(2)) == {"h100-80gb": ["GPU-0", "GPU-2"], "l40s-48gb": ["GPU-1"]}


def test_an_unknown_card_is_withheld_and_disturbs_nobody() -> None:
    inventory = build(NodeSnapshot((gpu(0), gpu(1, "NVIDIA Tomorrow"))), RULES, settings())
    assert sold(inventory) == {"h100-80gb": ["GPU-0"]}
    assert [(each.uuid, "no class lists" in each.reason) for each in inventory.withheld] == [("GPU-1", True)]


def test_a_published_quarantine_makes_the_sum_equal_the_physical_gpus() -> None:
    node = NodeSnapshot((gpu(0), gpu(1, "NVIDIA Tomorrow"), gpu(2, mig=True)))
    inventory = build(node, OPEN_QUARANTINE, settings(migStrategy="none"))
    assert sold(inventory) == {"h100-80gb": ["GPU-0"], "unknown": ["GPU-1", "GPU-2"]}


@pytest.mark.parametrize(
    ("strategy", "want"),
    [
        ("none", {"h100-80gb": ["GPU-1"]}),
        ("single", {}),
        ("mixed", {"h100-80gb": ["GPU-1"], "h100-80gb.mig-1g.10gb": ["MIG-0-1"], "h100-80gb.mig-3g.40gb": ["MIG-0-2"]}),
    ],
)
def test_mig_follows_the_strategy(strategy: str, want: dict[str, list[str]]) -> None:
    assert sells(gpu(0, "NVIDIA H100 80GB HBM3", "1g.10gb", "3g.40gb"), gpu(1), migStrategy=strategy) == want


def test_single_sells_gpus_that_are_cut_alike_by_what_a_slice_is() -> None:
    cut = [gpu(index, "NVIDIA H100 80GB HBM3", "3g.40gb", "3g.40gb") for index in range(2)]
    assert sells(*cut, migStrategy="single") == {"h100-80gb.mig-3g.40gb": ["MIG-0-1", "MIG-0-2", "MIG-1-1", "MIG-1-2"]}
    assert sells(gpu(0), gpu(1), migStrategy="single") == {"h100-80gb": ["GPU-0", "GPU-1"]}


def test_a_gpu_in_mig_mode_that_is_not_cut_is_withheld_and_never_whole() -> None:
    inventory = build(NodeSnapshot((gpu(0, mig=True),)), RULES, settings())
    assert (sold(inventory), len(inventory.withheld)) == ({}, 1)


def test_a_slice_that_is_not_published_is_withheld_alone() -> None:
    inventory = build(NodeSnapshot((gpu(0, "NVIDIA A100-SXM4-40GB", "1g.5gb", "5g.25gb"),)), RULES, settings())
    assert sold(inventory) == {"a100-40gb.mig-1g.5gb": ["MIG-0-1"]}
    assert [each.uuid for each in inventory.withheld] == ["MIG-0-2"]


def test_a_shared_resource_is_renamed_and_each_turn_has_a_number() -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "l40s-48gb", "replicas": 3}]}}
    assert sells(gpu(0), gpu(1, "NVIDIA L40S"), sharing=sharing) == {
        "h100-80gb": ["GPU-0"],
        "l40s-48gb.shared": ["GPU-1::0", "GPU-1::1", "GPU-1::2"],
    }
    sharing = {"timeSlicing": {"resources": [{"name": "accelerator.aik8s.run/h100-80gb.mig-1g.10gb", "replicas": 2}]}}
    assert sells(gpu(0, "NVIDIA H100 80GB HBM3", "1g.10gb"), sharing=sharing) == {
        "h100-80gb.mig-1g.10gb.shared": ["MIG-0-1::0", "MIG-0-1::1"]
    }


def test_sharing_that_the_rules_do_not_publish_sells_nothing() -> None:
    exclusive = rules.parse(rules.DEFAULT_RULES.read_text().replace("[exclusive, time-slicing]", "[exclusive]"))
    shared = settings(sharing={"timeSlicing": {"resources": [{"name": "l40s-48gb", "replicas": 3}]}})
    inventory = build(NodeSnapshot((gpu(1, "NVIDIA L40S"),)), exclusive, shared)
    assert sold(inventory) == {}
    assert "'accelerator.aik8s.run/l40s-48gb.shared' is not published" in inventory.withheld[0].reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"migStrategy": "both"}, "migStrategy"),
        ({"deviceList": []}, "deviceList"),
        ({"deviceList": ["envvar", "envvar"]}, "listed twice"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "l4-24gb.shared", "replicas": 2}]}}}, "not shared"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}, "not shared"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "l4-24gb", "replicas": 1}]}}}, "replicas"),
        ({"mps": True}, "mps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        settings(**changes)


PROFILES = st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "1g.10gb+me", "9g.99gb"])


@st.composite
def nodes(draw: st.DrawFn) -> NodeSnapshot:
    gpus = []
    for index in range(draw(st.integers(0, 6))):
        profiles = draw(st.lists(PROFILES, max_size=3))
        gpus.append(gpu(index, draw(st.sampled_from(sorted(NAMES))), *profiles, mig=draw(st.booleans())))
    return NodeSnapshot(tuple(gpus))


@given(node=nodes(), strategy=st.sampled_from(["none", "single", "mixed"]))
def test_every_gpu_is_sold_whole_once_or_cut_or_in_quarantine(node: NodeSnapshot, strategy: str) -> None:
    inventory = build(node, OPEN_QUARANTINE, settings(migStrategy=strategy))
    whole = [device for offer, devices in inventory.devices.items() if offer.partition == "full" for device in devices]
    cut = {
        device.gpu.uuid
        for offer, devices in inventory.devices.items()
        if offer.partition != "full"
        for device in devices
    }
    assert sorted([*(device.gpu.uuid for device in whole), *cut]) == [gpu.uuid for gpu in node.gpus]
    for offer, devices in inventory.devices.items():
        assert offer == Offer("unknown") or RULES.publishes(offer)
        assert offer.sharing is Sharing.EXCLUSIVE
        assert len({device.id for device in devices}) == len(devices)
        assert all(base_id(device.id) == device.uuid for device in devices)
