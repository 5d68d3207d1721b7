"""What a layout asks for, again and again: only what has changed is made and looked at."""

import pytest

from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.kueue.wanted import ORDER, Want, Wants
from gpubank.domain.layout import GroupLayout, PoolLayout


def layout(*groups: str, namespaces: tuple[str, ...] = ("team",), resource: str = "nvidia.com/gpu") -> PoolLayout:
    return PoolLayout(
        cluster="local",
        pool="h100",
        resource_name=resource,
        groups=tuple(GroupLayout(group=group, namespaces=namespaces) for group in groups),
    )


def bodies(found: dict[Kind, list[Want]]) -> dict[str, Object]:
    return {want.name: want.body for wants in found.values() for want in wants}


def test_a_group_has_two_queues_and_two_more_in_each_of_its_namespaces_after_the_flavor() -> None:
    found = Wants().of(layout("a", namespaces=("x", "y")))
    assert tuple(found) == ORDER == (RESOURCE_FLAVOR, CLUSTER_QUEUE, LOCAL_QUEUE)
    assert [want.name for want in found[CLUSTER_QUEUE]] == ["ClusterQueue/a.h100.own", "ClusterQueue/a.h100.borrow"]
    assert sorted(want.name for want in found[LOCAL_QUEUE]) == [
        "LocalQueue/x/h100",
        "LocalQueue/x/h100-borrow",
        "LocalQueue/y/h100",
        "LocalQueue/y/h100-borrow",
    ]


def test_a_group_that_stays_as_it_is_asks_for_the_very_same_objects() -> None:
    wants = Wants()
    before = bodies(wants.of(layout("a", "b")))
    after = bodies(wants.of(layout("b", "c")))
    same = {name for name in after if before.get(name) is after[name]}
    assert {"ClusterQueue/b.h100.own", "ClusterQueue/b.h100.borrow"} <= same
    assert not any("/a." in name for name in after)
    assert "ClusterQueue/c.h100.own" in after
    assert "ClusterQueue/c.h100.own" not in same


def test_another_resource_makes_everything_anew() -> None:
    wants = Wants()
    before = bodies(wants.of(layout("a")))
    after = bodies(wants.of(layout("a", resource="amd.com/gpu")))
    assert not any(before[name] is after[name] for name in after)
    covered = after["ClusterQueue/a.h100.own"]["spec"]["resourceGroups"][0]["coveredResources"]
    assert covered == ["amd.com/gpu"]


class Cluster:
    """Objects by name, and whether they are as wanted; remembers who asked."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.asked: list[str] = []

    def find(self, want: Want) -> Object | None:
        return self.objects.get(want.name)

    def good(self, want: Want, found: Object) -> bool:
        self.asked.append(want.name)
        return bool(found["good"])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_an_object_that_was_as_wanted_is_looked_at_again_only_when_it_has_changed(cluster: Cluster) -> None:
    wants = Wants()
    queues = wants.of(layout("a"))[CLUSTER_QUEUE]
    own, borrow = (want.name for want in queues)
    assert [found for _, found in wants.unsettled(queues, cluster.find, cluster.good)] == [None, None]
    cluster.objects = {own: {"good": True}, borrow: {"good": False}}
    for _ in range(2):
        assert [want.name for want, _ in wants.unsettled(queues, cluster.find, cluster.good)] == [borrow]
    assert cluster.asked == [own, borrow, borrow]
    cluster.objects[own] = {"good": False}
    left = wants.unsettled(queues, cluster.find, cluster.good)
    assert [(want.name, found) for want, found in left] == [(own, {"good": False}), (borrow, {"good": False})]


def test_an_object_that_is_wanted_otherwise_is_looked_at_again(cluster: Cluster) -> None:
    wants = Wants()
    queues = wants.of(layout("a"))[CLUSTER_QUEUE]
    cluster.objects = {want.name: {"good": True} for want in queues}
    wants.unsettled(queues, cluster.find, cluster.good)
    others = wants.of(layout("a", namespaces=("elsewhere",)))[CLUSTER_QUEUE]
    cluster.asked.clear()
    assert wants.unsettled(others, cluster.find, cluster.good) == []
    assert cluster.asked == [want.name for want in others]


def test_what_is_wanted_no_more_is_forgotten(cluster: Cluster) -> None:
    wants = Wants()
    queues = wants.of(layout("a"))[CLUSTER_QUEUE]
    cluster.objects = {want.name: {"good": True} for want in queues}
    wants.unsettled(queues, cluster.find, cluster.good)
    wants.forget({queues[0].name})
    cluster.asked.clear()
    wants.unsettled(queues, cluster.find, cluster.good)
    assert cluster.asked == [queues[1].name]
