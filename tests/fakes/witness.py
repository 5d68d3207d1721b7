"""A witness of one pool: who was stopped and with what saved, how demands ended, and whether all came to rest."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.contract import ReclaimClass
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import Mark, WorkloadFacts
from gpubank.domain.loan import LineState, WorkloadKey
from gpubank.domain.transaction import Transaction
from tests.fakes.bank import FakeBank
from tests.support.audit import drift, unbacked


class Stop(NamedTuple):
    """One Workload that was stopped."""

    uid: str
    term: int
    at: datetime
    ran: float
    """Seconds since its admission."""

    saved: bool
    """Whether a trainer was asked in this stay and could show what it saved, or the class needs no checkpoint."""


class Witness:
    """Sees every stop from now on."""

    def __init__(self, bank: FakeBank, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bank = bank
        self.stops: list[Stop] = []
        self._stop = bank.world.simulated.stop
        monkeypatch.setattr(bank.world.simulated, "stop", self._see)

    async def _see(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        before = (await self._bank.world.backend.observe(pool)).workload(workload.uid)
        await self._stop(pool, workload, mark, seen=seen)
        assert before is not None
        assert before.admitted_at is not None
        now = datetime.now(UTC)
        ran = (now - before.admitted_at).total_seconds()
        self.stops.append(Stop(workload.uid, mark.term, now, ran, self._saved(before, before.admitted_at)))

    def _saved(self, workload: WorkloadFacts, since: datetime) -> bool:
        if workload.contract.reclaim_class is not ReclaimClass.CHECKPOINTABLE:
            return True
        trainers = self._bank.trainers
        return any(
            workload.key.uid in asked.request.id and asked.at >= since and trainers._answer(asked).uri
            for asked in trainers._records.values()
        )

    def stopped(self, *workloads: WorkloadFacts) -> None:
        """See that exactly these were stopped, each once, and none without what its class demands."""
        assert sorted(stop.uid for stop in self.stops) == sorted(each.key.uid for each in workloads), self.stops
        assert all(stop.saved for stop in self.stops), self.stops
        assert not [n for n in self._bank.ledger.notes.values() if n.action == "work lost" and self._mine(n.subject)]

    def _mine(self, subject: str) -> bool:
        return any(self._bank.cluster in subject and stop.uid in subject for stop in self.stops)

    # ---- books

    @property
    def history(self) -> list[Transaction]:
        """Transactions of the pool, oldest first."""
        return [each for each in self._bank.ledger.history if each.pool == self._bank.pool]

    def ends(self, lender: str, kind: DemandKind) -> list[tuple[DemandState, str]]:
        """Return how demands of a lender ended, and why, oldest first."""
        prefix = f"{self._bank.pool}/{lender}/{kind}/"
        return [
            (row.state, row.reason or tx.note)
            for tx in self.history
            for row in tx.demands
            if row.demand_id.startswith(prefix) and row.state not in (DemandState.OPEN, DemandState.RAISED)
        ]

    async def at_rest(self, folder: Path) -> None:
        """See everything done: nothing on its way, quotas and running work as the books say, nothing below zero.

        The real ledger, in `folder`, takes every transaction, comes to the same books, and finds nothing wrong in them.
        """
        await self._bank.until(self._rests, "everything is at rest")
        books = await self._bank.ledger.books(self._bank.cluster, self._bank.pool)
        facts = await self._bank.world.backend.observe(self._bank.pool)
        below = {group: books.own_nominal(group) for group in books.groups if books.own_nominal(group) < 0}
        assert (below, min(books.surplus, 0)) == ({}, 0), await self._bank.story()
        assert sum(queue.nominal for queue in facts.queues) <= books.capacity
        assert sum(queue.reserved for queue in facts.queues) <= books.capacity
        async with await SqlLedger.open(f"sqlite+aiosqlite:///{folder / self._bank.pool}.db") as ledger:
            for transaction in self.history:
                await ledger.commit(transaction)
            await ledger.post(until=datetime.now(UTC))
            report = await ledger.verify()
            assert report.ok, report.findings
            assert sum(posting.gpu_ms for posting in await ledger.postings(limit=10_000)) == 0
            real = await ledger.books(self._bank.cluster, self._bank.pool)
            assert (real.revision, real.lines, real.guarantees) == (books.revision, books.lines, books.guarantees)

    async def _rests(self) -> Any:
        books = await self._bank.ledger.books(self._bank.cluster, self._bank.pool)
        facts = await self._bank.world.backend.observe(self._bank.pool)
        return (
            all(demand.state is DemandState.PARTIAL for demand in books.demands)
            and all((line.state, line.demand) == (LineState.GRANTED, None) for line in books.lines)
            and not any(guarantee.releasing for guarantee in books.guarantees)
            and not drift(books, facts)
            and not unbacked(books, facts)
        )
