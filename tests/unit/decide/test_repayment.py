"""How those who are stopped repay a lender: how much is swapped, how much others take over, and nothing too much."""

import pytest

from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.domain.contract import WorkloadContract
from gpubank.domain.demand import DemandKind
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.policy import WithinGroup
from tests.unit.decide.parts import POOL, group_terms
from tests.unit.decide.scene import DEMAND, NOTEBOOK, OWN, Scene, victims


def own_work(*, more: int = 0, low: int, **lent: int) -> Scene:
    """Own work of b that makes room and is being stopped, beside loans of b to what cannot be stopped."""
    guaranteed = low + sum(lent.values())
    scene = Scene(
        group_terms("a", 0),
        group_terms("b", guaranteed, within_group=WithinGroup.LOWER_PRIORITY),
        nodes={"n0": guaranteed + more},
    )
    scene.runs("low", "b", {"b": low}, priority=-1).kind = OWN
    mark(scene, 0, side=OWN, state=LineState.RECALLED)
    for uid, gpus in lent.items():
        scene.runs(uid, "a", {"b": gpus}, contract=WorkloadContract())
    return scene


def mark(scene: Scene, number: int, **update: object) -> None:
    scene.lines[number] = scene.lines[number].model_copy(update=update)


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


def test_what_somebody_has_to_spare_takes_over_one_line_and_not_two() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), *(group_terms(name, 4) for name in "ce"), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    for uid in ("x", "y"):
        scene.runs(uid, "a", {"b": 4}, priority=1)
    scene.runs("useless", "d", {"e": 4})
    mark(scene, 2, demand="another")
    scene.wants(8)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["x"], True)
    offered = [(line.lender, line.gpus) for line in scene.after(plan).lines if line.state is LineState.OFFERED]
    assert offered == [("c", 4)]


@pytest.mark.parametrize(
    ("cheap", "taken", "need", "stopped"),
    [
        pytest.param([1], False, 1, ["cheap-0"], id="to the last GPU"),
        pytest.param([2], False, 4, ["first"], id="no more than the victim has"),
        pytest.param([3, 3], False, 5, ["cheap-0", "cheap-1"], id="of two victims with two lines"),
        pytest.param([3, 3], True, 5, [], id="no more than the line has that goes on"),
    ],
)
def test_lines_are_swapped_as_far_as_both_reach(cheap: list[int], taken: bool, need: int, stopped: list[str]) -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", sum(cheap)), group_terms("d", 0),
                  nodes={"n0": 8 + sum(cheap)})  # fmt: skip
    for uid in ("first", "second"):
        scene.runs(uid, "a", {"b": 4}, contract=NOTEBOOK)
    for number, gpus in enumerate(cheap):
        scene.runs(f"cheap-{number}", "d", {"c": gpus})
    if taken:
        mark(scene, 1, demand="another")
    scene.wants(need)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (stopped, bool(stopped))


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


@pytest.mark.parametrize("limit", ["lending_limit", "borrow_limit"])
def test_swaps_of_two_victims_together_keep_the_limits_of_a_loan_to_itself(limit: str) -> None:
    scene = Scene(group_terms("b", 8, **{limit: 3}), group_terms("c", 6), group_terms("d", 0), nodes={"n0": 16})
    scene.runs("own-borrow", "b", {"b": 8}, contract=NOTEBOOK)
    for uid in ("cheap-1", "cheap-2"):
        scene.runs(uid, "d", {"c": 3})
    scene.runs("busy", "d", {SURPLUS: 2}, priority=9)
    scene.wants(4)
    assert victims(scene.plan()) == ["own-borrow"], "three may be swapped, and no more"


def test_a_swap_that_leaves_the_loan_with_its_lender_is_lent_to_nobody_else() -> None:
    scene = Scene(group_terms("b", 8, lending_limit=1), group_terms("c", 2), group_terms("d", 0), nodes={"n0": 10})
    scene.runs("own-borrow", "b", {"b": 8}, contract=NOTEBOOK)
    scene.runs("cheap-1", "b", {"c": 1})
    scene.runs("cheap-2", "d", {"c": 1})
    scene.wants(2)
    assert victims(scene.plan()) == ["cheap-1", "cheap-2"]


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


def test_own_work_stops_whole_however_little_of_it_is_needed() -> None:
    scene = own_work(low=8)
    mark(scene, 0, demand=DEMAND)
    scene.wants(6)
    plan = scene.plan()
    assert (victims(plan), plan.complete, plan.transaction) == (["low"], True, None)


def test_what_own_work_repays_is_taken_over_by_nobody_else() -> None:
    scene = own_work(low=4, y=8, more=5)
    scene.wants(6)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["low"], True)
    offered = [(line.lender, line.gpus) for line in scene.after(plan).lines if line.state is LineState.OFFERED]
    assert offered == [(SURPLUS, 2)], "of the five that there are"


def test_what_runs_no_more_is_taken_over_by_nobody() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 8}).reserved = False
    scene.wants(8)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["x"], True)


def test_a_lender_that_has_lent_all_that_it_may_swaps_no_loan_to_itself() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8, lending_limit=3), group_terms("c", 8), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    scene.runs("lent", "a", {"b": 3}, contract=WorkloadContract())
    scene.runs("own-borrow", "b", {"b": 5}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 8})
    mark(scene, 0, demand="another")
    scene.wants(1)
    assert victims(scene.plan()) == ["own-borrow"]


# ---- for limits, and for a pool whose nodes are missing


def demanded(scene: Scene, gpus: int, kind: DemandKind, *, idle: int = 0) -> RecallPlan:
    """Plan for what b has lent and is to have back, whoever waits."""
    scene.wants(gpus)
    (demand,) = scene.model.books.demands
    name = f"{POOL}/b/{kind}/guarantee"
    update = {"demand_id": name, "kind": kind, "workload": None, "idle": idle}
    scene.model.books = scene.model.books.model_copy(update={"demands": (demand.model_copy(update=update),)})
    del scene.model.jobs["own"]
    return plan_recall(scene.model.facts(), scene.model.books, scene.model.terms, name, now=scene.model.now)


@pytest.mark.parametrize(("kind", "repaid"), [(DemandKind.WORKLOAD, 4), (DemandKind.LIMIT, 0)])
def test_own_work_that_has_made_room_repays_whoever_waited_and_no_limit(kind: DemandKind, repaid: int) -> None:
    scene = own_work(low=4, y=4)
    scene.model.finish("low")
    if kind is DemandKind.WORKLOAD:
        scene.wants(4)
        plan = scene.plan()
    else:
        plan = demanded(scene, 4, kind)
    assert (plan.covered, plan.complete) == (repaid, repaid == 4)


def test_a_loan_to_itself_is_lent_beyond_a_guarantee_like_any_other() -> None:
    scene = Scene(group_terms("b", 8), nodes={"n0": 8})
    scene.runs("itself", "b", {"b": 8})
    assert victims(demanded(scene, 4, DemandKind.LIMIT)) == ["itself"]


@pytest.mark.parametrize(
    ("kind", "nodes", "idle", "stopped"),
    [
        pytest.param(DemandKind.LIMIT, 8, 0, [], id="a limit is kept whoever lends"),
        pytest.param(DemandKind.SHRUNK, 16, 0, [], id="the nodes have all that is in use"),
        pytest.param(DemandKind.SHRUNK, 12, 0, ["x"], id="they have four too few, and of eight the rest goes on"),
        pytest.param(DemandKind.SHRUNK, 8, 0, ["x", "y"], id="they have eight too few"),
        pytest.param(DemandKind.SHRUNK, 8, 7, ["x"], id="what has come back is not asked for again"),
    ],
)
def test_what_nodes_do_not_have_is_stopped_and_taken_over_by_nobody(
    kind: DemandKind, nodes: int, idle: int, stopped: list[str]
) -> None:
    scene = Scene(group_terms("a", 0), *(group_terms(name, 8) for name in "bcd"),
                  nodes=dict.fromkeys(["n0", "n1", "n2"], 8))  # fmt: skip
    own = scene.model.submit("d-own", "d", OWN, 8)
    own.reserved, own.admitted_at = True, scene.model.now
    for uid, gpus in (("x", 7), ("y", 1)):
        scene.runs(uid, "a", {"b": gpus}, on=[])
    scene.model.nodes = {"n0": nodes}
    plan = demanded(scene, 8, kind, idle=idle)
    assert (victims(plan), plan.complete) == (stopped, True)
