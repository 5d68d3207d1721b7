"""Sweeps: what was found in both of two looks is reported once a day, and whoever mends it is started or told."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from temporalio import activity

from activities.interfaces import SweepCalls
from activities.pools import Pools
from gpubank.decide.step import LoanSignal
from gpubank.decide.sweep import Open, Sweep, seen_twice, sweep
from gpubank.domain.errors import BackendError
from gpubank.domain.sweep import LoanStart, PoolList, SweepFinding, SweepInput, SweepReport, SweepStep
from gpubank.ports import Notifier

ACTOR: Final = "sweeper"
"""Who reports, in the audit trail."""


class SweepProcesses(Protocol):
    """The open workflows, and the start of those that are missing."""

    async def open_loans(self, cluster: str, pool: str) -> frozenset[str]:
        """Return the ids of the Loans that run."""
        ...

    async def reclaim_runs(self, cluster: str, pool: str, lender: str) -> bool:
        """Whether the lender's Reclaim runs."""
        ...

    async def heartbeat_runs(self, cluster: str, pool: str) -> bool:
        """Whether the pool's heartbeat runs."""
        ...

    async def start_heartbeat(self, cluster: str, pool: str) -> None:
        """Start the pool's heartbeat, unless it runs."""
        ...

    async def start_loan(self, cluster: str, pool: str, start: LoanStart) -> None:
        """Start a Loan, unless it runs."""
        ...

    async def end_loan(self, loan: str) -> None:
        """Tell a Loan that its Workload is gone."""
        ...

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        """Tell a Loan what the controller saw."""
        ...

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        """Tell a lender's Reclaim which demands are open, and start it."""
        ...


class SweepActivities(SweepCalls):
    """Implements `SweepCalls`."""

    def __init__(self, pools: Pools, *, processes: SweepProcesses, notifier: Notifier) -> None:
        self._pools = pools
        self._processes = processes
        self._notifier = notifier

    @activity.defn(name="sweep.pools")
    async def pools(self, start: SweepInput) -> PoolList:
        """Return the cluster's pools that have books."""
        known = await self._pools.ledger.pools()
        return PoolList(pools=tuple(pool for cluster, pool in known if cluster == start.cluster))

    @activity.defn(name="sweep.pool")
    async def sweep_pool(self, step: SweepStep) -> SweepReport:
        """Look twice, report what does not fit, and start or tell whoever mends it."""
        first = await self._look(step)
        if first is None or not first.findings:
            return SweepReport(pools=1)
        await asyncio.sleep(step.settle.total_seconds())
        second = await self._look(step)
        found = seen_twice(first, second) if second is not None else Sweep(())
        await self._mend(step, found)
        for finding in found.findings:
            await self._report(finding)
        return SweepReport(pools=1, findings=found.findings)

    async def _look(self, step: SweepStep) -> Sweep | None:
        """Look once; None for a pool that is being removed."""
        try:
            terms = await self._pools.terms(step.pool)
        except BackendError:
            return None
        # Workflows first: what comes to be between the looks is then missing nowhere.
        loans = await self._processes.open_loans(step.cluster, step.pool)
        books = await self._pools.books(step.pool)
        lenders = sorted({demand.lender for demand in books.demands})
        reclaims = [lender for lender in lenders if await self._processes.reclaim_runs(step.cluster, step.pool, lender)]
        heartbeat = await self._processes.heartbeat_runs(step.cluster, step.pool)
        facts = await self._pools.quota.observe(step.pool)
        return sweep(facts, books, terms, self._pools.now(), Open(loans, frozenset(reclaims), heartbeat))

    async def _mend(self, step: SweepStep, found: Sweep) -> None:
        cluster, pool, processes = step.cluster, step.pool, self._processes
        if not await processes.heartbeat_runs(cluster, pool):
            await processes.start_heartbeat(cluster, pool)
        for start in found.starts:
            await processes.start_loan(cluster, pool, start)
        for signal in found.signals:
            await processes.signal_loan(cluster, pool, signal)
        for lender, demands in found.needs:
            await processes.signal_needs(cluster, pool, lender, demands, at=self._pools.now())
        for loan in found.left_over:
            await processes.end_loan(loan)

    async def _report(self, finding: SweepFinding) -> None:
        """Write it into the audit trail, and tell the owner where there is one; once a day as long as it lasts."""
        now = self._pools.now()
        key = f"sweep/{finding.pool}/{finding.kind}/{finding.subject}/{now:%Y-%m-%d}"
        detail = {"message": finding.message, "subject": finding.subject, "mended": finding.mended}
        subject = f"{self._pools.cluster}/{finding.pool}"
        await self._pools.ledger.note(
            key=key, at=now, actor=ACTOR, subject=subject, action=finding.kind.value, detail=detail
        )
        if finding.workload is not None:
            await self._notifier.notify(
                key=key,
                pool=finding.pool,
                workload=finding.workload,
                reason=finding.kind.value,
                message=finding.message,
            )
