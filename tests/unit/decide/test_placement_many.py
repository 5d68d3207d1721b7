"""Much own work that is admitted and on no node: a step looks at a few of it, or at none where the nodes have room."""

from datetime import timedelta

import pytest

from benchmarks.worlds import NODE, NOW, SIZE, Size, World, world
from gpubank.decide.desk import Desk
from gpubank.decide.placement import MOST_PLANS, PATIENCE, TURN
from gpubank.decide.step import step
from gpubank.domain.transaction import DemandOpening

MANY = 2 * MOST_PLANS + 3


def unplaced(count: int) -> World:
    """A pool whose own work is admitted, and as much of it on no node as is said."""
    at = world(Size(groups=3, loans=3, own=MANY))
    long_ago = NOW - 2 * PATIENCE
    own = [each for each in at.facts.workloads if each.key.uid.startswith("own-")]
    lost = {each.key.uid for each in own[:count]}
    workloads = tuple(
        each.model_copy(update={"pod_facts": (), "admitted_at": long_ago}) if each.key.uid in lost else each
        for each in at.facts.workloads
    )
    return World(at.facts.model_copy(update={"workloads": workloads}), at.books, at.terms)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workloads for which it was looked whether a stop would help; none would."""
    found: list[str] = []

    def would_help(desk: Desk, opening: DemandOpening) -> bool:
        assert opening.workload is not None
        found.append(opening.workload.uid)
        return False

    monkeypatch.setattr("gpubank.decide.placement._would_help", would_help)
    return found


def test_a_few_are_looked_at_in_each_second_and_all_of_them_in_turn(asked: list[str]) -> None:
    at, seen = unplaced(MANY), set[str]()
    for second in range(-(-MANY // MOST_PLANS)):
        now = NOW + second * TURN
        asked.clear()
        found = step(at.facts, at.books, at.terms, now)
        assert len(asked) == MOST_PLANS
        assert found.wake_at is not None
        assert found.wake_at <= now + TURN
        seen |= set(asked)
    assert len(seen) == MANY


def test_a_few_are_all_looked_at(asked: list[str]) -> None:
    at = unplaced(MOST_PLANS)
    step(at.facts, at.books, at.terms, NOW)
    assert len(asked) == MOST_PLANS


def test_where_nodes_have_room_for_all_of_it_the_scheduler_is_late_and_nobody_is_looked_at(asked: list[str]) -> None:
    at = unplaced(MANY)
    more = at.facts.nodes[0].model_copy(update={"used": 0})
    nodes = [more.model_copy(update={"name": f"new-{number:03d}"}) for number in range(MANY * SIZE // NODE + 1)]
    facts = at.facts.model_copy(update={"nodes": (*at.facts.nodes, *nodes)})
    step(facts, at.books, at.terms, NOW + timedelta(seconds=1))
    assert not asked
