"""Own work that makes room for more important own work of its group: who, and for whom."""

from datetime import timedelta
from typing import Any

import pytest

from gpubank.decide.desk import Desk
from gpubank.decide.victims import LATE, choose_from
from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import Mark
from gpubank.domain.loan import LineState
from gpubank.domain.policy import WithinGroup
from gpubank.domain.terms import LeaseTerms
from tests.unit.decide.crowd import DEMAND, LOWER, OWN, crowded, desk, plan_of, runs, taken, victims
from tests.unit.decide.parts import NOW, SERVING, group_terms
from tests.unit.decide.scene import Scene

# ---- who makes room, and for whom


def test_less_important_own_work_is_chosen_pledged_and_keeps_its_quota_until_it_is_stopped() -> None:
    model = crowded()
    runs(model)
    (line,) = model.books.lines
    assert (line.side, line.state, line.lender, line.borrower) == (OWN, LineState.RECALLED, "a", "a")
    assert (line.workload.uid, line.gpus, line.demand, line.is_chosen) == ("low", 8, DEMAND, True)
    assert model.books.own_nominal("a") == 8
    assert model.books.lent("a") == model.books.borrowed("a") == 0
    assert desk(model).free("a") == 0
    assert model.jobs["low"].active
    (victim,) = plan_of(model).victims
    assert (victim.borrower, victim.gpus, victim.line_ids, victim.needs_checkpoint) == ("a", 8, (line.line_id,), True)


def test_it_is_stopped_the_important_job_comes_in_first_and_it_returns_when_there_is_room() -> None:
    model = crowded()
    runs(model)
    model.notice = False
    model.submit("sister", "a", OWN, 8)  # as important as the victim, and would fit its place
    model.settle()
    assert model.jobs["high"].reserved
    assert not model.jobs["low"].active
    assert not model.books.lines
    assert not model.books.demands
    model.finish("sister", deleted=True)
    model.finish("high")
    model.settle()
    assert model.jobs["low"].reserved
    assert model.jobs["low"].mark == Mark(loan="loan/low", term=2, step="resume")


@pytest.mark.parametrize(
    "changes",
    [
        {"within": WithinGroup.NEVER},
        {"priority": 0},
        {"contract": SERVING},
        {"contract": WorkloadContract()},
        {"guaranteed": 8, "more": 9},
    ],
    ids=["the policy says Never", "it is as important", "it serves", "it cannot be saved", "the guarantee is less"],
)
def test_nobody_makes_room(changes: dict[str, Any]) -> None:
    model = crowded(**changes)
    runs(model)
    assert not model.books.demands
    assert not model.books.lines


def test_what_cannot_be_suspended_or_was_switched_off_makes_no_room() -> None:
    model = crowded()
    facts = model.facts()
    low = facts.workload("low")
    assert low is not None
    for change in ({"suspendable": False}, {"active": False}, {"reserved": False}):
        others = tuple(w for w in facts.workloads if w is not low)
        seen = facts.model_copy(update={"workloads": (*others, low.model_copy(update=change))})
        assert Desk(seen, model.books, model.terms, model.now).owed("a") == ()


def test_a_victim_counts_for_one_waiting_job_and_the_more_important_one_is_served() -> None:
    model = crowded(more=4, priority=1)
    model.submit("highest", "a", OWN, 4, priority=2)
    assert [w.key.uid for w in desk(model).owed("a")] == ["highest"]
    runs(model)
    assert [demand.demand_id for demand in model.books.demands] == ["h100/a/Workload/highest"]
    model.notice = False
    model.settle()
    assert model.jobs["highest"].reserved
    assert model.jobs["high"].reserved  # what the victim had more is free once it has left
    assert not model.jobs["low"].active


def test_whoever_makes_room_for_one_demand_is_no_victim_of_another() -> None:
    model = crowded(guaranteed=16, nodes=3, others={"low-2": 0})
    model.submit("high-2", "a", OWN, 8, priority=1)
    runs(model)
    chosen = {line.demand: line.workload.uid for line in model.books.lines}
    assert set(chosen) == {DEMAND, f"{DEMAND}-2"}
    assert len(set(chosen.values())) == 2


def test_the_least_important_goes_first_and_nobody_more_than_is_needed() -> None:
    model = crowded(guaranteed=16, nodes=3, priority=3, others={"mid": 1})
    runs(model)
    assert victims(model) == ["low"]


def test_borrowed_work_goes_before_own_work() -> None:
    model = crowded(guaranteed=16, nodes=3)
    model.jobs.pop("high")
    model.submit("borrower", "b", Side.BORROW, 16)
    model.notice = False
    model.settle()
    assert model.jobs["borrower"].reserved
    model.notice = True
    model.submit("high", "a", OWN, 8, priority=1)
    runs(model)
    assert victims(model) == ["borrower"]


def test_who_has_just_come_back_may_make_progress_first() -> None:
    model = crowded(min_run_time=timedelta(minutes=5))
    low = model.jobs["low"]
    low.mark, low.admitted_at = Mark(loan="loan/low", term=2, step="resume"), model.now
    for _ in range(4):
        model.step()
        model.now += timedelta(milliseconds=300)
    plan = plan_of(model)
    assert not plan.victims
    assert plan.retry_at == low.admitted_at + timedelta(minutes=5)


def test_who_has_refused_is_spared_until_the_pool_evicts() -> None:
    model = crowded()
    runs(model)
    model.spared[DEMAND] = {"low"}
    assert victims(model) == []


def test_a_lease_of_a_loan_says_nothing_about_own_work() -> None:
    model = crowded()
    lease = LeaseTerms(name="t/l", group="a", namespace="team-a", gpus=8, until=NOW + timedelta(days=1))
    model.terms = model.terms.model_copy(update={"leases": (lease,)})
    runs(model)
    assert victims(model) == ["low"]


@pytest.mark.parametrize(
    ("priority", "within", "kind", "chosen"),
    [
        (-1, LOWER, DemandKind.WORKLOAD, ["low"]),
        (0, LOWER, DemandKind.WORKLOAD, []),
        (-1, WithinGroup.NEVER, DemandKind.WORKLOAD, []),
        (-1, LOWER, DemandKind.PLACEMENT, []),
    ],
)
def test_a_plan_takes_own_work_only_if_it_is_less_important_the_policy_says_so_and_somebody_waits_for_quota(
    priority: int, within: WithinGroup, kind: DemandKind, chosen: list[str]
) -> None:
    scene = Scene(group_terms("b", 8, within_group=within), nodes={"n0": 8})
    low = scene.model.submit("low", "b", OWN, 8, priority=priority)
    low.reserved, low.admitted_at = True, NOW
    scene.model.place()
    scene.wants(8)
    (demand,) = scene.model.books.demands
    scene.model.books = scene.model.books.model_copy(update={"demands": (demand.model_copy(update={"kind": kind}),)})
    plan = scene.plan()
    assert [victim.workload.uid for victim in plan.victims] == chosen
    assert plan.complete is bool(chosen)


def test_who_is_being_stopped_is_stuck_only_once_a_pod_is_late() -> None:
    model = taken()
    facts, books = model.facts(), model.books
    low = facts.workload("low")
    assert low is not None
    for late, stuck in ((timedelta(seconds=1), False), (LATE, True)):
        pods = tuple(pod.model_copy(update={"ends_by": model.now - late}) for pod in low.pod_facts)
        others = tuple(each for each in facts.workloads if each is not low)
        seen = facts.model_copy(update={"workloads": (*others, low.model_copy(update={"pod_facts": pods}))})
        demand = books.demand(DEMAND)
        assert demand is not None
        (candidate,) = choose_from(Desk(seen, books, model.terms, model.now), demand, frozenset()).candidates
        assert (candidate.sunk, candidate.stuck) == (True, stuck)
