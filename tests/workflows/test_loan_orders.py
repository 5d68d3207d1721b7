"""Orders that reach a Loan at the worst moment: late, twice, for several demands, or about work that has ended."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.checkpoints import CheckpointActivities
from activities.failures import not_yet
from activities.leftovers import Leftovers
from gpubank.decide.step import LoanSignal, SignalKind
from gpubank.domain.errors import BackendError
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.recall import LoanPhase
from gpubank.domain.steps import CheckpointOutcome
from tests.fakes.bank import POOL, FakeBank
from tests.fakes.trainer import Mood
from tests.workflows.orders import Desk


async def test_a_recall_of_work_that_has_just_ended_is_answered_once_and_the_loan_closes(bank: FakeBank) -> None:
    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.loan_in(batch, LoanPhase.ACTIVE)
    await bank.stop_workers()
    await bank.world.finish_job("research", "batch")
    await bank.until(bank.nothing_open, "the controller has seen the end")
    await Desk(bank, batch).recall("demand")
    await bank.start_workers()
    closed = await bank.loan_in(batch, LoanPhase.CLOSED)
    assert closed.recalls <= 1


async def test_a_recall_of_a_parked_job_that_is_taken_back_leaves_it_parked(bank: FakeBank) -> None:
    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(batch, LoanPhase.PARKED)
    bank.terms.freeze()
    desk = Desk(bank, batch)
    await desk.recall("demand")
    recalls = 2
    await bank.until(lambda: _recalls(bank, batch, recalls), "the recall waits for the end of the freeze")
    await desk.release("demand")
    bank.terms.thaw()
    await bank.world.finish_job("serving", "serve")
    await bank.placed("batch")
    assert (await bank.loan_in(batch, LoanPhase.ACTIVE)).term == 2


async def _recalls(bank: FakeBank, workload: WorkloadFacts, count: int) -> bool:
    return (await bank.client.loan_state(bank.loan(workload))).recalls >= count


async def test_a_stop_for_a_demand_that_is_taken_back_stops_nobody_for_another(bank: FakeBank) -> None:
    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.loan_in(batch, LoanPhase.ACTIVE)
    desk = Desk(bank, batch)
    for demand in ("one", "other"):
        await desk.recall(demand)
    await bank.loan_in(batch, LoanPhase.DURABLE)
    await bank.stop_workers()
    await desk.stop("one")
    await desk.release("one")
    await bank.start_workers()
    await bank.until(lambda: _orders(bank, batch, ("other",)), "one is let go", timeout=40)

    async def runs() -> bool:
        workload = await bank.workload("batch")
        return workload is not None and workload.active

    await bank.holds(runs, 1.5)
    await desk.stop("other")
    await bank.loan_in(batch, LoanPhase.PARKED)


async def _orders(bank: FakeBank, workload: WorkloadFacts, demands: tuple[str, ...]) -> bool:
    with contextlib.suppress(BackendError):  # the first query may go to a worker that has just stopped
        state = await bank.client.loan_state(bank.loan(workload))
        return tuple(order.demand for order in state.orders) == demands
    return False


def nothing_runs_at_first(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    """Have the first looks at the pods find none of them running."""
    looks: list[object] = []
    found = CheckpointActivities._target

    async def target(self: CheckpointActivities, step: Any) -> Any:
        looks.append(step)
        return CheckpointOutcome(nothing_to_save=True) if len(looks) <= count else await found(self, step)

    monkeypatch.setattr(CheckpointActivities, "_target", target)


async def test_a_job_whose_pods_started_after_it_was_asked_is_saved_before_it_is_stopped(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs_at_first(monkeypatch)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    desk = Desk(bank, train)
    await desk.recall("demand", saves=True)
    assert (await bank.loan_in(train, LoanPhase.DURABLE)).checkpoint is None
    await desk.stop("demand")
    assert (await bank.loan_in(train, LoanPhase.PARKED)).checkpoint is not None


async def test_a_job_whose_pods_started_after_it_was_asked_and_that_cannot_save_runs_on(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.loan_recall.REFRESH", timedelta(seconds=1))
    nothing_runs_at_first(monkeypatch)
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    desk = Desk(bank, train)
    await desk.recall("demand", saves=True, deadline=datetime.now(UTC) + timedelta(seconds=1))
    await bank.loan_in(train, LoanPhase.DURABLE)
    await desk.stop("demand")
    kept = await bank.loan_in(train, LoanPhase.ACTIVE, LoanPhase.PARKED)
    assert kept.phase is LoanPhase.ACTIVE
    assert "CheckpointFailed" in bank.reasons("train")
    assert (await bank.placed("train")).active


async def _has_begun(bank: FakeBank, workload: WorkloadFacts) -> bool:
    return bool((await bank.client.loan_state(bank.loan(workload))).history)


async def test_the_end_of_a_closed_loan_is_told_to_nobody(bank: FakeBank) -> None:
    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.loan_in(batch, LoanPhase.ACTIVE)
    await bank.until(lambda: _has_begun(bank, batch), "its term has begun")
    await bank.world.finish_job("research", "batch")
    await bank.loan_in(batch, LoanPhase.CLOSED)
    await bank.until(bank.nothing_open, "its lines are returned")
    handle = bank.client.temporal.get_workflow_handle(bank.loan(batch))
    before = await handle.describe()
    ended = LoanSignal(workload=batch.key, borrower="research", gpus=16, kind=SignalKind.ENDED, term=1)
    await bank.client.signal_loan(bank.cluster, POOL, ended)
    assert (await handle.describe()).run_id == before.run_id
    assert (await bank.client.loan_state(bank.loan(batch))).history


async def test_a_recall_that_is_late_for_pods_that_do_not_end_is_told_of_as_overdue(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = True
    are_taken = Leftovers.are_taken

    async def never_gone(self: Leftovers, *args: Any) -> bool:
        if stuck:
            raise not_yet("its node is dead")
        return await are_taken(self, *args)

    monkeypatch.setattr(Leftovers, "are_taken", never_gone)
    monkeypatch.setattr("workflows.reclaim_demand.SEND_AGAIN", timedelta(milliseconds=500))
    bank.terms.set(max_time_to_return=timedelta(seconds=2))
    await bank.borrow("research", "batch", 16, pods=2)
    await bank.own("serving", "serve")

    async def told() -> bool:
        return [note.action for note in bank.ledger.notes.values()].count("overdue") > 0

    await bank.until(told, "it is overdue")
    stuck = False
    await bank.placed("serve")
    assert [note.action for note in bank.ledger.notes.values()].count("overdue") == 1


async def test_a_list_of_demands_is_news_although_a_clock_was_set_back(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    (demand,) = await bank.demands()
    told = (demand.demand_id, "another")
    ahead = datetime.now(UTC) + timedelta(hours=1)
    await bank.client.signal_needs(bank.cluster, POOL, "serving", told[:1], at=ahead)
    await bank.client.signal_needs(bank.cluster, POOL, "serving", told, at=datetime.now(UTC))
    await bank.reclaim_where("serving", lambda state: len(state.demands) == 2)
