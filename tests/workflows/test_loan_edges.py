"""Stops that wait, come late or are wanted by several: nobody is stopped unsaved whose policy protects it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanPhase, ReclaimPhase, ReclaimState
from tests.fakes.bank import FakeBank
from tests.fakes.trainer import Mood
from tests.workflows.orders import Desk
from tests.workflows.test_loan_orders import nothing_runs_at_first

SOON = timedelta(seconds=1)


@pytest.mark.parametrize("first_lets_go", [True, False])
async def test_what_one_demand_may_have_stopped_unsaved_is_not_stopped_for_one_that_may_not(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch, first_lets_go: bool
) -> None:
    monkeypatch.setattr("workflows.loan_recall.REFRESH", SOON)
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    desk, soon = Desk(bank, train), datetime.now(UTC) + SOON
    await desk.recall("late", saves=True, deadline=soon, overdue=True, on_checkpoint_failure=OnCheckpointFailure.EVICT)
    await desk.recall("other", saves=True, deadline=soon)
    await bank.loan_in(train, LoanPhase.DURABLE)
    if first_lets_go:
        await desk.release("late")
    await desk.stop("other")
    kept = await bank.loan_in(train, LoanPhase.ACTIVE, LoanPhase.PARKED)
    assert kept.phase is LoanPhase.ACTIVE
    assert (await bank.placed("train")).mark is None
    assert "CheckpointFailed" in bank.reasons("train")
    assert "work lost" not in [note.action for note in bank.ledger.notes.values()]


async def test_a_stop_that_waited_for_a_freeze_is_carried_out_on_a_fresh_checkpoint(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.loan_recall.REFRESH", SOON)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    desk = Desk(bank, train)
    await desk.recall("demand", saves=True, max_checkpoint_age=SOON)
    first = (await bank.loan_in(train, LoanPhase.DURABLE)).checkpoint
    bank.terms.freeze()
    await desk.stop("demand")
    await asyncio.sleep(3)
    assert (await bank.placed("train")).active
    asked = len(bank.trainers.asked)
    assert asked <= 2, "nobody is asked again and again while nothing can come of it"
    bank.terms.thaw()
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert first is not None
    assert parked.checkpoint is not None
    assert parked.checkpoint.step > first.step
    assert len(bank.trainers.asked) == asked + 1


@pytest.mark.parametrize("change", ["edited", "deleted"])
async def test_a_policy_that_protects_before_the_stop_protects_what_could_not_be_saved(
    bank: FakeBank, change: str
) -> None:
    bank.trainers.mood = Mood.SILENT
    bank.terms.set_group("research", on_checkpoint_failure=OnCheckpointFailure.EVICT)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    desk, soon = Desk(bank, train), datetime.now(UTC) + SOON
    await desk.recall("demand", saves=True, deadline=soon, on_checkpoint_failure=OnCheckpointFailure.EVICT)
    await bank.loan_in(train, LoanPhase.DURABLE)
    bank.terms.freeze()  # nobody else acts on the change
    if change == "edited":
        bank.terms.set_group("research", on_checkpoint_failure=OnCheckpointFailure.PROTECT)
    else:
        bank.terms.set(groups=tuple(each for each in bank.terms.now.groups if each.group != "research"))
    await bank.stop_workers()
    await desk.stop("demand")
    bank.terms.thaw()
    await bank.start_workers()
    kept = await bank.loan_in(train, LoanPhase.ACTIVE, LoanPhase.PARKED)
    assert kept.phase is LoanPhase.ACTIVE
    assert (await bank.placed("train")).mark is None
    assert "its policy protects it now" in kept.note


async def test_a_stop_of_what_did_not_run_is_not_carried_out_once_it_does(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs_at_first(monkeypatch, 2)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    desk = Desk(bank, train)
    await desk.recall("demand", saves=True)
    await bank.loan_in(train, LoanPhase.DURABLE)
    await desk.stop("demand")
    assert (await bank.loan_in(train, LoanPhase.PARKED)).checkpoint is not None


async def test_a_stop_that_the_api_server_takes_in_after_the_job_was_let_go_forgets_nobody(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.loans.ATTEMPT_SECONDS", 0.5)
    sent: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    simulated = bank.world.simulated
    stop = simulated.stop

    async def slow(*args: Any, **kwargs: Any) -> None:
        sent.append((args, kwargs))
        await asyncio.Event().wait()

    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.loan_in(batch, LoanPhase.ACTIVE)
    monkeypatch.setattr(simulated, "stop", slow)
    desk = Desk(bank, batch)
    await desk.recall("demand")
    await bank.loan_in(batch, LoanPhase.DURABLE)
    await desk.stop("demand")

    async def is_sent() -> bool:
        return bool(sent)

    await bank.until(is_sent, "the stop is on its way")
    await desk.release("demand")
    await bank.loan_in(batch, LoanPhase.ACTIVE)
    args, kwargs = sent[-1]
    await stop(*args, **kwargs)

    async def is_back() -> bool:
        state = await bank.client.loan_state(bank.loan(batch))
        return state.phase is LoanPhase.ACTIVE and state.term == 2

    await bank.until(is_back, "it comes back for another term")
    assert (await bank.placed("batch")).active
    (first, second) = (await bank.client.loan_state(bank.loan(batch))).history
    assert first.ended_at is not None
    assert second.ended_at is None


async def test_orders_to_many_go_out_some_at_a_time(bank: FakeBank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.reclaim_calls.ORDERS", 3)
    jobs = [await bank.borrow("research", f"batch-{number}", 1) for number in range(16)]
    await bank.own("serving", "serve", 8, pods=1)
    await bank.placed("serve")
    met = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.MET)
    assert len(met.demands[0].victims) == 8
    history = await bank.client.temporal.get_workflow_handle(bank.reclaim("serving")).fetch_history()
    sent = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "orders.send"
    ]
    assert [each.input.payloads[0].data.count(b'"workload"') for each in sent] == [3, 3, 2] * 2
    assert len(jobs) == 16


async def test_a_lender_with_very_many_demands_is_served_some_at_a_time(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.reclaim.AT_ONCE", 2)
    bank.trainers.mood = Mood.SILENT
    trains = [await bank.borrow("research", f"train-{number}", 2, hook=True) for number in range(8)]
    for number in range(4):
        await bank.own("serving", f"serve-{number}", 2)

    def two_are_served(state: ReclaimState) -> bool:
        return [demand.phase for demand in state.demands].count(ReclaimPhase.RECALLING) == 2 and len(state.demands) == 4

    await bank.reclaim_where("serving", two_are_served)

    async def not_more() -> bool:
        return two_are_served(await bank.client.reclaim_state(bank.reclaim("serving")))

    await bank.holds(not_more, 1.5)
    bank.trainers.mood = Mood.SAVES
    for number in range(4):
        await bank.placed(f"serve-{number}")
    assert len(trains) == 8
