from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.attribution import NodeMetadata, OrgSpan, PodMetadata
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.identity import Witnesses
from nodeagent.attribution.inventory import Inventory, base_id
from nodeagent.attribution.mapping import Attribution, MappingStatus, attribute
from nodeagent.nvml.snapshot import MigDevice
from tests.unit.nodeagent_attribution.worlds import (
    GPU,
    MIG,
    MIG2,
    NOW,
    RESOURCE,
    a_gpu,
    a_mig_gpu,
    a_snapshot,
    an_inventory,
    held,
    told,
)

ONE = {("team-a", "train-0"): frozenset({"u1"})}
TWO = {**ONE, ("team-a", "train-1"): frozenset({"u2"})}


def judged(
    *allocations: Allocation,
    inventory: Inventory | None = None,
    witnesses: Witnesses | None = None,
    metadata: NodeMetadata | None = None,
    now: datetime = NOW,
) -> Attribution:
    witnesses = witnesses or Witnesses(pods=TWO)
    return attribute(allocations, inventory or an_inventory(), witnesses, metadata, now=now)


def test_a_device_of_one_pod_is_mapped_with_what_was_told_about_it() -> None:
    found = judged(held(), metadata=a_snapshot(told("u1", model="llama"))).of(GPU)
    assert found.status is MappingStatus.MAPPED
    holder = found.holders[0]
    assert (holder.uid, holder.pod, holder.container) == ("u1", "train-0", "main")
    assert holder.fields == {"business_group": "search", "cost_center": "CC-1", "model": "llama"}
    assert holder.unverified == ("model",)


def test_a_device_that_nobody_holds_is_unallocated() -> None:
    assert judged().of(GPU).status is MappingStatus.UNALLOCATED


def test_turns_of_a_shared_device_name_every_pod_and_belong_to_none() -> None:
    found = judged(held(device=f"{GPU}::0"), held("train-1", f"{GPU}::1")).of(GPU)
    assert found.status is MappingStatus.SHARED
    assert [holder.uid for holder in found.holders] == ["u1", "u2"]


def test_two_containers_of_one_pod_share_nothing_but_the_container_is_not_named() -> None:
    found = judged(held(device=f"{GPU}::0"), held(device=f"{GPU}::1", container="side")).of(GPU)
    assert (found.status, found.holders[0].container) == (MappingStatus.MAPPED, "")


def test_a_holder_that_cannot_be_named_makes_the_whole_device_unknown() -> None:
    found = judged(held(device=f"{GPU}::0"), held("stranger", f"{GPU}::1")).of(GPU)
    assert (found.status, found.holders) == (MappingStatus.UNKNOWN, ())


def test_a_pod_that_has_ended_gives_way_to_the_one_that_the_checkpoint_names() -> None:
    checkpoint = {("main", RESOURCE, GPU): frozenset({"u2"})}
    found = judged(held(), held("train-1"), witnesses=Witnesses(TWO, checkpoint)).of(GPU)
    assert (found.status, [holder.uid for holder in found.holders]) == (MappingStatus.MAPPED, ["u2"])


def test_metadata_of_a_pod_of_another_name_is_not_used() -> None:
    # Somebody wrote a static pod's annotation with the UID of a pod of another namespace.
    found = judged(held(), metadata=a_snapshot(told("u1", name="evil", namespace="evil"))).of(GPU)
    assert (found.status, found.holders[0].fields) == (MappingStatus.MAPPED, {})


def test_a_change_of_the_organisation_counts_from_its_time_on() -> None:
    then = NOW + timedelta(hours=1)
    spans = (OrgSpan(datetime(2000, 1, 1, tzinfo=UTC), "search", "old"), OrgSpan(then, "search", "new"))
    metadata = a_snapshot(PodMetadata("u1", "team-a", "train-0", spans))
    before = judged(held(), metadata=metadata, now=then - timedelta(seconds=1)).of(GPU).holders[0].fields
    after = judged(held(), metadata=metadata, now=then).of(GPU).holders[0].fields
    assert (before["cost_center"], after["cost_center"]) == ("old", "new")


@pytest.mark.parametrize("device", [MIG, f"MIG-{GPU}/7/0", "nvidia0/gi7", "nvidia0/gi7/vgpu3", f"{MIG}::2"])
def test_every_spelling_of_a_mig_device_means_it(device: str) -> None:
    assert judged(held(device=device), inventory=an_inventory(a_mig_gpu())).of(MIG).status is MappingStatus.MAPPED


def test_an_id_of_a_gpu_instance_with_two_compute_instances_means_neither() -> None:
    gpu = a_mig_gpu(GPU, 0, MigDevice(MIG, "1c.3g.40gb", 1, 0), MigDevice(MIG2, "1c.3g.40gb", 1, 1))
    found = judged(held(device="nvidia0/gi1"), inventory=an_inventory(gpu))
    assert (dict(found.devices), found.strays) == ({}, 1)
    assert judged(held(device=f"MIG-{GPU}/1/1"), inventory=an_inventory(gpu)).of(MIG2).status is MappingStatus.MAPPED


def test_a_claimed_device_is_found_through_the_nodes_resource_slices() -> None:
    claim = Allocation("team-a", "train-0", "main", "gpu.nvidia.com", "gpu.nvidia.com/n1/gpu-0", claimed=True)
    metadata = NodeMetadata("gpu-0", NOW, {}, {"gpu.nvidia.com/n1/gpu-0": GPU})
    # What a claim gives is never in the checkpoint.
    assert judged(claim, metadata=metadata, witnesses=Witnesses(TWO, {})).of(GPU).status is MappingStatus.MAPPED
    lost = judged(claim)
    assert (dict(lost.devices), lost.strays) == ({}, 1)


def test_an_allocation_of_a_gpu_that_is_gone_is_a_stray_and_that_of_a_network_card_is_none() -> None:
    gone, card = held(device="GPU-00000000-dead"), held(device="mlx5_0", resource="rdma/hca")
    assert judged(gone, card).strays == 1


def test_without_nvml_the_id_of_a_whole_gpu_still_says_which_it_is() -> None:
    found = attribute([held()], Inventory(), Witnesses(pods=ONE), None, now=NOW)
    assert found.of(GPU).status is MappingStatus.MAPPED


IDS = st.one_of(
    st.sampled_from([GPU, MIG, f"{GPU}::1", f"MIG-{GPU}/7/0", "nvidia0", "nvidia0/gi7/vgpu1"]), st.text(max_size=300)
)
ALLOCATIONS = st.lists(
    st.builds(
        Allocation,
        st.sampled_from(["team-a", "team-b"]),
        st.sampled_from(["train-0", "train-1", "x"]),
        st.sampled_from(["main", "side"]),
        st.sampled_from([RESOURCE, "nvidia.com/gpu", "rdma/hca", "gpu.nvidia.com"]),
        IDS,
        st.booleans(),
    ),
    max_size=12,
)


@given(allocations=ALLOCATIONS, mig=st.booleans(), metadata=st.none() | st.just(a_snapshot(told("u1"), told("u9"))))
def test_whatever_the_kubelet_says_every_holder_is_named_beyond_doubt_or_not_at_all(
    allocations: list[Allocation], mig: bool, metadata: NodeMetadata | None
) -> None:
    inventory = an_inventory(a_mig_gpu() if mig else a_gpu())
    found = attribute(allocations, inventory, Witnesses(pods=TWO, snapshot=metadata), metadata, now=NOW)
    assert set(found.devices) <= set(inventory.devices)
    for mapping in found.devices.values():
        uids = [holder.uid for holder in mapping.holders]
        assert uids == sorted(set(uids))
        counts = {MappingStatus.MAPPED: uids[1:] == [] and uids != [], MappingStatus.SHARED: len(uids) > 1}
        assert counts.get(mapping.status, not uids)
        for holder in mapping.holders:
            assert holder.uid in TWO[holder.namespace, holder.pod]


@given(st.text(max_size=600))
def test_any_text_is_an_id_and_stripping_its_turn_again_changes_nothing(text: str) -> None:
    assert base_id(base_id(text)) == base_id(text) or "::" in base_id(text)
    an_inventory().resolve(text)
