"""Whether work fits its nodes."""

from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.fit import Room
from gpubank.domain.facts import NodeFacts, PodFacts

frees = st.lists(st.integers(0, 8), max_size=6)


def room(frees: list[int]) -> Room:
    return Room({f"node-{i}": free for i, free in enumerate(frees)})


def test_enough_in_sum_does_not_fit_where_no_node_has_it() -> None:
    assert not room([4, 4]).holds(1, 8)
    assert room([4, 4]).holds(2, 4)


def test_nodes_that_are_not_ready_have_no_room() -> None:
    nodes = [NodeFacts(name="n0", gpus=8, used=2), NodeFacts(name="n1", gpus=8, ready=False)]
    assert Room.of(nodes).free == {"n0": 6, "n1": 0}
    assert Room.emptied(nodes).free == {"n0": 8, "n1": 0}


def test_more_used_than_allocatable_is_no_room_not_negative_room() -> None:
    assert Room.of([NodeFacts(name="n0", gpus=4, used=6)]).free == {"n0": 0}


def test_pods_go_where_least_remains_so_that_whole_nodes_stay_whole() -> None:
    here = room([8, 2])
    assert here.take(1, 2) == 1
    assert here.free == {"node-0": 8, "node-1": 0}


def test_pods_without_gpus_always_fit() -> None:
    assert room([]).holds(5, 0)
    assert room([]).take(5, 0) == 5


def test_stopped_pods_give_their_gpus_back_where_they_were() -> None:
    here = room([0, 0])
    here.give([PodFacts(uid="p", name="p", gpus=8, node="node-1"), PodFacts(uid="q", name="q", gpus=8)])
    assert here.free == {"node-0": 0, "node-1": 8}


@given(frees=frees, pods=st.integers(0, 12), size=st.integers(1, 8))
def test_holds_is_exact_for_pods_of_one_size(frees: list[int], pods: int, size: int) -> None:
    here = room(frees)
    holds = here.holds(pods, size)
    assert (here.take(pods, size) == pods) is holds


@given(frees=frees, pods=st.integers(0, 12), size=st.integers(1, 8))
def test_taking_never_takes_more_than_there_is(frees: list[int], pods: int, size: int) -> None:
    here = room(frees)
    placed = here.take(pods, size)
    assert sum(frees) - sum(here.free.values()) == placed * size
    assert min(here.free.values(), default=0) >= 0
