"""A person approves what the recall takes, and nothing more: an amount that has grown since is asked for anew."""

from datetime import timedelta

import pytest

from activities import reclaims
from gpubank.domain.policy import Approval
from gpubank.domain.recall import Decision, DemandProgress, LoanPhase, ReclaimPhase, ReclaimState
from tests.fakes.bank import FakeBank
from tests.fakes.trainer import Mood
from workflows.reclaim_ends import ENDED

ANN = Decision(identity="ann", verified=True)


async def asked(bank: FakeBank) -> ReclaimState:
    """Lend two jobs 4 GPUs each, lower the limit to 4, and see that somebody must approve the recall of one."""
    bank.trainers.mood = Mood.SILENT
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    await bank.own("research", "own", 8)
    await bank.placed("own")
    for name in ("first", "second"):
        await bank.loan_in(await bank.borrow("research", name, 4, hook=True), LoanPhase.ACTIVE)
    bank.terms.set_group("serving", lending_limit=4)
    bank.loop.poke()
    return await bank.reclaim_where("serving", lambda state: waits_for(state, 4, victims=1))


async def grow(bank: FakeBank) -> None:
    """Have both jobs' GPUs wanted back."""
    bank.terms.set_group("serving", lending_limit=0)
    bank.loop.poke()

    async def grown() -> bool:
        return [demand.gpus for demand in await bank.demands()] == [8]

    await bank.until(grown, "the demand has grown")


def waits_for(state: ReclaimState, gpus: int, *, victims: int) -> bool:
    """Whether a person must approve the recall of so many."""
    (demand,) = state.demands
    waits = state.phase is ReclaimPhase.AWAITING_APPROVAL and demand.approved_by is None
    return waits and demand.gpus == gpus and len(demand.victims) == victims


async def ended(bank: FakeBank) -> DemandProgress:
    """See the demand end: by the Reclaim, or by the controller, who may be first to see that nothing is beyond it."""
    state = await bank.reclaim_where("serving", lambda state: state.demands[0].phase in ENDED)
    return state.demands[0]


async def test_a_demand_that_grows_while_it_waits_for_approval_shows_all_that_would_be_taken(bank: FakeBank) -> None:
    await asked(bank)
    await grow(bank)
    await bank.reclaim_where("serving", lambda state: waits_for(state, 8, victims=2), timeout=15)
    assert bank.trainers.asked == []


async def test_a_demand_that_has_grown_since_its_approval_is_approved_anew(bank: FakeBank) -> None:
    await asked(bank)
    await bank.client.approve(bank.reclaim("serving"), ANN)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.RECALLING)
    await grow(bank)
    await bank.reclaim_where("serving", lambda state: waits_for(state, 8, victims=2), timeout=15)
    bank.trainers.mood = Mood.SAVES
    await bank.client.approve(bank.reclaim("serving"), ANN)
    assert (await ended(bank)).approved_by == "ann"
    assert await bank.nothing_open()


async def test_who_approved_before_it_was_seen_to_grow_has_not_approved_the_rest(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaims, "END_POLL", timedelta(hours=1))  # nobody sees it but the next plan
    await asked(bank)
    handle = bank.client.temporal.get_workflow_handle(bank.reclaim("serving"))

    async def looked() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any(each.activity_type.name == "reclaim.await_ended" and each.attempt > 1 for each in pending)

    await bank.until(looked, "the only look at the demand before it grows")
    await grow(bank)
    await bank.client.approve(bank.reclaim("serving"), ANN)
    await bank.reclaim_where("serving", lambda state: waits_for(state, 8, victims=2), timeout=15)
    assert bank.trainers.asked == []


async def test_a_demand_that_shrinks_keeps_its_approval(bank: FakeBank) -> None:
    await asked(bank)
    await grow(bank)
    await bank.reclaim_where("serving", lambda state: waits_for(state, 8, victims=2), timeout=15)
    await bank.client.approve(bank.reclaim("serving"), ANN)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.RECALLING)
    bank.terms.set_group("serving", lending_limit=4)
    bank.loop.poke()
    bank.trainers.mood = Mood.SAVES
    assert (await ended(bank)).approved_by == "ann"
