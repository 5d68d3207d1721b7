"""The recall plan: whom a demand hurts, in which order, and how little."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.domain.books import Books, Guarantee
from gpubank.domain.contract import Side, WorkloadContract, WorkloadType
from gpubank.domain.demand import Demand, DemandKind
from gpubank.domain.facts import Mark
from gpubank.domain.loan import SURPLUS, Line, LineState, WorkloadKey
from gpubank.domain.policy import Approval, OnCheckpointFailure, PreemptClass
from gpubank.domain.pool import Freeze, OnOverdue
from gpubank.domain.terms import GroupTerms
from tests.unit.decide.model import CLUSTER, HOOKED, NOW, POOL, RETRYABLE, Job, Model, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
NOTEBOOK = WorkloadContract(workload_type=WorkloadType.NOTEBOOK)
LONG = WorkloadContract(retryable=True, expected_duration=timedelta(hours=9))
ALL = frozenset(PreemptClass)
DEMAND = f"{POOL}/b/Workload/own"


class Scene:
    """A pool in which the books are what the test says, and `own` of group b waits."""

    def __init__(self, *groups: GroupTerms, nodes: dict[str, int], **terms: object) -> None:
        capacity = sum(nodes.values())
        self.model = Model(pool_terms(*groups, capacity=capacity, **terms), nodes)
        self.lines: list[Line] = []

    def runs(self, uid: str, group: str, loans: dict[str, int], *, on: list[str] | None = None, size: int = 1,
             age: timedelta = timedelta(minutes=5), **update: object) -> Job:  # fmt: skip
        """Have a borrow job run on lines of these lenders."""
        gpus = sum(loans.values())
        job = self.model.submit(uid, group, BORROW, gpus // size, size, **update)
        job.reserved, job.admitted_at = True, NOW - age
        job.nodes = on if on is not None else []
        if on is None:
            self.model.place()
        for lender, part in loans.items():
            self.lines.append(
                Line(
                    line_id=f"{POOL}-{len(self.lines) + 1}",
                    cluster=CLUSTER,
                    pool=POOL,
                    lender=lender,
                    borrower=group,
                    gpus=part,
                    workload=WorkloadKey(uid=uid, namespace=f"team-{group}", name=f"job-{uid}"),
                    term=1,
                    state=LineState.GRANTED,
                    revision=1,
                    offered_at=NOW - age,
                    granted_at=NOW - age,
                    moved_at=NOW - age,
                )
            )
        return job

    def wants(self, pods: int, size: int = 1, *, due: timedelta = timedelta(hours=1)) -> None:
        """Have `own` of group b wait, and its demand be open."""
        self.model.submit("own", "b", OWN, pods, size)
        demand = Demand(
            demand_id=DEMAND,
            cluster=CLUSTER,
            pool=POOL,
            lender="b",
            kind=DemandKind.WORKLOAD,
            workload=WorkloadKey(uid="own", namespace="team-b", name="job-own"),
            gpus=pods * size,
            pods=pods,
            opened_at=NOW,
            due_at=NOW + due,
        )
        terms = self.model.terms
        self.model.books = Books(
            cluster=CLUSTER,
            pool=POOL,
            revision=1,
            capacity=terms.capacity,
            next_line=len(self.lines) + 1,
            guarantees=tuple(Guarantee(group=g.group, in_force=g.guaranteed) for g in terms.groups),
            lines=tuple(self.lines),
            demands=(demand,),
        )

    def plan(self, **options: object) -> RecallPlan:
        """Plan, check that the plan applies, and that planning again on its books changes nothing."""
        now = self.model.now
        facts, terms = self.model.facts(), self.model.terms
        plan = plan_recall(facts, self.model.books, terms, DEMAND, now=now, **options)  # type: ignore[arg-type]
        if plan.transaction is not None:
            after = self.model.books.applied(plan.transaction).books
            again = plan_recall(facts, after, terms, DEMAND, now=now, **options)  # type: ignore[arg-type]
            assert again.transaction is None
            assert again.victims == plan.victims
            assert (again.covered, again.complete) == (plan.covered, plan.complete)
        return plan

    def after(self, plan: RecallPlan) -> Books:
        """The books once the plan is committed."""
        assert plan.transaction is not None
        return self.model.books.applied(plan.transaction).books


def victims(plan: RecallPlan) -> list[str]:
    return [victim.workload.uid for victim in plan.victims]


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


# ---- order


def crowd(**options: object) -> Scene:
    """Five jobs of one size, one of each class, all of b's GPUs."""
    scene = Scene(group_terms("a", 0, only_preempt=ALL), group_terms("b", 12), nodes={"n0": 12}, **options)
    scene.runs("e-unsaveable", "a", {"b": 2}, contract=WorkloadContract())
    scene.runs("d-notebook", "a", {"b": 2}, contract=NOTEBOOK)
    scene.runs("c-long", "a", {"b": 2}, contract=LONG)
    scene.runs("b-hooked", "a", {"b": 2}, contract=HOOKED)
    scene.runs("a-short", "a", {"b": 2}, contract=RETRYABLE)
    scene.runs("0-starting", "a", {"b": 2}, contract=WorkloadContract(), on=[])
    return scene


@pytest.mark.parametrize(
    ("need", "chosen"),
    [
        (2, ["0-starting"]),
        (4, ["0-starting", "a-short"]),
        (6, ["0-starting", "a-short", "b-hooked"]),
        (8, ["0-starting", "a-short", "b-hooked", "c-long"]),
        (10, ["0-starting", "a-short", "b-hooked", "c-long", "d-notebook"]),
        (12, ["0-starting", "a-short", "b-hooked", "c-long", "d-notebook", "e-unsaveable"]),
    ],
)
def test_classes_are_taken_from_what_costs_least(need: int, chosen: list[str]) -> None:
    scene = crowd()
    scene.wants(need)
    assert victims(scene.plan()) == chosen


def test_only_work_with_a_hook_that_runs_needs_a_checkpoint() -> None:
    scene = crowd()
    scene.wants(12)
    needs = {victim.workload.uid: victim.needs_checkpoint for victim in scene.plan().victims}
    assert [uid for uid, needed in needs.items() if needed] == ["b-hooked"]


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        pytest.param({"priority": 1}, {"priority": 0}, "y", id="lower priority"),
        pytest.param({"age": timedelta(minutes=9)}, {"age": timedelta(minutes=3)}, "y", id="newest"),
        pytest.param({}, {}, "x", id="uid"),
        pytest.param({"age": timedelta(minutes=1), "priority": 1}, {"priority": 0}, "y", id="priority before age"),
    ],
)
def test_within_a_class_priority_then_age_then_uid_decide(
    first: dict[str, object], second: dict[str, object], chosen: str
) -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4}, **first)  # type: ignore[arg-type]
    scene.runs("y", "a", {"b": 4}, **second)  # type: ignore[arg-type]
    scene.wants(4)
    assert victims(scene.plan()) == [chosen]


def test_retryable_work_of_unsaid_length_counts_as_long_once_it_has_run_long() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4}, age=timedelta(hours=3))
    scene.runs("y", "a", {"b": 4}, contract=HOOKED)
    scene.wants(4)
    assert victims(scene.plan()) == ["y"]


def test_whoever_proves_unnecessary_is_spared() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("a-small", "a", {"b": 2})
    scene.runs("b-big", "a", {"b": 6})
    scene.wants(6)
    assert victims(scene.plan()) == ["b-big"]


# ---- where it fits


def test_victims_are_chosen_where_the_owners_pods_fit() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("a-first", "a", {"b": 4}, on=["n0"], size=4)
    scene.runs("b-second", "a", {"b": 4}, on=["n1"], size=4)
    scene.runs("c-third", "a", {"b": 4}, on=["n1"], size=4)
    scene.runs("d-fourth", "a", {"b": 4}, on=["n0"], size=4, priority=5)
    scene.wants(1, 8)
    assert victims(scene.plan()) == ["b-second", "c-third"]


def test_work_in_the_way_is_stopped_even_if_the_quota_would_be_there_without_it() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 4}, on=["n0"], size=4)
    scene.runs("y", "a", {"b": 4}, on=["n1"], size=4)
    scene.wants(1, 8)
    plan = scene.plan()
    assert victims(plan) == ["x"]
    assert plan.complete


def test_nobody_is_stopped_where_no_node_could_ever_hold_the_owners_pod() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 16})
    scene.wants(1, 16)
    plan = scene.plan()
    assert not plan.victims
    assert "room on no nodes" in plan.reason


# ---- whose loans


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


def test_a_victim_that_is_leaving_for_another_lender_is_taken_first() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("cheap", "a", {"b": 4})
    scene.runs("leaving", "a", {"b": 4, "c": 8}, contract=NOTEBOOK)
    scene.lines = [
        line.model_copy(update={"state": LineState.RECALLED}) if line.workload.uid == "leaving" else line
        for line in scene.lines
    ]
    scene.wants(4)
    assert victims(scene.plan()) == ["leaving"]


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


# ---- policies


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


def test_whoever_has_just_come_back_may_make_progress_unless_the_owner_would_be_late() -> None:
    terms = {"min_run_time": timedelta(minutes=20), "max_grace_period": timedelta(minutes=5)}
    for due, chosen in ((timedelta(hours=1), []), (timedelta(minutes=19), ["x"])):
        scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8}, **terms)
        scene.runs("x", "a", {"b": 8}, mark=Mark(loan="loan/x", term=2, step="resume"))
        scene.wants(8, due=due)
        plan = scene.plan()
        assert victims(plan) == chosen
        assert plan.retry_at == (None if chosen else NOW + timedelta(minutes=15))


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


# ---- whatever the pool looks like


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    scene = Scene(
        group_terms("a", 4, borrow_limit=draw(st.integers(0, 20))),
        group_terms("b", 12, lending_limit=12),
        group_terms("c", 8, lending_limit=draw(st.integers(0, 8))),
        nodes={f"n{i}": 8 for i in range(4)},
    )
    free = {"a": 4, "b": 12, "c": 8, SURPLUS: 8}
    for i in range(draw(st.integers(0, 6))):
        borrower = draw(st.sampled_from("abc"))
        loans = {}
        for lender in draw(st.lists(st.sampled_from(sorted(free)), min_size=1, max_size=2, unique=True)):
            part = draw(st.integers(0, min(free[lender], 6)))
            if part:
                loans[lender] = part
                free[lender] -= part
        if loans:
            contract = draw(st.sampled_from([RETRYABLE, HOOKED, NOTEBOOK, WorkloadContract()]))
            scene.runs(f"job-{i}", borrower, loans, priority=draw(st.integers(0, 2)), contract=contract)
    scene.wants(draw(st.integers(1, 12)))
    return scene


many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(scene=scenes())
def test_a_plan_is_legal_and_planning_again_changes_nothing(scene: Scene) -> None:
    plan = scene.plan()
    if plan.transaction is None:
        return
    before, after = scene.model.books, scene.after(plan)
    offered = [line for line in after.lines if line.state is LineState.OFFERED]
    assert sum(line.gpus for line in after.lines if line not in offered) == sum(line.gpus for line in before.lines)
    for terms in scene.model.terms.groups:
        assert after.lent_to_others(terms.group) <= max(terms.lending_limit, before.lent_to_others(terms.group))
        assert after.borrowed(terms.group) <= max(terms.borrow_limit, before.borrowed(terms.group))
        own = scene.model.reserved(terms.group, OWN)
        assert after.lent(terms.group) + own <= after.guarantee(terms.group).in_force
    assert after.surplus >= 0
    pledged = sum(line.gpus for line in after.lines if line.demand == DEMAND and line.lender == "b")
    demand = after.demand(DEMAND)
    assert demand is not None
    assert demand.idle + pledged <= demand.gpus
    assert not plan.complete or demand.idle + pledged == demand.gpus


@many
@given(scene=scenes())
def test_no_victim_can_be_left_out(scene: Scene) -> None:
    plan = scene.plan()
    for victim in plan.victims:
        others = frozenset(victims(plan)) - {victim.workload.uid}
        rest = frozenset(uid for uid in scene.model.jobs if uid not in others)
        assert not scene.plan(spared=rest).complete, f"{victim.workload.uid} was not needed"


@many
@given(scene=scenes(), data=st.data())
def test_a_plan_does_not_depend_on_the_order_of_its_facts(scene: Scene, data: st.DataObject) -> None:
    facts = scene.model.facts()
    shuffled = facts.model_copy(
        update={
            "workloads": tuple(data.draw(st.permutations(facts.workloads))),
            "nodes": tuple(data.draw(st.permutations(facts.nodes))),
            "queues": tuple(data.draw(st.permutations(facts.queues))),
        }
    )
    books, terms = scene.model.books, scene.model.terms
    assert plan_recall(shuffled, books, terms, DEMAND, now=NOW) == plan_recall(facts, books, terms, DEMAND, now=NOW)
