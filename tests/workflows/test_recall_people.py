"""What people and platforms decide about a recall: approval, extension, return, freeze, and the end of patience."""

import asyncio
from datetime import timedelta

import pytest

from gpubank.client import NoSuchProcessError
from gpubank.domain.errors import PolicyError
from gpubank.domain.loan import LineState
from gpubank.domain.policy import Approval
from gpubank.domain.pool import OnOverdue
from gpubank.domain.recall import Decision, Extension, LoanPhase, ReclaimPhase, ReclaimState
from tests.fakes.bank import FakeBank
from tests.fakes.trainer import Mood


async def test_a_lender_that_must_approve_is_asked_first_and_nobody_is_touched_before(bank: FakeBank) -> None:
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    asked = await bank.reclaim_where("serving", awaits_approval)
    assert [victim.workload.uid for victim in asked.demands[0].victims] == [train.key.uid]
    await bank.until(lambda: listed_for_approval(bank), "the list shows that it needs approval")
    assert (await bank.client.loan_state(bank.loan(train))).phase is LoanPhase.ACTIVE
    assert bank.trainers.asked == []

    with pytest.raises(PolicyError, match="does not wait for approval"):
        await bank.client.approve(bank.reclaim("serving"), Decision(identity="ann", demand="h100/other"))
    await bank.client.approve(bank.reclaim("serving"), Decision(identity="ann", verified=True))
    await bank.placed("serve")
    done = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.MET)
    assert done.demands[0].approved_by == "ann"
    (note,) = [note for note in bank.ledger.notes.values() if note.action == "approve"]
    assert note.detail == {"identity": "ann", "verified": "True", "reason": ""}


async def test_a_denied_recall_ends_partial_and_says_who_denied_it(bank: FakeBank) -> None:
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.reclaim_where("serving", awaits_approval)
    await bank.client.deny(bank.reclaim("serving"), Decision(identity="ann", reason="the run ends tonight"))
    denied = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    assert denied.demands[0].reason == "denied by ann: the run ends tonight"
    assert [demand.state for demand in await bank.demands()] == ["Partial"]
    assert (await bank.client.loan_state(bank.loan(train))).phase is LoanPhase.ACTIVE
    with pytest.raises(PolicyError, match="does not run"):
        await bank.client.approve(bank.reclaim("serving"), Decision(identity="ann"))


async def test_a_recall_that_nobody_approves_in_time_ends_partial(bank: FakeBank) -> None:
    bank.terms.set(max_time_to_return=timedelta(seconds=2), on_overdue=OnOverdue.EVICT)
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    partial = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    assert partial.demands[0].reason == "nobody approved or denied it within maxTimeToReturn"
    assert (await bank.client.loan_state(bank.loan(train))).phase is LoanPhase.ACTIVE


async def test_a_notice_can_be_extended_within_the_pools_maximum(bank: FakeBank) -> None:
    bank.terms.set(max_grace_period=timedelta(minutes=1))
    bank.terms.set_group("research", grace_period=timedelta(seconds=2))
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    noticed = await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    assert noticed.deadline is not None

    with pytest.raises(PolicyError, match="maxGracePeriod allows it until"):
        await bank.client.extend(bank.loan(train), Extension(by=timedelta(minutes=5), identity="bob"))
    extended = await bank.client.extend(bank.loan(train), Extension(by=timedelta(seconds=30), identity="bob"))
    assert extended.deadline == noticed.deadline + timedelta(seconds=30)
    assert "extend" in bank.ledger.actions()

    await asyncio.sleep(2.5)
    assert (await bank.client.loan_state(bank.loan(train))).phase is LoanPhase.CHECKPOINTING
    bank.trainers.mood = Mood.SAVES
    await bank.placed("serve")
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    with pytest.raises(PolicyError, match="only the notice of a recall can be extended"):
        await bank.client.extend(bank.loan(train), Extension(by=timedelta(seconds=1)))
    assert parked.checkpoint is not None


async def test_a_returned_job_is_saved_stopped_and_comes_back_when_slack_has_lasted(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    bank.terms.set(resume_after=timedelta(hours=1))
    await bank.client.return_now(bank.loan(train), Decision(identity="cho", reason="a better run waits"))
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert parked.history[0].ended_because == "cho returns it: a better run waits"
    assert parked.checkpoint is not None
    await bank.until(bank.nothing_open, "its lines are returned")
    assert {line.state for line in bank.ledger.rows.values()} == {LineState.RETURNED}
    with pytest.raises(PolicyError, match="only one that runs can be returned"):
        await bank.client.return_now(bank.loan(train), Decision(identity="cho"))

    async def parked_still() -> bool:
        workload = await bank.workload("train")
        return workload is not None and not workload.active

    await bank.holds(parked_still, 1)
    bank.terms.set(resume_after=timedelta(milliseconds=200))
    bank.loop.poke()
    await bank.placed("train")
    assert (await bank.loan_in(train, LoanPhase.ACTIVE)).term == 2


async def test_a_freeze_holds_a_running_recall_before_its_stop(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    bank.terms.freeze()
    bank.trainers.mood = Mood.SAVES
    await bank.loan_in(train, LoanPhase.DURABLE)

    async def runs() -> bool:
        workload = await bank.workload("train")
        return workload is not None and workload.active and workload.placed

    await bank.holds(runs, 2)
    bank.terms.thaw()
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)


async def test_at_the_end_of_patience_a_pool_that_evicts_stops_whoever_could_not_be_saved(bank: FakeBank) -> None:
    bank.terms.set(max_time_to_return=timedelta(seconds=3), on_overdue=OnOverdue.EVICT)
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    noticed = await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.placed("serve")
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert noticed.deadline is not None
    assert parked.history[0].ended_at is not None
    assert parked.history[0].ended_at < noticed.deadline
    assert "work lost" in bank.ledger.actions()
    assert "overdue" in bank.ledger.actions()


async def test_at_the_end_of_patience_a_pool_that_protects_lets_it_run_and_says_so(bank: FakeBank) -> None:
    bank.terms.set(max_time_to_return=timedelta(seconds=2), on_overdue=OnOverdue.PROTECT)
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    partial = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    assert partial.demands[0].overdue
    await bank.loan_in(train, LoanPhase.ACTIVE)
    assert {line.state for line in await bank.lines()} == {LineState.GRANTED}


async def test_lists_and_errors_speak_the_banks_words(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 16, pods=2)

    async def listed() -> bool:
        rows = await bank.client.loans(pool="h100", borrower="research", phase=LoanPhase.ACTIVE)
        return [(row.loan, row.workload, row.gpus) for row in rows] == [(bank.loan(train), "team-research/train", 16)]

    await bank.until(listed, "the loan is listed")
    assert await bank.client.loans(pool="other") == []
    assert await bank.client.reclaims() == []
    with pytest.raises(NoSuchProcessError, match="does not run"):
        await bank.client.loan_state("loan/local/nobody")
    with pytest.raises(NoSuchProcessError, match="does not run"):
        await bank.client.approve(bank.reclaim("serving"), Decision(identity="ann"))
    details = await bank.client.temporal.get_workflow_handle(bank.loan(train)).describe()
    assert await details.static_summary() == "research has 16 GPUs of h100 for Job/train"


def awaits_approval(state: ReclaimState) -> bool:
    """Whether a person must decide."""
    return state.phase is ReclaimPhase.AWAITING_APPROVAL


async def listed_for_approval(bank: FakeBank) -> bool:
    """Whether the list shows a Reclaim that needs approval."""
    return any(row.needs_approval for row in await bank.client.reclaims(lender="serving"))
