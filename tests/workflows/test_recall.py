"""Recalls, from an owner's demand to its pods on nodes and the borrower's return."""

from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase, ReclaimPhase
from tests.fakes.bank import FakeBank


async def test_an_owner_gets_its_gpus_back_and_the_borrower_returns_when_they_are_free_again(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    reclaim = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.MET)
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert [victim.workload.uid for victim in reclaim.demands[0].victims] == [train.key.uid]
    assert parked.checkpoint is not None
    assert parked.history[0].checkpoint == parked.checkpoint
    assert len(bank.trainers.asked) == 1

    await bank.world.finish_job("serving", "serve")
    await bank.placed("train")
    back = await bank.loan_in(train, LoanPhase.ACTIVE)
    assert back.term == 2
    assert [term.term for term in back.history] == [1, 2]

    await bank.world.finish_job("research", "train")
    closed = await bank.loan_in(train, LoanPhase.CLOSED)
    assert closed.history[1].ended_because == "the job finished or is gone"

    async def settled() -> bool:
        return not await bank.lines()

    await bank.until(settled, "no line is open")
    assert {line.state for line in bank.ledger.rows.values()} == {LineState.RETURNED}
