"""Recalls under faults: workers that restart, workflows that are terminated, histories that are cut."""

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.service import RPCError

from gpubank.client import BankClient
from gpubank.domain.errors import BackendError
from gpubank.domain.recall import LoanPhase, ReclaimPhase
from gpubank.domain.steps import LoanOrder
from gpubank.embedded import devserver
from gpubank.embedded.devserver import DevServer
from tests.fakes.bank import FakeBank, fake_bank
from tests.fakes.trainer import Mood
from tests.workflows.conftest import connected
from workflows import attributes


async def test_a_worker_that_restarts_finishes_the_recall_once(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.stop_workers()
    bank.trainers.mood = Mood.SAVES
    await bank.start_workers()
    await bank.placed("serve")
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert parked.recalls == 1
    assert len(bank.trainers.asked) == 1


async def test_a_loan_that_is_terminated_in_its_recall_is_started_anew_and_asked_again(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.reclaim_demand.SEND_AGAIN", timedelta(seconds=1))
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.client.temporal.get_workflow_handle(bank.loan(train)).terminate("a test")
    bank.trainers.mood = Mood.SAVES
    await bank.placed("serve")
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert parked.recalls == 2


async def test_a_word_that_cannot_be_delivered_holds_no_recall_up(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise BackendError("events are forbidden; grant create on events")

    monkeypatch.setattr("workflows.loan_calls.NOTICE_LIMIT", timedelta(seconds=1))
    monkeypatch.setattr("gpubank.simulation.events.Notices.notify", refuse)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)


async def test_a_parked_loan_that_is_terminated_takes_over_what_it_finds(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    await bank.client.temporal.get_workflow_handle(bank.loan(train)).terminate("a test")
    await bank.world.finish_job("serving", "serve")
    await bank.placed("train")
    back = await bank.loan_in(train, LoanPhase.ACTIVE)
    assert back.term == 2


async def test_a_reclaim_that_is_terminated_is_started_anew_and_meets_its_demand(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.client.temporal.get_workflow_handle(bank.reclaim("serving")).terminate("a test")
    bank.trainers.mood = Mood.SAVES
    await bank.placed("serve")
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.MET)
    assert (await bank.loan_in(train, LoanPhase.PARKED)).recalls == 1


@pytest.mark.parametrize(
    ("told_after", "looked_for"),
    [
        pytest.param(timedelta(milliseconds=200), timedelta(hours=1), id="the-controller-tells"),
        pytest.param(timedelta(hours=1), timedelta(milliseconds=200), id="it-looks-for-itself"),
    ],
)
async def test_a_parked_job_that_is_deleted_ends_its_loan(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch, told_after: timedelta, looked_for: timedelta
) -> None:
    monkeypatch.setattr("gpubank.decide.step.MISSING_FOR", told_after)
    monkeypatch.setattr("activities.loans.END_POLL", looked_for)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    await bank.world.delete_job("research", "train")
    await bank.loan_in(train, LoanPhase.CLOSED)


async def test_histories_that_are_cut_again_and_again_carry_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(devserver.TUNING, "limit.historyCount.suggestContinueAsNew", "50")
    async with DevServer(tmp_path / "temporal", search_attributes=attributes.KINDS, persistent=False) as server:
        client = await connected(server.address)
        async with fake_bank(client, {"research": 8, "serving": 8}) as bank:
            bank.trainers.mood = Mood.SILENT
            train = await bank.borrow("research", "train", 16, hook=True, pods=2)
            await bank.own("serving", "serve")
            await bank.loan_in(train, LoanPhase.CHECKPOINTING)
            await asyncio.sleep(1)
            bank.trainers.mood = Mood.SAVES
            await bank.placed("serve")
            parked = await bank.loan_in(train, LoanPhase.PARKED)
            await bank.world.finish_job("serving", "serve")
            await bank.placed("train")
            back = await bank.loan_in(train, LoanPhase.ACTIVE)
            assert back.history[0] == parked.history[0]
            runs = [found async for found in client.temporal.list_workflows("ExecutionStatus = 'ContinuedAsNew'")]
            assert {run.workflow_type for run in runs} == {"Loan", "Reclaim"}


async def test_a_demand_that_comes_while_a_history_is_cut_is_taken_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(devserver.TUNING, "limit.historyCount.suggestContinueAsNew", "120")
    monkeypatch.setattr("workflows.reclaim_demand.SEND_AGAIN", timedelta(milliseconds=300))
    order = BankClient.order

    async def slowly(self: BankClient, given: LoanOrder) -> None:
        await asyncio.sleep(0.5)  # whoever rests waits for it
        await order(self, given)

    monkeypatch.setattr(BankClient, "order", slowly)
    async with DevServer(tmp_path / "temporal", search_attributes=attributes.KINDS, persistent=False) as server:
        client = await connected(server.address)
        async with fake_bank(client, {"research": 8, "serving": 8}) as bank:
            bank.trainers.mood = Mood.SILENT
            for number in range(16):
                await bank.borrow("research", f"train-{number}", 1, hook=True)
            handle = client.temporal.get_workflow_handle(bank.reclaim("serving"))

            async def is_long() -> bool:
                with contextlib.suppress(RPCError):
                    return (await handle.describe()).history_length > 80
                return False

            await bank.own("serving", "serve-0", 1)
            await bank.until(is_long, "its history is about to be cut")
            for number in range(1, 8):
                await bank.own("serving", f"serve-{number}", 1)
                await asyncio.sleep(0.7)

            async def is_cut() -> bool:
                return (await handle.describe()).history_length < 100

            await bank.until(is_cut, "its history is cut although somebody came meanwhile", timeout=20)
            await bank.reclaim_where("serving", lambda state: len(state.demands) == 8)
            bank.trainers.mood = Mood.SAVES
            for number in range(8):
                await bank.placed(f"serve-{number}")
