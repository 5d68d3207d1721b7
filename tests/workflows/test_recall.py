"""Recalls, from an owner's demand to its pods on nodes and the borrower's return."""

from datetime import timedelta

import pytest

from gpubank.client import BankClient
from gpubank.domain.loan import LineState
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanOutcome, LoanPhase, ReclaimPhase, ReclaimState
from tests.fakes.bank import FakeBank, fake_bank
from tests.fakes.trainer import Mood


async def test_an_owner_gets_its_gpus_back_and_the_borrower_returns_when_they_are_free_again(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    reclaim = await bank.reclaim_where("serving", met)
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert [victim.workload.uid for victim in reclaim.demands[0].victims] == [train.key.uid]
    assert parked.checkpoint is not None
    assert parked.history[0].checkpoint == parked.checkpoint
    assert len(bank.trainers.asked) == 1

    await bank.world.finish_job("serving", "serve")
    await bank.placed("train")
    back = await bank.loan_in(train, LoanPhase.ACTIVE)
    assert [term.term for term in back.history] == [1, 2]

    await bank.world.finish_job("research", "train")
    closed = await bank.loan_in(train, LoanPhase.CLOSED)
    assert closed.history[1].ended_because == "the job finished or is gone"
    await bank.until(bank.nothing_open, "no line is open")
    assert {line.state for line in bank.ledger.rows.values()} == {LineState.RETURNED}
    assert [(use.term, use.gone_at is None) for use in bank.ledger.uses] == [
        (1, True),
        (1, False),
        (2, True),
        (2, False),
    ]


async def test_retryable_work_is_told_and_stopped_without_a_checkpoint(bank: FakeBank) -> None:
    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    parked = await bank.loan_in(batch, LoanPhase.PARKED)
    assert parked.checkpoint is None
    assert bank.trainers.asked == []
    assert "LoanRecalled" in bank.reasons("batch")
    assert "work lost" not in bank.ledger.actions()


async def test_who_cannot_save_is_protected_and_the_next_is_asked(bank_client: BankClient) -> None:
    async with fake_bank(bank_client, {"serving": 16, "research": 0}) as bank:
        bank.terms.set_group("research", grace_period=timedelta(seconds=1.5))
        bank.trainers.moods["younger"] = Mood.SILENT
        older = await bank.borrow("research", "older", hook=True)
        younger = await bank.borrow("research", "younger", hook=True)
        await bank.own("serving", "serve")
        await bank.placed("serve")
        reclaim = await bank.reclaim_where("serving", met)
        answers = {victim.workload.uid: victim.answer for victim in reclaim.demands[0].victims}
        assert answers == {younger.key.uid: LoanOutcome.PROTECTED, older.key.uid: LoanOutcome.RETURNED}
        kept = await bank.loan_in(younger, LoanPhase.ACTIVE)
        assert kept.note.startswith("protected: no verified checkpoint by")
        running = await bank.workload("younger")
        assert running is not None
        assert running.active
        assert running.mark is None
        assert "CheckpointFailed" in bank.reasons("younger")


async def test_a_lie_is_no_checkpoint(bank: FakeBank) -> None:
    bank.terms.set_group("research", grace_period=timedelta(seconds=1.5))
    bank.trainers.mood = Mood.LIES
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    kept = await bank.loan_in(train, LoanPhase.ACTIVE)
    assert kept.checkpoint is None
    assert (await bank.placed("train")).active


async def test_who_says_that_it_failed_is_asked_once_more_before_it_is_protected(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.FAILS
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    reclaim = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    assert reclaim.demands[0].victims[0].reason == "the trainer says failed: the disk is full"
    assert len(bank.trainers.asked) == 2
    assert (await bank.placed("train")).key == train.key


async def test_a_policy_that_evicts_stops_at_the_end_of_the_notice_and_the_loss_is_booked(bank: FakeBank) -> None:
    bank.terms.set_group("research", grace_period=timedelta(seconds=1), on_checkpoint_failure=OnCheckpointFailure.EVICT)
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    (loss,) = [note for note in bank.ledger.notes.values() if note.action == "work lost"]
    assert loss.detail["gpus"] == 16
    assert loss.detail["gpu_hours"] > 0


async def test_a_recall_whose_demand_is_gone_lets_the_job_run_on(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.world.delete_job("serving", "serve")
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.CANCELLED)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    assert {line.state for line in await bank.lines()} == {LineState.GRANTED}
    assert [line.demand for line in await bank.lines()] == [None, None]
    assert (await bank.placed("train")).mark is None


async def test_a_borrower_that_ends_during_its_notice_is_as_good_as_returned(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.world.delete_job("research", "train")
    await bank.placed("serve")
    reclaim = await bank.reclaim_where("serving", met)
    assert reclaim.demands[0].victims[0].answer is LoanOutcome.GONE
    await bank.loan_in(train, LoanPhase.CLOSED)


async def test_nobody_is_stopped_before_everybody_may_be_and_an_old_checkpoint_is_taken_anew(
    bank_client: BankClient,
) -> None:
    async with fake_bank(bank_client, {"serving": 16, "research": 0}) as bank:
        bank.terms.set(max_checkpoint_age=timedelta(seconds=1))
        bank.trainers.moods["slow"] = Mood.SILENT
        slow = await bank.borrow("research", "slow", hook=True)
        quick = await bank.borrow("research", "quick", hook=True)
        await bank.own("serving", "serve", 16, pods=2)
        await bank.loan_in(quick, LoanPhase.DURABLE)

        async def both_run() -> bool:
            found = [await bank.workload(name) for name in ("slow", "quick")]
            return all(each is not None and each.active for each in found)

        await bank.holds(both_run, 1.5)
        bank.trainers.moods["slow"] = Mood.SAVES
        await bank.placed("serve")
        for workload in (slow, quick):
            await bank.loan_in(workload, LoanPhase.PARKED)
        assert len([request for request in bank.trainers.asked if quick.key.uid in request.id]) == 2
        assert len([request for request in bank.trainers.asked if slow.key.uid in request.id]) == 1


async def test_two_demands_of_one_lender_are_served_side_by_side(bank_client: BankClient) -> None:
    async with fake_bank(bank_client, {"serving": 16, "research": 0}) as bank:
        bank.trainers.seconds = 0.5
        await two_owners_wait(bank)
        assert len(set(first_pledges(bank).values())) == 2, "each has a line of its own on its way"


@pytest.mark.parametrize("slow", ["one", "two"])
async def test_who_is_first_in_line_has_what_came_back_for_another_and_that_one_has_what_comes_next(
    bank_client: BankClient, slow: str
) -> None:
    async with fake_bank(bank_client, {"serving": 16, "research": 0}) as bank:
        bank.trainers.seconds, bank.trainers.slow = 0.3, {slow: 1.5}
        await two_owners_wait(bank)
        one, two = [tx.at for tx in bank.ledger.history for each in tx.moves if each.to_state is LineState.RETURNED]
        first, second = [(await bank.placed(name)).admitted_at for name in ("serve-1", "serve-2")]
        assert first is not None
        assert second is not None
        assert one < first < two < second
        assert {line.state for line in bank.ledger.rows.values()} == {LineState.RETURNED}


async def two_owners_wait(bank: FakeBank) -> None:
    """Two borrowers of 8 make room for two owners of 8, who wait at the same time."""
    borrowers = [await bank.borrow("research", name, hook=True) for name in ("one", "two")]
    await bank.own("serving", "serve-1")
    await bank.own("serving", "serve-2")
    for name in ("serve-1", "serve-2"):
        await bank.placed(name)
    for workload in borrowers:
        await bank.loan_in(workload, LoanPhase.PARKED)

    async def ended() -> bool:
        return not await bank.demands()

    await bank.until(ended, "both demands have ended")


def first_pledges(bank: FakeBank) -> dict[str, str]:
    """Return which demand every line was pledged to before anything of it came back."""
    first: dict[str, str] = {}
    for tx in bank.ledger.history:
        for pledge in tx.pledges:
            if pledge.demand is not None:
                first.setdefault(pledge.line_id, pledge.demand)
    return first


async def test_two_lenders_want_one_victim_and_it_is_stopped_once(bank_client: BankClient) -> None:
    async with fake_bank(bank_client, {"serving": 8, "vision": 8, "research": 0}) as bank:
        bank.trainers.seconds = 0.5
        train = await bank.borrow("research", "train", 16, hook=True, pods=2)
        await bank.own("serving", "serve")
        await bank.own("vision", "see")
        for name in ("serve", "see"):
            await bank.placed(name)
        for lender in ("serving", "vision"):
            await bank.reclaim_where(lender, met)
        parked = await bank.loan_in(train, LoanPhase.PARKED)
        assert parked.recalls == 1
        assert len(bank.trainers.asked) == 1


def met(state: ReclaimState) -> bool:
    """Whether everybody who waited has its GPUs."""
    return state.phase is ReclaimPhase.MET
