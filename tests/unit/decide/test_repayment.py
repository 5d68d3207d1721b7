"""How those who are stopped repay a lender: how much is swapped, how much others take over, and nothing too much."""

from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.policy import WithinGroup
from tests.unit.decide.parts import group_terms
from tests.unit.decide.scene import DEMAND, NOTEBOOK, OWN, Scene, victims


def pledged(scene: Scene) -> int:
    """GPUs that are pledged to the demand once its plan is committed."""
    return sum(line.gpus for line in scene.after(scene.plan()).lines if line.demand == DEMAND)


def test_what_is_swapped_is_taken_over_by_nobody_else() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 4), group_terms("d", 0),
                  nodes={"n0": 8, "n1": 8})  # fmt: skip
    scene.runs("dear", "a", {"b": 8}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 4})
    scene.wants(6)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["cheap"], True)
    offered = [(line.lender, line.gpus) for line in scene.after(plan).lines if line.state is LineState.OFFERED]
    assert offered == [(SURPLUS, 2)], "of the four that there are: the victim repays four"
    assert pledged(scene) == 6


def test_a_single_gpu_is_taken_over_too() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 9})
    scene.runs("x", "a", {"b": 8})
    scene.wants(1)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == ([], True)


def test_no_more_lines_are_swapped_than_are_needed() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), group_terms("d", 0),
                  nodes={"n0": 8, "n1": 8})  # fmt: skip
    for uid in ("first", "second"):
        scene.runs(uid, "a", {"b": 4}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 8})
    scene.wants(4)
    plan = scene.plan()
    assert victims(plan) == ["cheap"]
    books = scene.after(plan)
    assert {line.lender: line.gpus for line in books.lines_of("cheap")} == {"b": 4, "c": 4}
    assert [line.lender for line in books.lines_of("second")] == ["b"]


def test_swaps_of_two_victims_together_keep_the_lending_limit() -> None:
    groups = (group_terms("b", 8, lending_limit=3), group_terms("c", 6), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    scene.runs("own-borrow", "b", {"b": 8}, contract=NOTEBOOK)
    for uid in ("cheap-1", "cheap-2"):
        scene.runs(uid, "d", {"c": 3})
    scene.runs("busy", "d", {SURPLUS: 2}, priority=9)
    scene.wants(4)
    assert victims(scene.plan()) == ["own-borrow"], "d may hold three of b at most"


def test_own_work_that_was_asked_is_let_go_where_borrowed_work_repays_all() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8, within_group=WithinGroup.LOWER_PRIORITY), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 6})
    asked = scene.runs("asked", "b", {"b": 2}, priority=-1)
    asked.kind = OWN
    scene.lines[1] = scene.lines[1].model_copy(update={"side": OWN, "state": LineState.RECALLED, "demand": DEMAND})
    scene.wants(6)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["x"], True)
    assert {line.workload.uid: line.demand for line in scene.after(plan).lines} == {"x": DEMAND, "asked": None}
