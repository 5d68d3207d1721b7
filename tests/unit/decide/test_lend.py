"""Lending: who gets a loan, from whom, and when not."""

from datetime import timedelta

import pytest

from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.demand import DemandState
from gpubank.domain.facts import Mark
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.policy import PreemptClass
from gpubank.domain.pool import Freeze
from tests.unit.decide.model import Model
from tests.unit.decide.parts import HOOKED, NOW, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW


def pool(*groups: object, capacity: int = 24, nodes: int | None = None, **terms: object) -> Model:
    """A pool at rest; groups are GroupTerms."""
    model = Model(
        pool_terms(*groups, capacity=capacity, **terms),  # type: ignore[arg-type]
        {f"node-{i}": 8 for i in range(capacity // 8 if nodes is None else nodes)},
    )
    model.settle()
    return model


def lenders(model: Model, uid: str) -> dict[str, int]:
    return {line.lender: line.gpus for line in model.books.lines_of(uid)}


def states(model: Model, uid: str) -> set[LineState]:
    return {line.state for line in model.books.lines_of(uid)}


def test_a_group_lends_to_itself_first_then_the_surplus_then_whoever_has_most() -> None:
    model = pool(group_terms("a", 4), group_terms("b", 4), group_terms("c", 8))
    model.submit("x", "a", BORROW, 22)
    model.settle()
    assert lenders(model, "x") == {"a": 4, SURPLUS: 8, "c": 8, "b": 2}
    assert states(model, "x") == {LineState.GRANTED}


def test_equal_lenders_are_taken_by_name() -> None:
    model = pool(group_terms("a", 0), group_terms("c", 8), group_terms("b", 8), capacity=16)
    model.submit("x", "a", BORROW, 10)
    model.settle()
    assert lenders(model, "x") == {"b": 8, "c": 2}


@pytest.mark.parametrize(
    ("lending_limit", "borrow_limit", "own_use", "gpus", "lent"),
    [
        pytest.param(8, 8, 0, 8, True, id="all of it is lent"),
        pytest.param(7, 8, 0, 8, False, id="the lendingLimit bounds what others get"),
        pytest.param(8, 7, 0, 8, False, id="the borrowLimit bounds what is had of others"),
        pytest.param(8, 8, 1, 8, False, id="own use is not lent"),
        pytest.param(8, 8, 1, 7, True, id="what own use leaves is lent"),
    ],
)
def test_a_loan_is_whole_and_within_every_limit(
    lending_limit: int, borrow_limit: int, own_use: int, gpus: int, lent: bool
) -> None:
    borrower = group_terms("a", 0, borrow_limit=borrow_limit)
    model = pool(borrower, group_terms("b", 8, lending_limit=lending_limit), capacity=8)
    if own_use:
        model.submit("own", "b", OWN, own_use)
        model.settle()
    model.submit("x", "a", BORROW, gpus)
    model.settle()
    assert model.jobs["x"].reserved is lent
    assert bool(model.books.lines) is lent


def test_a_loan_to_itself_counts_against_neither_limit() -> None:
    model = pool(group_terms("a", 8, lending_limit=0, borrow_limit=0), capacity=8)
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert model.jobs["x"].reserved
    assert model.books.borrowed("a") == 0


def test_surplus_counts_against_the_borrow_limit() -> None:
    model = pool(group_terms("a", 0, borrow_limit=4), capacity=8)
    model.submit("x", "a", BORROW, 5)
    model.submit("y", "a", BORROW, 4)
    model.settle()
    assert not model.jobs["x"].reserved
    assert model.jobs["y"].reserved


def test_slack_that_an_own_job_is_waiting_for_is_not_lent() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8)
    model.submit("own", "b", OWN, 6)
    model.submit("x", "a", BORROW, 4)
    model.step()
    assert not model.books.lines
    model.submit("y", "a", BORROW, 2)
    model.step()
    assert lenders(model, "y") == {"b": 2}


def test_own_work_above_the_guarantee_keeps_nothing_from_being_lent() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8)
    model.submit("own", "b", OWN, 9)
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert model.jobs["x"].reserved


def test_enough_gpus_in_sum_and_no_node_with_room_is_no_loan() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 16), capacity=16)
    for uid in ("p", "q"):
        model.submit(uid, "b", OWN, 1, 4)
        model.jobs[uid].nodes = [f"node-{'pq'.index(uid)}"]
        model.jobs[uid].reserved, model.jobs[uid].admitted_at = True, model.now
    model.submit("x", "a", BORROW, 1, 8)
    model.settle()
    assert not model.books.lines
    assert [note.reason for note in model.last.waiting] == ["NoRoom"]
    model.finish("x", deleted=True)
    model.submit("y", "a", BORROW, 2, 4)
    model.settle()
    assert model.jobs["y"].reserved


def test_room_that_admitted_work_is_about_to_take_is_not_lent_onto() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 16), capacity=16)
    own = model.submit("own", "b", OWN, 1, 8)
    own.reserved, own.admitted_at = True, model.now
    model.nodes = {"node-0": 8}
    model.submit("x", "a", BORROW, 1, 8)
    model.step()
    assert not model.books.lines


def test_groups_take_turns_by_what_they_borrow_over_their_weight() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 0, weight=3), capacity=24)
    for i in range(8):
        model.submit(f"a{i}", "a", BORROW, 4)
        model.submit(f"b{i}", "b", BORROW, 4)
    model.settle()
    held = {g: model.reserved(g, BORROW) for g in "ab"}
    assert held == {"a": 8, "b": 16}


def test_within_a_group_priority_then_age_decides_and_parked_work_goes_first() -> None:
    model = pool(group_terms("a", 0), capacity=8)
    parked = model.submit("parked", "a", BORROW, 4)
    parked.active, parked.mark = False, Mark(loan="loan/parked", term=1, step="stop")
    model.submit("old", "a", BORROW, 4, created_at=NOW - timedelta(hours=1))
    model.submit("urgent", "a", BORROW, 4, priority=5)
    model.step()
    assert {line.workload.uid for line in model.books.lines} == {"parked", "urgent"}


def test_a_job_that_does_not_fit_does_not_hold_up_the_ones_behind_it() -> None:
    model = pool(group_terms("a", 0, borrow_limit=4), capacity=8)
    model.submit("big", "a", BORROW, 8, priority=9)
    model.submit("small", "a", BORROW, 4)
    model.settle()
    assert model.jobs["small"].reserved


def test_parked_work_is_resumed_before_it_is_granted_anything() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8)
    job = model.submit("x", "a", BORROW, 8)
    job.active, job.mark = False, Mark(loan="loan/x", term=1, step="stop")
    model.step()
    assert states(model, "x") == {LineState.OFFERED}
    assert not model.last.signals, "not before its lender is fenced"
    model.write()
    model.fence()
    model.step()
    assert [(s.kind, s.term, s.gpus, s.lenders) for s in model.last.signals] == [("offered", 2, 8, ("b",))]
    assert states(model, "x") == {LineState.OFFERED}
    job.active, job.mark = True, Mark(loan="loan/x", term=2, step="resume")
    model.step()
    assert states(model, "x") == {LineState.GRANTED}
    assert {line.term for line in model.books.lines} == {2}


def test_an_offer_that_nobody_takes_is_withdrawn_after_thirty_seconds() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8)
    job = model.submit("x", "a", BORROW, 8)
    job.active, job.mark = False, Mark(loan="loan/x", term=1, step="stop")
    model.step()
    model.write()
    model.fence()
    model.now += timedelta(seconds=29)
    model.step()
    assert states(model, "x") == {LineState.OFFERED}
    model.now += timedelta(seconds=1)
    model.step()
    withdrawn = [move for move in model.moves if move == (LineState.OFFERED, LineState.WITHDRAWN)]
    assert len(withdrawn) == 1


@pytest.mark.parametrize(
    ("contract", "allowed"),
    [
        pytest.param(WorkloadContract(), False, id="unsaveable"),
        pytest.param(WorkloadContract(retryable=True, capacity_role="serving-floor"), False, id="serving floor"),
        pytest.param(WorkloadContract(retryable=True), True, id="retryable"),
        pytest.param(HOOKED, True, id="checkpointable"),
    ],
)
def test_what_could_not_be_stopped_again_is_lent_nothing(contract: WorkloadContract, allowed: bool) -> None:
    model = pool(group_terms("a", 0), capacity=8)
    model.submit("x", "a", BORROW, 8, contract=contract)
    model.settle()
    assert model.jobs["x"].reserved is allowed
    assert [note.reason for note in model.last.waiting] == ([] if allowed else ["NotReclaimable"])


def test_a_class_that_the_borrowers_policy_does_not_name_is_lent_nothing() -> None:
    model = pool(group_terms("a", 0, only_preempt=frozenset({PreemptClass.CHECKPOINTABLE})), capacity=8)
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert not model.books.lines


def test_slack_must_last_after_a_recall_before_it_is_lent_again() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8, resume_after=timedelta(seconds=60))
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.submit("own", "b", OWN, 8)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.books.guarantee("b").recalled
    model.now += timedelta(hours=1)
    model.finish("own")
    ended = model.now
    model.settle(until=timedelta(seconds=59))
    assert not model.books.lines
    model.settle()
    assert model.jobs["x"].reserved
    assert (model.jobs["x"].admitted_at or NOW) - ended >= timedelta(seconds=60)
    assert not model.books.guarantee("b").recalled


def test_slack_that_goes_away_again_begins_its_wait_anew() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8, resume_after=timedelta(seconds=60))
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.submit("own", "b", OWN, 8)
    model.settle()
    model.finish("own")
    model.round()
    first = model.books.guarantee("b").slack_since
    model.now += timedelta(seconds=30)
    model.submit("again", "b", OWN, 8)
    model.round()
    assert model.books.guarantee("b").slack_since is None
    model.finish("again")
    model.round()
    second = model.books.guarantee("b").slack_since
    assert first is not None
    assert second is not None
    assert second - first >= timedelta(seconds=30)


def test_nothing_is_lent_while_the_pool_is_frozen_and_offers_are_withdrawn() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8)
    model.submit("x", "a", BORROW, 8)
    model.step()
    assert states(model, "x") == {LineState.OFFERED}
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade")})
    model.settle()
    assert not model.books.lines
    assert [note.reason for note in model.last.waiting] == ["Frozen"]


def test_a_freeze_ends_by_itself_and_the_step_asks_to_be_woken_then() -> None:
    model = pool(group_terms("a", 0), capacity=8)
    until = model.now + timedelta(hours=1)
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade", until=until)})
    model.submit("x", "a", BORROW, 8)
    assert model.step().wake_at == until
    model.now = until
    model.settle()
    assert model.jobs["x"].reserved


# ---- the gang that gathers


def busy_pool() -> Model:
    """A pool in which small jobs come and go so that 16 GPUs are never free at once."""
    model = pool(group_terms("a", 0), group_terms("b", 0), group_terms("c", 16), capacity=16)
    for i in range(4):
        model.submit(f"small-{i}", "a", BORROW, 4)
    model.settle()
    model.submit("gang", "b", BORROW, 16)
    return model


def turn_over(model: Model, minutes: int) -> None:
    """One small job ends and another comes, every minute."""
    for _ in range(minutes):
        running = sorted((j.admitted_at or NOW, j.uid) for j in model.jobs.values() if j.group == "a" and j.reserved)
        if running:
            model.finish(running[0][1])
        model.submit(f"small-{len(model.jobs)}", "a", BORROW, 4)
        for _ in range(8):
            model.round()
            model.now += timedelta(milliseconds=300)
        model.now = model.now.replace(second=0, microsecond=0) + timedelta(minutes=1)


def test_small_jobs_go_on_before_a_gang_that_has_not_waited_long() -> None:
    model = busy_pool()
    turn_over(model, 9)
    assert not model.books.lines_of("gang")


def test_the_oldest_gang_gathers_after_ten_minutes_and_then_runs() -> None:
    model = busy_pool()
    turn_over(model, 16)
    assert model.jobs["gang"].reserved
    assert sum(line.gpus for line in model.books.lines_of("gang")) == 16


def test_a_gang_gathers_ten_minutes_of_an_hour_at_most() -> None:
    model = busy_pool()
    keeper = next(j.uid for j in model.jobs.values() if j.group == "a")
    model.now += timedelta(minutes=10)
    for uid in [j.uid for j in model.jobs.values() if j.group == "a" and j.uid != keeper]:
        model.finish(uid)
    model.settle(until=timedelta(minutes=1))
    assert sum(line.gpus for line in model.books.lines_of("gang")) == 12
    assert states(model, "gang") == {LineState.OFFERED}
    model.submit("late", "a", BORROW, 4)
    model.settle(until=timedelta(minutes=1))
    assert not model.jobs["late"].reserved
    model.now = NOW + timedelta(minutes=21)
    model.settle(until=timedelta(minutes=1))
    assert not model.books.lines_of("gang")
    assert model.jobs["late"].reserved
    model.now = NOW + timedelta(minutes=71)
    model.settle(until=timedelta(minutes=1))
    assert sum(line.gpus for line in model.books.lines_of("gang")) == 8


def test_own_work_takes_back_what_a_gang_has_gathered() -> None:
    model = busy_pool()
    model.now += timedelta(minutes=10)
    for uid in [j.uid for j in model.jobs.values() if j.group == "a"][1:]:
        model.finish(uid)
    model.settle(until=timedelta(minutes=1))
    model.submit("own", "c", OWN, 4)
    model.settle(until=timedelta(minutes=1))
    assert model.jobs["own"].reserved
    assert sum(line.gpus for line in model.books.lines_of("gang")) == 8
    assert not model.books.demands


def test_what_has_gathered_a_part_keeps_it_although_a_limit_was_lowered_since() -> None:
    model = busy_pool()
    model.now += timedelta(minutes=10)
    for uid in [j.uid for j in model.jobs.values() if j.group == "a"][1:]:
        model.finish(uid)
    model.settle(until=timedelta(minutes=1))
    gathered = model.books.lines_of("gang")
    assert sum(line.gpus for line in gathered) == 12
    groups = (g.model_copy(update={"borrow_limit": 15}) if g.group == "b" else g for g in model.terms.groups)
    model.terms = model.terms.model_copy(update={"groups": tuple(groups)})
    model.step()
    assert model.books.lines_of("gang") == gathered


def test_what_could_never_run_gathers_nothing() -> None:
    model = pool(group_terms("a", 0, borrow_limit=8), group_terms("b", 16), capacity=16)
    model.submit("never", "a", BORROW, 16)
    model.now += timedelta(minutes=11)
    model.settle(until=timedelta(minutes=1))
    assert not model.books.lines
    assert [note.reason for note in model.last.waiting] == ["BorrowLimit"]


def test_a_job_that_was_admitted_without_lines_is_given_lines_first() -> None:
    model = pool(group_terms("a", 0), group_terms("b", 8), capacity=8)
    stray = model.submit("stray", "a", BORROW, 8)
    stray.reserved, stray.admitted_at = True, model.now
    model.submit("x", "a", BORROW, 8, priority=9)
    model.settle()
    assert lenders(model, "stray") == {"b": 8}
    assert states(model, "stray") == {LineState.GRANTED}
    assert not any(d.state is DemandState.OPEN for d in model.books.demands)
