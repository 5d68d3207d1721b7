"""Fifty recalls at once in one pool: every lender gets its own back, and every borrower is stopped once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.contract import Side
from gpubank.domain.loan import LineState
from gpubank.domain.recall import ReclaimPhase
from gpubank.domain.transaction import Transaction
from tests.contract.world import JobRequest, job_of
from tests.fakes.branches import ManyBanks

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300)]

RECALLS = 50


async def test_fifty_recalls_at_once_are_met_and_nobody_is_stopped_twice(
    bank_client: BankClient, tmp_path: Path
) -> None:
    lenders = [f"owner{number:02}" for number in range(RECALLS)]
    borrowers = [f"team{number:02}" for number in range(RECALLS)]
    async with ManyBanks(bank_client).running() as banks:
        guarantees = dict.fromkeys(lenders, 8) | dict.fromkeys(borrowers, 0)
        bank = await banks.open("fifty", guarantees, nodes=(8,) * RECALLS)
        bank.look = 0.5
        for name in borrowers:
            await bank.world.submit_job(JobRequest(name, name, side=Side.BORROW))

        async def run(names: list[str]) -> bool:
            facts = await bank.world.backend.observe(bank.pool)
            found = [job_of(facts, name) for name in names]
            return all(each is not None and each.reserved and each.placed for each in found)

        await bank.until(lambda: run(borrowers), "everybody has borrowed", timeout=200)
        lent = {line.lender for line in await bank.lines()}
        assert lent == set(lenders)

        for name in lenders:
            await bank.own(name, name)
        await bank.until(lambda: run(lenders), "everybody has its own back", timeout=250)

        async def nothing_is_wanted() -> bool:
            return not await bank.demands() and not await bank.lines()

        await bank.until(nothing_is_wanted, "no demand is live and no line open", timeout=100)
        reclaims = await asyncio.gather(*(bank.client.reclaim_state(bank.reclaim(name)) for name in lenders))
        assert {state.phase for state in reclaims} == {ReclaimPhase.MET}
        stopped = [victim.workload.uid for state in reclaims for demand in state.demands for victim in demand.victims]
        assert len(stopped) == len(set(stopped)) == RECALLS
        lines = list(bank.ledger.rows.values())
        assert [line.state for line in lines] == [LineState.RETURNED] * len(lines)
        recalls = [note.subject for note in bank.ledger.notes.values() if note.action == "recall"]
        assert len(recalls) == len(set(recalls)) == RECALLS
        await balances(tmp_path / "ledger.db", bank.ledger.history)


async def balances(file: Path, history: Sequence[Transaction]) -> None:
    """Write the same transactions into the real ledger: it takes every one, and its postings balance."""
    async with await SqlLedger.open(f"sqlite+aiosqlite:///{file}") as ledger:
        for transaction in history:
            await ledger.commit(transaction)
        await ledger.post(until=history[-1].at)
        report = await ledger.verify()
        assert report.ok, report.findings
        postings = await ledger.postings(limit=10_000)
        assert postings
        assert sum(posting.gpu_ms for posting in postings) == 0
