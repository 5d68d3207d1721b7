"""The recall plan in small: what is counted once, what takes room, and how seldom a closer look is taken."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.decide.repay import Repayment, Teller
from gpubank.domain.base import clock
from gpubank.domain.contract import WorkloadContract
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.loan import LineState
from gpubank.domain.policy import WithinGroup
from gpubank.domain.terms import LeaseTerms
from tests.unit.decide.parts import POOL, RETRYABLE, group_terms
from tests.unit.decide.scene import DEMAND, OWN, Scene, victims

LIMIT = f"{POOL}/b/Limit/guarantee"


def lent(*, guaranteed: int = 8, **lines: int) -> Scene:
    """A borrows of b, each job as much as is said."""
    scene = Scene(group_terms("a", 0), group_terms("b", guaranteed), nodes={"n0": guaranteed})
    for uid, gpus in lines.items():
        scene.runs(uid, "a", {"b": gpus})
    return scene


def mark(scene: Scene, number: int, **update: object) -> None:
    scene.lines[number] = scene.lines[number].model_copy(update=update)


def only(scene: Scene, **update: object) -> Demand:
    """Change the one demand there is."""
    (demand,) = scene.model.books.demands
    scene.model.books = scene.model.books.model_copy(update={"demands": (demand.model_copy(update=update),)})
    return scene.model.books.demands[0]


def limited(scene: Scene, gpus: int) -> RecallPlan:
    """Plan for what b has lent beyond its guarantee."""
    scene.wants(gpus)
    only(scene, demand_id=LIMIT, kind=DemandKind.LIMIT, workload=None)
    return plan_recall(scene.model.facts(), scene.model.books, scene.model.terms, LIMIT, now=scene.model.now)


# ---- what is there


@pytest.mark.parametrize(("before", "after"), [(0, 4), (2, 4), (4, 4)])
def test_no_more_is_kept_idle_than_is_asked_for(before: int, after: int) -> None:
    scene = lent(guaranteed=12, x=2)
    scene.wants(4)
    only(scene, idle=before)
    plan = scene.plan()
    books = scene.after(plan) if plan.transaction is not None else scene.model.books
    assert [demand.idle for demand in books.demands] == [after]
    assert (plan.covered, plan.complete, victims(plan)) == (4, True, [])


def test_what_was_raised_for_another_demand_is_not_kept_for_this_one() -> None:
    scene = lent(x=4)
    scene.model.submit("first", "b", OWN, 4)
    scene.wants(4)
    books = scene.model.books
    (mine,) = books.demands
    assert mine.workload is not None
    raised = mine.model_copy(
        update={
            "demand_id": f"{POOL}/b/Workload/first",
            "workload": mine.workload.model_copy(update={"uid": "first"}),
            "state": DemandState.RAISED,
        }
    )
    scene.model.books = books.model_copy(update={"demands": (raised, mine)})
    plan = scene.plan()
    assert victims(plan) == ["x"]
    assert [demand.idle for demand in scene.after(plan).demands] == [0, 0]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_recalled_loan_whose_job_ended_by_itself_is_on_its_way_and_nobody_is_stopped_in_its_place(
    deleted: bool,
) -> None:
    scene = lent(x=4, y=4)
    mark(scene, 0, state=LineState.RECALLED, demand=DEMAND)
    scene.model.finish("x", deleted=deleted)
    scene.wants(4)
    plan = scene.plan()
    assert (plan.covered, plan.complete, victims(plan), plan.transaction) == (4, True, [], None)


@pytest.mark.parametrize("need", [1, 3, 4])
def test_a_granted_loan_whose_job_has_ended_closes_as_far_as_it_is_needed(need: int) -> None:
    scene = lent(x=4, y=4)
    mark(scene, 0, demand=DEMAND)
    scene.model.finish("x")
    scene.wants(need)
    plan = scene.plan()
    assert (plan.complete, victims(plan)) == (True, [])
    closing = [line for line in scene.after(plan).lines if line.state is LineState.CLOSING]
    assert [(line.workload.uid, line.gpus, line.demand) for line in closing] == [("x", need, DEMAND)]


def test_own_work_that_was_only_chosen_and_has_ended_is_free_and_counts_once() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8, within_group=WithinGroup.LOWER_PRIORITY), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    scene.runs("low", "b", {"b": 4}).kind = OWN
    mark(scene, 1, side=OWN, state=LineState.RECALLED, demand=DEMAND, granted_at=None)
    scene.model.finish("low")
    scene.wants(8)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["x"], True)
    assert [demand.idle for demand in scene.after(plan).demands] == [4]


# ---- where there is room


@pytest.mark.parametrize(
    ("contract", "reserved", "chosen"),
    [
        pytest.param(RETRYABLE, True, ["waits"], id="it may be stopped before it begins"),
        pytest.param(WorkloadContract(), True, ["x"], id="it may not"),
        pytest.param(RETRYABLE, False, ["x"], id="it is about to be admitted"),
    ],
)
def test_room_that_borrowed_work_is_about_to_take_is_not_counted(
    contract: WorkloadContract, reserved: bool, chosen: list[str]
) -> None:
    nodes = dict.fromkeys(["n0", "n1", "n2"], 8)
    scene = Scene(group_terms("a", 0), group_terms("b", 16), group_terms("c", 8), nodes=nodes)
    scene.runs("x", "a", {"b": 8}, on=["n1", "n2"], size=4)
    scene.runs("waits", "a", {"c": 8}, on=[], size=8, contract=contract).reserved = reserved
    scene.wants(1, 8)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (chosen, True)


def test_who_waits_for_nodes_takes_them_in_the_schedulers_order() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 4), group_terms("c", 9), nodes={"n0": 5, "n1": 8})
    for gpus, priority in ((4, 0), (5, 1)):
        scene.runs(f"w{gpus}", "a", {"c": gpus}, on=[], size=gpus, priority=priority, contract=WorkloadContract())
    scene.wants(1, 4)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == ([], True), "the larger goes where nothing is left, the other beside b's"


def test_room_that_is_being_made_for_another_demand_is_there_and_demands_without_work_take_none() -> None:
    nodes = dict.fromkeys(["n0", "n1", "n2"], 8)
    scene = Scene(group_terms("a", 0), group_terms("b", 16), group_terms("c", 8), nodes=nodes)
    scene.runs("x", "a", {"b": 8}, on=["n1", "n2"], size=4)
    scene.runs("leaves", "a", {"c": 8}, on=["n0"], size=8)
    another = f"{POOL}/c/Limit/lending"
    mark(scene, 1, state=LineState.RECALLED, demand=another)
    scene.wants(1, 8)
    books = scene.model.books
    (mine,) = books.demands
    limit = mine.model_copy(update={"demand_id": another, "lender": "c", "kind": DemandKind.LIMIT, "workload": None})
    scene.model.books = books.model_copy(update={"demands": (mine, limit)})
    plan = scene.plan()
    assert (victims(plan), plan.complete) == ([], True)


def test_a_loan_that_a_person_wants_back_needs_no_room_for_its_own_job() -> None:
    scene = lent(x=8)
    scene.model.jobs["x"].nodes = []
    scene.model.nodes = {"n0": 4}
    scene.wants(8)
    only(scene, kind=DemandKind.RETURN, workload=scene.lines[0].workload)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["x"], True)


# ---- how many are stopped, and how closely that is looked at


def test_of_those_who_cannot_meet_a_limit_together_only_who_helps_is_stopped() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 1), nodes={"n0": 8, "n1": 1})
    scene.runs("x", "a", {"b": 4})
    scene.runs("y", "a", {"b": 4}, contract=WorkloadContract())
    scene.runs("useless", "a", {"c": 1})
    mark(scene, 1, demand="another")
    plan = limited(scene, 8)
    assert (victims(plan), plan.covered, plan.complete) == (["x"], 4, False)


def looks(scene: Scene, gpus: int, kind: DemandKind, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Plan and return how many are stopped, and how often it was worked out what the chosen repay."""
    looked = Counter[str]()
    repay = Teller.repay

    def counted(self: Teller, *args: Any) -> Repayment:
        looked["closely"] += 1
        return repay(self, *args)

    monkeypatch.setattr(Teller, "repay", counted)
    if kind is DemandKind.LIMIT:
        plan = limited(scene, gpus)
    else:
        scene.wants(max(gpus // 8, 1), min(gpus, 8))
        plan = plan_recall(scene.model.facts(), scene.model.books, scene.model.terms, DEMAND, now=scene.model.now)
    return len(plan.victims), looked["closely"]


@pytest.mark.parametrize(
    ("gpus", "kind", "stopped", "times"),
    [
        pytest.param(4, DemandKind.LIMIT, 2, 3, id="when it may be enough, before anybody is spared, at the end"),
        pytest.param(4, DemandKind.WORKLOAD, 2, 6, id="a node has room once four go, and two of them are spared"),
        pytest.param(5, DemandKind.LIMIT, 3, 3, id="whoever repays a part of the last is not looked at"),
        pytest.param(24, DemandKind.LIMIT, 12, 2, id="all are needed"),
        pytest.param(25, DemandKind.LIMIT, 12, 2, id="all are not enough"),
        pytest.param(32, DemandKind.WORKLOAD, 0, 3, id="nobody is stopped for a part, so nobody is spared"),
        pytest.param(8, DemandKind.WORKLOAD, 4, 12, id="a node is empty once ten go, and six of them are spared"),
    ],
)
def test_of_a_crowd_only_what_may_be_enough_is_looked_at_closely(
    gpus: int, kind: DemandKind, stopped: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 24), nodes=dict.fromkeys(["n0", "n1", "n2"], 8))
    for number in range(12):
        scene.runs(f"x{number:02}", "a", {"b": 2}, on=[f"n{number % 3}"], size=2)
    assert looks(scene, gpus, kind, monkeypatch) == (stopped, times)


# ---- what is written and said


def test_own_work_that_is_being_stopped_for_nobody_any_more_is_pledged_to_whoever_needs_it() -> None:
    scene = Scene(group_terms("b", 8, within_group=WithinGroup.LOWER_PRIORITY), nodes={"n0": 8})
    scene.runs("low", "b", {"b": 8}, priority=-1).kind = OWN
    mark(scene, 0, side=OWN, state=LineState.RECALLED)
    scene.wants(8)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["low"], True)
    assert [line.demand for line in scene.after(plan).lines] == [DEMAND]


def test_whoever_stands_in_the_way_of_a_pod_is_pledged_with_all_its_lines() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 4, "c": 4}, on=["n0"], size=8)
    scene.runs("y", "a", {"c": 4}, on=["n1"], size=4, priority=1)
    scene.wants(1, 8)
    own = scene.model.jobs["own"]
    own.reserved, own.admitted_at = True, scene.model.now
    only(scene, kind=DemandKind.PLACEMENT)
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (["x"], True)
    assert [line.demand for line in scene.after(plan).lines] == [DEMAND, DEMAND, None]


@pytest.mark.parametrize(
    ("reason", "note"), [("", "b needs 8 GPUs: Workload"), ("training", "b needs 8 GPUs: training")]
)
def test_a_plan_notes_who_needs_how_much_and_why(reason: str, note: str) -> None:
    scene = lent(x=8)
    scene.wants(8)
    only(scene, reason=reason)
    plan = scene.plan()
    assert plan.transaction is not None
    assert plan.transaction.note == note


def test_what_is_missing_is_said_to_the_last_gpu() -> None:
    scene = lent(x=7)
    scene.runs("y", "a", {"b": 1}, contract=WorkloadContract())
    scene.wants(8)
    assert scene.plan().reason == "1 of 8 GPUs cannot be had: nobody else may be stopped"


def test_a_lease_that_only_stands_in_the_way_costs_no_gpus() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 8}, on=["n0", "n1"], size=4)
    until = scene.model.now + timedelta(hours=1)
    lease = LeaseTerms(name="team-a/l", group="a", namespace="team-a", gpus=8, until=until)
    scene.model.terms = scene.model.terms.model_copy(update={"leases": (lease,)})
    scene.wants(1, 8)
    assert scene.plan().reason.startswith("0 of 8 GPUs cannot be had: job-x of a (8 GPUs) is protected by")


@pytest.mark.parametrize(("leases", "more"), [(1, ""), (3, ""), (4, "; and 1 more"), (5, "; and 2 more")])
def test_of_many_leases_the_first_three_are_said(leases: int, more: str) -> None:
    scene = lent(**{f"x{number}": 1 for number in range(leases)})
    until = scene.model.now + timedelta(hours=1)
    lease = LeaseTerms(name="team-a/l", group="a", namespace="team-a", gpus=8, until=until)
    scene.model.terms = scene.model.terms.model_copy(update={"leases": (lease,)})
    scene.wants(8)
    said = scene.plan().reason
    assert said.count("is protected by") == min(leases, 3)
    assert said.endswith(f"until {clock(until)}{more}")
