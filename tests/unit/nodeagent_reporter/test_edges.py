"""Edges: what is new in the plugin's answer is told once, whoever dies and starts again meanwhile."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.incident import HealthEdge
from nodeagent.reporting.edges import Look, Memory, look

BURST = 180.0


def mark(
    cause: str, first: float, last: float | None = None, *, fault: str = "reset", count: int = 1
) -> dict[str, Any]:
    return {
        "cause": cause,
        "fault": fault,
        "action": "RESET_GPU",
        "first_at": first,
        "last_at": first if last is None else last,
        "count": count,
        "gi": 0,
        "ci": 0,
        "note": "",
    }


def answer(*marks: dict[str, Any], uuid: str = "GPU-1") -> dict[str, Any]:
    return {"gpus": [{"uuid": uuid, "marks": list(marks)}]}


def see(inspected: Mapping[str, Any], before: Memory | None = None) -> Look:
    return look(inspected, before or {}, node="n1", boot_id="b", burst=BURST)


def told(found: Look) -> list[HealthEdge]:
    return [edge for edges in found.edges.values() for edge in edges]


def test_a_new_mark_is_told_with_everything_that_is_known_of_it() -> None:
    (edge,) = told(see(answer(mark("xid 119", 100.0))))
    assert (edge.cause, edge.fault, edge.action, edge.boot_id) == ("xid 119", "reset", "RESET_GPU", "b")
    assert edge.first_at.timestamp() == 100.0


def test_a_burst_is_told_once_and_again_only_after_a_silence() -> None:
    first = see(answer(mark("xid 119", 100.0)))
    burst = see(answer(mark("xid 119", 100.0, 279.0, count=90)), first.memory)
    assert told(burst) == []
    again = see(answer(mark("xid 119", 100.0, 279.0 + BURST + 1, count=91)), burst.memory)
    (edge,) = told(again)
    assert edge.id in again.repeated
    assert edge.id != told(first)[0].id


def test_a_fault_that_lasts_for_hours_is_told_once() -> None:
    memory, edges = see(answer(mark("remap-failed", 0.0))).memory, 0
    for last in range(5, 20_000, 5):
        found = see(answer(mark("remap-failed", 0.0, float(last))), memory)
        memory, edges = found.memory, edges + len(told(found))
    assert edges == 0


def test_a_fault_that_was_over_and_comes_again_is_another_one() -> None:
    first = see(answer(mark("thermal", 100.0, fault="transient")))
    quiet = see(answer(), first.memory)
    assert told(quiet) == []
    again = see(answer(mark("thermal", 120.0, fault="transient")), quiet.memory)
    assert [edge.id in again.repeated for edge in told(again)] == [False]


def test_what_people_and_incidents_hold_against_a_gpu_is_no_fault() -> None:
    assert told(see(answer(mark("quarantine", 100.0, fault="manual")))) == []


def test_every_gpu_of_a_node_has_its_own_edges() -> None:
    inspected = {"gpus": [*answer(mark("lost", 1.0))["gpus"], *answer(mark("lost", 1.0), uuid="GPU-2")["gpus"]]}
    found = see(inspected)
    assert set(found.edges) == {"GPU-1", "GPU-2"}
    assert len({edge.id for edge in told(found)}) == 2


marks = st.dictionaries(
    st.sampled_from(["xid 79", "xid 119", "lost", "thermal"]),
    st.tuples(st.integers(0, 500), st.integers(0, 2_000)),
    max_size=4,
)


def _answer(found: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    return answer(*(mark(cause, float(first), float(first + lasts)) for cause, (first, lasts) in found.items()))


@given(marks, marks)
def test_whoever_forgets_what_it_told_tells_the_same_ids_again(
    one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]
) -> None:
    first = see(_answer(one))
    assert {edge.id for edge in told(see(_answer(one)))} == {edge.id for edge in told(first)}
    second = see(_answer(other), first.memory)
    # Dying before the memory was written means: the same look from the same memory.
    assert told(see(_answer(other), first.memory)) == told(second)


@given(marks)
def test_nothing_is_told_twice_and_nothing_is_left_out(found: Mapping[str, tuple[int, int]]) -> None:
    first = see(_answer(found))
    assert {edge.cause for edge in told(first)} == set(found)
    assert told(see(_answer(found), first.memory)) == []
