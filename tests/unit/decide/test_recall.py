"""The recall plan: what hurts least, whose loans, and what policies allow."""

from datetime import timedelta

import pytest

from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.domain.contract import WorkloadContract, WorkloadType
from gpubank.domain.facts import Mark
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.policy import Approval, OnCheckpointFailure, PreemptClass
from gpubank.domain.pool import Freeze, OnOverdue
from tests.unit.decide.parts import HOOKED, NOW, RETRYABLE, group_terms
from tests.unit.decide.scene import ALL, DEMAND, NOTEBOOK, OWN, Scene, victims


def test_idle_quota_of_the_lender_is_kept_and_only_the_rest_recalled() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 3})
    scene.runs("y", "a", {"b": 2})
    scene.wants(6)
    plan = scene.plan()
    books = scene.after(plan)
    demand = books.demand(DEMAND)
    assert demand is not None
    assert demand.idle == 3
    assert victims(plan) == ["x"]
    assert (plan.need, plan.covered, plan.complete) == (6, 6, True)


def test_unused_loans_close_before_anybody_is_stopped() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    waiting = scene.runs("w", "a", {"b": 4})
    waiting.reserved, waiting.nodes = False, []
    scene.wants(4)
    plan = scene.plan()
    assert plan.complete
    assert not plan.victims
    assert [(line.workload.uid, line.state, line.demand) for line in scene.after(plan).lines if line.demand] == [
        ("w", LineState.CLOSING, DEMAND)
    ]


def test_only_as_much_of_an_unused_loan_closes_as_is_needed() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    waiting = scene.runs("w", "a", {"b": 8})
    waiting.reserved, waiting.nodes = False, []
    scene.wants(3)
    closing = [line for line in scene.after(scene.plan()).lines if line.state is LineState.CLOSING]
    assert [line.gpus for line in closing] == [3]


def test_free_slack_of_others_takes_over_before_anybody_is_stopped() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 4, lending_limit=2))
    scene = Scene(*groups, nodes={f"n{i}": 8 for i in range(2)})
    scene.runs("x", "a", {"b": 8})
    scene.wants(6)
    plan = scene.plan()
    offered = [line for line in scene.after(plan).lines if line.state is LineState.OFFERED]
    assert plan.complete
    assert not plan.victims
    assert [(line.lender, line.borrower, line.gpus) for line in offered] == [(SURPLUS, "a", 4), ("c", "a", 2)]
    assert all(line.replaces for line in offered)


def test_a_lender_with_own_demand_takes_over_nothing() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={f"n{i}": 8 for i in range(2)})
    scene.runs("x", "a", {"b": 8})
    scene.model.submit("other", "c", OWN, 4)
    scene.wants(4)
    plan = scene.plan()
    assert victims(plan) == ["x"]


def test_novation_of_a_loan_of_others_does_not_need_room_below_the_borrow_limit() -> None:
    scene = Scene(group_terms("a", 0, borrow_limit=8), group_terms("b", 8), nodes={f"n{i}": 8 for i in range(2)})
    scene.runs("x", "a", {"b": 8})
    scene.wants(8)
    assert not scene.plan().victims


def test_novation_of_a_loan_to_itself_does() -> None:
    scene = Scene(group_terms("b", 8, borrow_limit=3), nodes={f"n{i}": 8 for i in range(2)})
    scene.runs("x", "b", {"b": 8})
    scene.wants(8)
    assert victims(scene.plan()) == ["x"]


def test_a_demand_that_cannot_be_met_whole_stops_nobody() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    scene.runs("y", "a", {"b": 4}, contract=WorkloadContract())
    scene.wants(8)
    plan = scene.plan()
    assert not plan.complete
    assert not plan.victims
    assert (plan.need, plan.covered) == (8, 4)
    assert plan.reason == "4 of 8 GPUs cannot be had: nobody else may be stopped"


def test_a_group_s_loan_to_itself_is_no_victim_for_others() -> None:
    scene = Scene(group_terms("a", 8), group_terms("b", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("self", "a", {"a": 8}, priority=0)
    scene.runs("loan", "a", {"b": 8}, priority=9)
    scene.wants(8)
    assert victims(scene.plan()) == ["loan"]


def test_a_group_s_loan_to_itself_is_a_victim_for_its_own_demand() -> None:
    scene = Scene(group_terms("b", 8), nodes={"n0": 8})
    scene.runs("self", "b", {"b": 8})
    scene.wants(8)
    assert victims(scene.plan()) == ["self"]


def test_lines_are_swapped_so_that_the_cheapest_victim_repays_the_lender() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    scene.runs("dear", "a", {"b": 8}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 8})
    scene.wants(6)
    plan = scene.plan()
    assert victims(plan) == ["cheap"]
    books = scene.after(plan)
    assert {line.lender: line.gpus for line in books.lines_of("dear")} == {"b": 2, "c": 6}
    assert {line.lender: line.gpus for line in books.lines_of("cheap")} == {"b": 6, "c": 2}
    assert [line.gpus for line in books.lines if line.demand == DEMAND] == [6]
    assert set(plan.victims[0].line_ids) == {line.line_id for line in books.lines_of("cheap")}


def test_a_swap_that_would_break_the_lenders_borrow_limit_is_not_made() -> None:
    groups = (group_terms("b", 8, borrow_limit=0), group_terms("c", 8), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    scene.runs("own-borrow", "b", {"b": 8}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 8})
    scene.wants(8)
    plan = scene.plan()
    assert victims(plan) == ["own-borrow"]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("recalled", ["b", "c"])
def test_a_victim_that_is_leaving_for_another_lender_is_taken_first(recalled: str, stopped: bool) -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("cheap", "a", {"b": 4})
    leaving = scene.runs("leaving", "a", {"b": 4, "c": 8}, contract=NOTEBOOK)
    if stopped:
        leaving.active, leaving.reserved, leaving.mark = False, False, Mark(loan="loan/x", term=1, step="stop")
    scene.lines = [
        line.model_copy(update={"state": LineState.RECALLED})
        if (line.workload.uid, line.lender) == ("leaving", recalled)
        else line
        for line in scene.lines
    ]
    scene.wants(4)
    assert victims(scene.plan()) == ["leaving"]


def test_who_is_stopped_for_another_is_taken_before_who_was_only_asked_for_this_one() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("asked", "a", {"b": 4})
    stopped = scene.runs("stopped", "a", {"b": 4})
    stopped.active, stopped.reserved, stopped.mark = False, False, Mark(loan="loan/x", term=1, step="stop")
    scene.lines = [line.model_copy(update={"state": LineState.RECALLED}) for line in scene.lines]
    scene.lines[0] = scene.lines[0].model_copy(update={"demand": DEMAND})
    scene.wants(4)
    plan = scene.plan()
    assert victims(plan) == ["stopped"]
    assert {line.workload.uid: line.demand for line in scene.after(plan).lines} == {"asked": None, "stopped": DEMAND}


def test_a_victim_gives_up_what_it_runs_on_and_not_what_it_is_offered() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    offered = scene.lines[0].model_copy(update={"line_id": "h100-2", "state": LineState.OFFERED, "granted_at": None})
    scene.lines.append(offered)
    scene.wants(4)
    (victim,) = scene.plan().victims
    assert (victim.gpus, victim.line_ids) == (4, ("h100-1",))


def test_lines_that_another_demand_has_are_not_pledged_twice() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    scene.runs("y", "a", {"b": 4}, priority=3)
    scene.lines[0] = scene.lines[0].model_copy(update={"demand": "another"})
    scene.wants(4)
    assert victims(scene.plan()) == ["y"]


def test_of_a_victim_only_what_is_needed_is_pledged_and_all_of_it_stops() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 8, "c": 8})
    scene.wants(5)
    plan = scene.plan()
    books = scene.after(plan)
    assert [line.gpus for line in books.lines if line.demand == DEMAND] == [5]
    assert sum(line.gpus for line in books.lines if line.line_id in plan.victims[0].line_ids) == 16


def test_classes_that_the_borrowers_policy_leaves_out_are_no_victims() -> None:
    only = frozenset({PreemptClass.CHECKPOINTABLE})
    scene = Scene(group_terms("a", 0, only_preempt=only), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4}, contract=RETRYABLE)
    scene.runs("y", "a", {"b": 4}, contract=HOOKED)
    scene.wants(4)
    assert victims(scene.plan()) == ["y"]


def test_inference_is_never_a_victim() -> None:
    scene = Scene(group_terms("a", 0, only_preempt=ALL), group_terms("b", 8), nodes={"n0": 8})
    serving = WorkloadContract(workload_type=WorkloadType.INFERENCE, retryable=True)
    scene.runs("x", "a", {"b": 8}, contract=serving)
    scene.wants(4)
    assert not scene.plan().victims


def test_the_notice_is_the_borrowers_within_the_pools() -> None:
    scene = Scene(
        group_terms("a", 0, grace_period=timedelta(hours=2)),
        group_terms("b", 8),
        nodes={"n0": 8},
        max_grace_period=timedelta(minutes=15),
    )
    scene.runs("x", "a", {"b": 8})
    scene.wants(8)
    assert scene.plan().victims[0].grace == timedelta(minutes=15)


def test_the_lenders_policy_decides_about_approval() -> None:
    for lender, borrower in ((Approval.REQUIRED, Approval.NEVER), (Approval.NEVER, Approval.REQUIRED)):
        scene = Scene(group_terms("a", 0, approval=borrower), group_terms("b", 8, approval=lender), nodes={"n0": 8})
        scene.runs("x", "a", {"b": 8})
        scene.wants(8)
        assert scene.plan().approval_required is (lender is Approval.REQUIRED)


def test_whoever_refused_is_spared() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    scene.runs("y", "a", {"b": 4}, priority=3)
    scene.wants(4)
    assert victims(scene.plan(spared=frozenset({"x"}))) == ["y"]


def test_an_overdue_demand_of_a_pool_that_evicts_spares_nobody() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8}, on_overdue=OnOverdue.EVICT)
    scene.runs("x", "a", {"b": 8}, contract=HOOKED)
    scene.wants(8)
    assert not scene.plan(spared=frozenset({"x"})).victims
    scene.model.now = NOW + timedelta(hours=1)
    plan = scene.plan(spared=frozenset({"x"}))
    assert victims(plan) == ["x"]
    assert plan.victims[0].on_checkpoint_failure is OnCheckpointFailure.EVICT


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("ran", "due", "chosen"),
    [
        pytest.param(5 * MINUTE, 60 * MINUTE, [], id="it may make progress"),
        pytest.param(5 * MINUTE, 21 * MINUTE, [], id="it can be gone by then"),
        pytest.param(5 * MINUTE, 20 * MINUTE, ["x"], id="the owner would be late"),
        pytest.param(20 * MINUTE, 60 * MINUTE, ["x"], id="it has had its time"),
    ],
)
def test_whoever_has_just_come_back_may_make_progress_unless_the_owner_would_be_late(
    ran: timedelta, due: timedelta, chosen: list[str]
) -> None:
    terms = {"min_run_time": 20 * MINUTE, "max_grace_period": 5 * MINUTE}
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8}, **terms)
    scene.runs("x", "a", {"b": 8}, age=ran, mark=Mark(loan="loan/x", term=2, step="resume"))
    scene.wants(8, due=due)
    plan = scene.plan()
    assert victims(plan) == chosen
    assert plan.retry_at == (None if chosen else NOW + 15 * MINUTE)


def test_a_first_term_is_not_protected() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8}, min_run_time=timedelta(minutes=20))
    scene.runs("x", "a", {"b": 8})
    scene.wants(8)
    assert victims(scene.plan()) == ["x"]


def test_nothing_is_planned_while_the_pool_is_frozen() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8}, freeze=Freeze(by="ops", reason="upgrade"))
    scene.runs("x", "a", {"b": 8})
    scene.wants(8)
    plan = scene.plan()
    assert plan == RecallPlan(need=8, reason="the pool is frozen")


def test_a_demand_that_has_ended_is_planned_for_no_more() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.wants(8)
    plan = plan_recall(scene.model.facts(), scene.model.books, scene.model.terms, "other", now=NOW)
    assert not plan.complete
    assert plan.reason == "the demand has ended"


def test_victims_that_own_idle_quota_made_unnecessary_are_let_go() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4})
    own = scene.model.submit("before", "b", OWN, 4)
    own.reserved, own.admitted_at = True, NOW
    scene.wants(4)
    plan = scene.plan()
    assert victims(plan) == ["x"]
    scene.model.books = scene.after(plan)
    scene.model.finish("before")
    again = scene.plan()
    assert not again.victims
    assert again.complete
    assert all(line.demand is None for line in scene.after(again).lines)
