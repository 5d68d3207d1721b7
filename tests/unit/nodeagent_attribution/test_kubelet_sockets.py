import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from nodeagent.attribution.kubelet import KubeletAbsentError, KubeletError, PodResources, PodsApi
from tests.fakes.podsockets import FakePod, PodSockets
from tests.unit.nodeagent_attribution.worlds import GPU, RESOURCE, held


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="gpb-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def sockets(folder: Path) -> Iterator[PodSockets]:
    found = PodSockets(folder)
    yield found
    found.close()


def test_both_apis_are_read_over_their_sockets(sockets: PodSockets) -> None:
    sockets.pods = [
        FakePod("team-a", "train-0", "u1", {RESOURCE: [GPU]}),
        FakePod("team-a", "claim-0", "u2", claims=[("gpu.nvidia.com", "n1", "gpu-3")]),
    ]
    allocations, pods = PodResources(sockets.pod_resources), PodsApi(sockets.pods_api)
    first, second = allocations.list()
    assert first == held()
    assert (second.device_id, second.claimed) == ("gpu.nvidia.com/n1/gpu-3", True)
    assert pods.uids() == {("team-a", "train-0"): frozenset({"u1"}), ("team-a", "claim-0"): frozenset({"u2"})}
    allocations.close()
    pods.close()


def test_a_kubelet_that_limits_its_answers_is_asked_again_on_the_same_connection(sockets: PodSockets) -> None:
    allocations = PodResources(sockets.pod_resources)
    sockets.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(KubeletError, match="resource_exhausted"):
        allocations.list()
    sockets.refuse = None
    assert allocations.list() == ()
    allocations.close()


def test_a_kubelet_that_hangs_is_given_up_after_the_deadline(sockets: PodSockets) -> None:
    allocations = PodResources(sockets.pod_resources, timeout=0.2)
    sockets.hang.set()
    with pytest.raises(KubeletError, match="deadline_exceeded"):
        allocations.list()
    allocations.close()


def test_an_api_that_is_off_is_told_apart_from_one_that_fails(sockets: PodSockets, folder: Path) -> None:
    sockets.refuse = grpc.StatusCode.UNIMPLEMENTED
    pods, absent = PodsApi(sockets.pods_api), PodsApi(folder / "none.sock")
    for api in (pods, absent):
        with pytest.raises(KubeletAbsentError):
            api.uids()
        api.close()


def test_a_kubelet_that_came_back_is_reached_again(folder: Path) -> None:
    first = PodSockets(folder)
    allocations = PodResources(first.pod_resources, timeout=5)
    assert allocations.list() == ()
    first.close()
    with pytest.raises(KubeletError):
        allocations.list()
    second = PodSockets(folder)
    second.pods = [FakePod("team-a", "train-0", "u1", {RESOURCE: [GPU]})]
    assert allocations.list() == (held(),)
    allocations.close()
    second.close()
