"""What a worker costs: memory of idle Loans, events of a Loan's life, recalls a second on SQLite and on PostgreSQL.

    python -m benchmarks.worker [--loans 800] [--recalls 100] [--json FILE]

Temporal's dev server, the worker as production wires it, a scheduler on paper that does everything at once. Loans of
4 GPUs begin as the controller begins them; then every one of so many lenders wants one of its loans back at the same
moment, and a recall is over when the owner's pod is on a node and the demand is met. Memory is what the process holds
more per 1,000 Loans that only wait; the collector has run before.
"""

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.paper_pool import PaperPool
from benchmarks.report import Report, arguments, positive, ratio, rss_mib, spread
from benchmarks.turn import found
from benchmarks.worlds import CLUSTER, POOL, SIZE, Size, World, group_name, workload, world
from gpubank.adapters.checkpoint import CheckpointHooks, FsspecStorage
from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.decide.step import LoanSignal, SignalKind
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.recall import loan_id
from gpubank.domain.transaction import DemandOpening, Transaction
from gpubank.embedded.devserver import DevServer
from gpubank.lab.postgres import Postgres
from gpubank.settings import TemporalSettings
from gpubank.simulation.cluster import SimulatedCluster
from workers.wiring import Ports, make_workers, run_workers
from workflows import attributes

AT_ONCE: Final = 16
"""Loans that are begun at a time."""

PATIENCE: Final = 600.0
LOOK: Final = 0.05


@dataclass(frozen=True)
class Bench:
    """A worker at work."""

    at: World
    pool: PaperPool
    ledger: SqlLedger
    client: BankClient

    async def begin(self, loans: Sequence[WorkloadFacts]) -> None:
        """Begin Loans, and see all of them idle."""
        before = len(await self.ledger.uses(limit=1_000_000))
        limit = asyncio.Semaphore(AT_ONCE)

        async def begin(each: WorkloadFacts) -> None:
            async with limit:
                await self.client.signal_loan(CLUSTER, POOL, _news(each, SignalKind.GRANTED))

        await asyncio.gather(*(begin(each) for each in loans))

        async def all_idle() -> bool:
            return len(await self.ledger.uses(limit=1_000_000)) == before + len(loans)

        await _until(all_idle)

    async def recall(self, lenders: Sequence[str]) -> float:
        """Have lenders want one loan each; return the seconds until the owner of the last one runs."""
        now = datetime.now(UTC)
        openings = []
        for lender in lenders:
            owner = workload(f"owner-{lender}", lender, Side.OWN)
            self.pool.submit(owner)
            openings.append(
                DemandOpening(
                    demand_id=f"{POOL}/{lender}/{DemandKind.WORKLOAD}/{owner.key.uid}",
                    lender=lender,
                    kind=DemandKind.WORKLOAD,
                    workload=owner.key,
                    gpus=SIZE,
                    due_at=now + timedelta(hours=1),
                )
            )
        key = f"demands/{now.isoformat()}"
        opened = Transaction(key=key, cluster=CLUSTER, pool=POOL, at=now, actor="bench", openings=tuple(openings))
        await self.ledger.commit(opened)
        begun = time.monotonic()
        for each in openings:
            await self.client.signal_needs(CLUSTER, POOL, each.lender, [each.demand_id], at=now)

        async def all_met() -> bool:
            return not (await self.ledger.books(CLUSTER, POOL)).demands

        await _until(all_met)
        return time.monotonic() - begun

    async def end(self) -> list[int]:
        """Have the Workloads of all recalled Loans end; return the events of each Loan's history."""
        stopped = [w for w in (await self.pool.observe(POOL)).workloads if w.kind is Side.BORROW and not w.active]
        events = []
        for each in stopped:
            loan = self.client.temporal.get_workflow_handle(loan_id(CLUSTER, each.key.uid))
            self.pool.delete(each.key.uid)
            await self.client.signal_loan(CLUSTER, POOL, _news(each, SignalKind.ENDED))
            await loan.result()
            events.append((await loan.describe()).history_length)
        return events


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await holds():
                return
            await asyncio.sleep(LOOK)


def _news(of: WorkloadFacts, kind: SignalKind) -> LoanSignal:
    lenders = ("somebody",) if kind is SignalKind.GRANTED else ()
    return LoanSignal(
        workload=of.key, borrower=of.group, gpus=of.gpus, kind=kind, term=1, lenders=lenders, at=of.admitted_at
    )


@asynccontextmanager
async def bench(folder: Path, database: str, size: Size) -> AsyncIterator[Bench]:
    """Run a server, a worker and a pool of that size until the block ends."""
    at = world(size, datetime.now(UTC))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer(folder, search_attributes=attributes.KINDS))
        ledger = await stack.enter_async_context(await SqlLedger.open(database))
        await found(ledger, at.books)
        pool, away = PaperPool(at), SimulatedCluster(name=CLUSTER)
        books = await ledger.books(CLUSTER, POOL)
        for queue in at.facts.queues:
            await pool.write_quota(POOL, queue.group, queue.kind, nominal=queue.nominal, revision=books.revision)
        client = await BankClient.connect(TemporalSettings(address=server.address))
        storage = FsspecStorage()
        stack.callback(storage.close)
        ports = Ports(
            quota=pool,
            ledger=ledger,
            terms=pool,
            notifier=pool,
            hook=CheckpointHooks({}),
            storage=storage,
            leases=away.leases,
            nodes=away.servicing,
        )
        stop = asyncio.Event()
        working = asyncio.create_task(run_workers(make_workers(client.temporal, CLUSTER, ports, client), stop))
        try:
            yield Bench(at, pool, ledger, client)
        finally:
            stop.set()
            await working


def resident_mb() -> float:
    """Memory of this process, in MB."""
    gc.collect()
    return rss_mib(os.getpid()) * 2**20 / 1e6


async def measure(loans: int, recalls: int) -> Report:
    """Measure on SQLite, and recalls on PostgreSQL too."""
    report = Report("a worker", ("what", "ledger", "value"))
    size = Size(groups=recalls, loans=max(loans, recalls))
    with tempfile.TemporaryDirectory() as name, Postgres() as postgres:
        folder = Path(name)
        databases = {"SQLite": f"sqlite:///{folder / 'ledger.db'}", "PostgreSQL": postgres.create_database()}
        speeds = {}
        for ledger, database in databases.items():
            async with bench(folder / ledger, database, size) as at:
                running = [each for each in at.at.facts.workloads if each.kind is Side.BORROW]
                # The first Loans also bring what the process keeps for all of them.
                await at.begin(running[: loans // 10])
                before = resident_mb()
                began = time.monotonic()
                await at.begin(running[loans // 10 : loans])
                rest = loans - loans // 10
                starts = rest / (time.monotonic() - began)
                per_thousand = (resident_mb() - before) / rest * 1000
                seconds = await at.recall([group_name(number) for number in range(recalls)])
                speeds[ledger] = recalls / seconds
                events = spread([float(each) for each in await at.end()])
            _tell(report, ledger, per_thousand, starts, speeds[ledger], events)
    report.figures["recalls_postgresql_over_sqlite_ratio"] = ratio(speeds["PostgreSQL"], speeds["SQLite"])
    report.figures |= {"loans": loans, "recalls": recalls}
    return report


def _tell(
    report: Report, ledger: str, per_thousand: float, starts: float, recalls: float, events: dict[str, Any]
) -> None:
    report.row("MB per 1,000 idle Loans", ledger, per_thousand)
    report.row("Loans begun a second", ledger, starts)
    report.row("recalls a second", ledger, recalls)
    report.row("events of a Loan's life, p50", ledger, events["p50"])
    report.row("events of a Loan's life, max", ledger, events["max"])
    report.figures[f"{ledger.lower()}"] = {
        "mb_per_1000_idle_loans": per_thousand,
        "loans_begun_per_second": starts,
        "recalls_per_second": recalls,
        "loan_life_events": events,
    }


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("What a worker costs: memory, events, recalls a second.")
    parser.add_argument("--loans", type=positive, default=800, help="Loans that idle; a worker keeps 1,000 workflows")
    parser.add_argument("--recalls", type=positive, default=100, help="lenders that want a loan back at once")
    given = parser.parse_args(arguments_)
    asyncio.run(measure(given.loans, given.recalls)).finish(given.json)


if __name__ == "__main__":
    main()
