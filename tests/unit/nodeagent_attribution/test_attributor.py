from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from gpubank.domain.errors import BackendError
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.attributor import Attributor, Source
from nodeagent.attribution.kubelet import KubeletAbsentError
from nodeagent.attribution.mapping import MappingStatus
from nodeagent.attribution.memory import Memory
from nodeagent.attribution.store import SnapshotStore
from tests.unit.nodeagent_attribution.worlds import (
    GPU,
    NOW,
    a_snapshot,
    a_store,
    an_inventory,
    held,
    sealed,
    told,
)


class Kubelet:
    """Both of its APIs, as told."""

    def __init__(self, *allocations: Allocation) -> None:
        self.allocations = allocations
        self.known: Mapping[tuple[str, str], frozenset[str]] | None = {("team-a", "train-0"): frozenset({"u1"})}
        self.silent = False
        self.lists = 0

    def list(self) -> Sequence[Allocation]:
        self.lists += 1
        if self.silent:
            raise BackendError("silent")
        return self.allocations

    def uids(self) -> Mapping[tuple[str, str], frozenset[str]]:
        if self.known is None:
            raise KubeletAbsentError("off")
        return self.known


class Time:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Time:
    return Time()


def an_attributor(kubelet: Kubelet, clock: Time, store: SnapshotStore | None = None) -> Attributor:
    return Attributor(
        kubelet,
        pods=kubelet,
        store=store,
        memory=Memory(0),
        keep_seconds=100,
        fresh_seconds=300,
        clock=clock,
        now=lambda: NOW + timedelta(seconds=clock.seconds),
    )


def filled_store(tmp_path: Path) -> SnapshotStore:
    store = a_store(tmp_path / "snapshot")
    assert store.accept(sealed(a_snapshot(told("u1"))))
    return store


def test_the_kubelet_is_asked_once_per_collection(clock: Time) -> None:
    kubelet = Kubelet(held())
    attributor = an_attributor(kubelet, clock)
    for _ in range(3):
        attributor.collect(an_inventory())
    assert kubelet.lists == 3


def test_while_the_kubelet_is_silent_the_last_allocations_count_and_then_nobody_knows(clock: Time) -> None:
    kubelet = Kubelet(held())
    attributor = an_attributor(kubelet, clock)
    assert attributor.collect(an_inventory()).of(GPU).status is MappingStatus.MAPPED
    kubelet.silent = True
    clock.seconds = 99
    assert attributor.collect(an_inventory()).of(GPU).status is MappingStatus.MAPPED
    clock.seconds = 101
    assert attributor.collect(an_inventory()).of(GPU).status is MappingStatus.UNKNOWN
    state = attributor.sources[Source.POD_RESOURCES]
    assert (state.failures, state.answered_at, state.problem) == (2, 0, "silent")
    kubelet.silent = False
    assert attributor.collect(an_inventory()).of(GPU).status is MappingStatus.MAPPED


def test_before_the_kubelet_ever_answered_nobody_knows_who_holds_what(clock: Time) -> None:
    kubelet = Kubelet()
    kubelet.silent = True
    assert an_attributor(kubelet, clock).collect(an_inventory()).of(GPU).status is MappingStatus.UNKNOWN


def test_a_pods_api_that_is_off_is_no_failure_and_the_snapshot_names_the_pod(clock: Time, tmp_path: Path) -> None:
    kubelet = Kubelet(held())
    kubelet.known = None
    attributor = an_attributor(kubelet, clock, filled_store(tmp_path))
    found = attributor.collect(an_inventory()).of(GPU)
    assert (found.status, found.holders[0].fields["cost_center"]) == (MappingStatus.MAPPED, "CC-1")
    assert attributor.sources[Source.PODS_API].failures == 0


def test_an_old_snapshot_names_no_pod_and_still_says_whose_a_named_one_is(clock: Time, tmp_path: Path) -> None:
    kubelet = Kubelet(held())
    attributor = an_attributor(kubelet, clock, filled_store(tmp_path))
    clock.seconds = 3600
    assert attributor.collect(an_inventory()).of(GPU).holders[0].fields["business_group"] == "search"
    kubelet.known = None
    assert attributor.collect(an_inventory()).of(GPU).status is MappingStatus.UNKNOWN
