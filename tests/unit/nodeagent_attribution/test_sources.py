"""What the kubelet writes: its checkpoint file and its pods as bytes, whole, broken and hostile."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.attribution.allocations import read_allocations
from nodeagent.attribution.checkpoint import CheckpointError, parse_checkpoint, read_checkpoint
from nodeagent.attribution.podbytes import PodName, read_pod
from nodeagent.pb.podresources import api_pb2
from tests.fakes.podsockets import pod_bytes
from tests.unit.nodeagent_attribution.worlds import GPU, GPU2, RESOURCE

ENTRY = {"PodUID": "u1", "ContainerName": "main", "ResourceName": RESOURCE, "DeviceIDs": {"0": [GPU]}, "AllocResp": ""}


def checkpoint(*entries: Any) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}, "Checksum": 1}).encode()


def test_a_checkpoint_says_which_uid_holds_which_device() -> None:
    found = parse_checkpoint(checkpoint(ENTRY, {**ENTRY, "PodUID": "u2", "DeviceIDs": {"-1": [GPU], "1": [GPU2]}}))
    assert found == {
        ("main", RESOURCE, GPU): frozenset({"u1", "u2"}),
        ("main", RESOURCE, GPU2): frozenset({"u2"}),
    }


def test_the_list_of_old_kubelets_is_read_too() -> None:
    assert parse_checkpoint(checkpoint({**ENTRY, "DeviceIDs": [GPU]})) == {("main", RESOURCE, GPU): frozenset({"u1"})}


def test_a_node_without_pods_has_a_checkpoint_without_entries() -> None:
    assert parse_checkpoint(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}') == {}


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b'{"Data":{}}', b'{"Data":{"PodDeviceEntries":7}}', b"\xff", b"{" * 9999]
)
def test_what_is_no_checkpoint_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(CheckpointError, match="none that is known"):
        parse_checkpoint(raw)


def test_a_checkpoint_that_is_not_there_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(tmp_path / "none")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(entries=st.lists(JSON | st.dictionaries(st.sampled_from(list(ENTRY)), JSON), max_size=5))
def test_entries_that_make_no_sense_are_passed_over(entries: list[Any]) -> None:
    found = parse_checkpoint(checkpoint(ENTRY, *entries))
    assert "u1" in found[("main", RESOURCE, GPU)]


@given(st.binary(max_size=400) | JSON.map(lambda body: json.dumps(body).encode()))
def test_any_bytes_are_a_checkpoint_or_an_error(raw: bytes) -> None:
    try:
        parse_checkpoint(raw)
    except CheckpointError:
        return


def test_a_pod_is_named_by_its_bytes() -> None:
    assert read_pod(pod_bytes("team-a", "train-0", "u1", padding=4000)) == PodName("team-a", "train-0", "u1")


@pytest.mark.parametrize("cut", range(0, 27, 3))
def test_a_pod_that_is_cut_off_is_none(cut: int) -> None:
    assert read_pod(pod_bytes("team-a", "train-0", "u1")[:cut]) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_pod_or_none(raw: bytes) -> None:
    found = read_pod(raw)
    assert found is None or all(isinstance(part, str) for part in found)


@given(st.binary(max_size=60))
def test_what_follows_the_metadata_does_not_change_who_a_pod_is(rest: bytes) -> None:
    assert read_pod(pod_bytes("team-a", "train-0", "u1") + rest) in (PodName("team-a", "train-0", "u1"), None)


NAMES = st.text(max_size=30)


@given(namespace=NAMES, pod=NAMES, container=NAMES, resource=NAMES, device=st.text(max_size=600))
def test_allocations_have_names_that_kubernetes_allows(
    namespace: str, pod: str, container: str, resource: str, device: str
) -> None:
    devices = [api_pb2.ContainerDevices(resource_name=resource, device_ids=[device])]
    answer = api_pb2.ListPodResourcesResponse(
        pod_resources=[
            api_pb2.PodResources(
                name=pod, namespace=namespace, containers=[api_pb2.ContainerResources(name=container, devices=devices)]
            )
        ]
    )
    for found in read_allocations(answer):
        assert found.pod.isascii()
        assert found.namespace.isascii()
        assert '"' not in found.pod + found.namespace + found.container
        assert len(found.device_id) <= 512
