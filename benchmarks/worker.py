"""What a worker costs: memory of idle Loans, events of a Loan's life, recalls a second on three pairs of stores.

    python -m benchmarks.worker [--stores sqlite dev-postgresql postgresql] [--loans 1000] [--recalls 100]
        [--cached 500] [--json FILE]

    sqlite           Temporal's dev server, ledger on SQLite: the embedded mode
    dev-postgresql   Temporal's dev server, ledger on PostgreSQL: a small installation
    postgresql       a Temporal server on PostgreSQL, ledger on it too: production, but that PostgreSQL does not flush

The worker is a process of its own, wired as in production but for a scheduler on paper that does everything at once.
Loans of 4 GPUs begin as the controller begins them; then every one of so many lenders wants one of its loans back at
the same moment, and that is over when the owners' pods are on nodes and every demand has ended. Memory is what the
worker's process holds at rest, with all that is free given back; what a Loan adds that is kept in memory is the slope
over several looks, none of them at the first Loans, which also bring what there is once. What all Loans add, those
included that are not kept (`--cached`), is what the worker holds at last, less where that slope begins.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.report import Report, arguments, positive, ratio, spread
from benchmarks.scale_meters import Meter
from benchmarks.scale_pool import until
from benchmarks.turn import found
from benchmarks.worker_process import Setting, WorkerProcess
from benchmarks.worlds import CLUSTER, POOL, SIZE, Size, World, group_name, workload, world
from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.decide.step import LoanSignal, SignalKind
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.recall import loan_id
from gpubank.domain.transaction import DemandOpening, Transaction
from gpubank.embedded.devserver import DevServer
from gpubank.lab import Progress, Stage
from gpubank.lab.build import build
from gpubank.lab.postgres import Postgres
from gpubank.lab.temporal import PROGRAM, SQL_TOOL, TemporalServer
from gpubank.settings import TemporalSettings
from workers.wiring import CACHED
from workflows import attributes

AT_ONCE: Final = 16
"""Loans that are begun at a time."""

WARM: Final = 100
"""Loans before the first look at the memory, at most half of all."""

LOOKS: Final = 8
"""Looks at the memory after the first one, each with as many more Loans."""

PATIENCE: Final = 900.0
LOOK: Final = 0.25


class Stores(NamedTuple):
    """Where things are kept."""

    temporal: str
    ledger: str


STORES: Final[Mapping[str, Stores]] = {
    "sqlite": Stores("SQLite", "SQLite"),
    "dev-postgresql": Stores("SQLite", "PostgreSQL"),
    "postgresql": Stores("PostgreSQL", "PostgreSQL"),
}


@dataclass(frozen=True)
class Bench:
    """A worker at work, and what it works with."""

    at: World
    worker: WorkerProcess
    ledger: SqlLedger
    client: BankClient
    pids: Mapping[str, int]
    """Every process that a recall keeps busy, but for this one."""

    async def begin(self, loans: Sequence[WorkloadFacts]) -> float:
        """Begin Loans, see all of them idle, and return how many seconds that took."""
        before = len(await self.ledger.uses(limit=1_000_000))
        limit, begun = asyncio.Semaphore(AT_ONCE), time.monotonic()

        async def begin(each: WorkloadFacts) -> None:
            async with limit:
                await self.client.signal_loan(CLUSTER, POOL, _news(each, SignalKind.GRANTED))

        await asyncio.gather(*(begin(each) for each in loans))

        async def all_idle() -> bool:
            return len(await self.ledger.uses(limit=1_000_000)) == before + len(loans)

        await until(all_idle, "a Loan for each", PATIENCE, LOOK)
        return time.monotonic() - begun

    async def recall(self, lenders: Sequence[str]) -> tuple[float, dict[str, float]]:
        """Have lenders want one loan each; return the seconds until the last has it, and the cores that were busy."""
        now = datetime.now(UTC)
        await self.worker.own(list(lenders))
        owners = {lender: workload(f"owner-{lender}", lender, Side.OWN).key for lender in lenders}
        openings = [
            DemandOpening(
                demand_id=f"{POOL}/{lender}/{DemandKind.WORKLOAD}/{key.uid}",
                lender=lender,
                kind=DemandKind.WORKLOAD,
                workload=key,
                gpus=SIZE,
                due_at=now + timedelta(hours=1),
            )
            for lender, key in owners.items()
        ]
        key = f"demands/{now.isoformat()}"
        opened = Transaction(key=key, cluster=CLUSTER, pool=POOL, at=now, actor="bench", openings=tuple(openings))
        await self.ledger.commit(opened)
        meter, begun = Meter(self.pids), time.monotonic()
        for each in openings:
            await self.client.signal_needs(CLUSTER, POOL, each.lender, [each.demand_id], at=now)
        async with asyncio.timeout(PATIENCE):
            ends = await self.worker.ends(len(lenders))
        seconds = time.monotonic() - begun
        if ends != {DemandState.MET: len(lenders)}:
            raise RuntimeError(f"of {len(lenders)} demands not all were met: {ends}")
        return seconds, meter.since(seconds)[0]

    async def end(self) -> list[int]:
        """Have the Workloads of all recalled Loans end; return the events of each Loan's history."""
        facts = {each.key.uid: each for each in self.at.facts.workloads}
        events = []
        for uid in await self.worker.stopped():
            loan = self.client.temporal.get_workflow_handle(loan_id(CLUSTER, uid))
            await self.worker.delete(uid)
            await self.client.signal_loan(CLUSTER, POOL, _news(facts[uid], SignalKind.ENDED))
            await loan.result()
            events.append((await loan.describe()).history_length)
        return events


def _news(of: WorkloadFacts, kind: SignalKind) -> LoanSignal:
    lenders = ("somebody",) if kind is SignalKind.GRANTED else ()
    return LoanSignal(
        workload=of.key, borrower=of.group, gpus=of.gpus, kind=kind, term=1, lenders=lenders, at=of.admitted_at
    )


@asynccontextmanager
async def bench(folder: Path, stores: Stores, size: Size, cached: int) -> AsyncIterator[Bench]:
    """Run databases, a server, a worker and a pool of that size until the block ends."""
    now = datetime.now(UTC)
    at, pids = world(size, now), dict[str, int]()
    async with AsyncExitStack() as stack:
        database = f"sqlite:///{folder / 'ledger.db'}"
        if stores.ledger == "PostgreSQL":
            postgres = Postgres()
            stack.push_async_callback(asyncio.to_thread, postgres.close)
            await asyncio.to_thread(postgres.start)
            database = postgres.create_database()
            pids["postgresql"] = int((postgres.data / "postmaster.pid").read_text().split()[0])
        if stores.temporal == "PostgreSQL":
            server = TemporalServer(postgres.url)
            stack.push_async_callback(asyncio.to_thread, server.close)
            await asyncio.to_thread(server.start)
            address, pid = server.address, server.pid
        else:
            dev = await stack.enter_async_context(DevServer(folder, search_attributes=attributes.KINDS))
            address, pid = dev.address, dev.pid
        assert pid is not None
        ledger = await stack.enter_async_context(await SqlLedger.open(database))
        await found(ledger, at.books)
        client = await BankClient.connect(TemporalSettings(address=address))
        setting = Setting(address, database, size.groups, size.loans, now.isoformat(), cached)
        worker = await stack.enter_async_context(WorkerProcess.running(setting))
        yield Bench(at, worker, ledger, client, {"worker": worker.pid, "temporal": pid} | pids)


async def measure(names: Sequence[str], loans: int, recalls: int, cached: int = CACHED) -> Report:
    """Measure with each of the stores."""
    report, taken = Report("a worker", ("what", *names)), {}
    for name in names:
        _say(f"stores: {name}")
        with tempfile.TemporaryDirectory() as folder:
            size = Size(groups=recalls, loans=max(loans, recalls))
            async with bench(Path(folder), STORES[name], size, cached) as at:
                taken[name] = await _measure(at, loans, recalls, cached)
    report.figures |= {"loans": loans, "recalls": recalls, "cached_workflows": cached}
    report.figures |= {name.replace("-", "_"): figures for name, figures in taken.items()}
    for name in taken:
        if "sqlite" in taken and name != "sqlite":
            speeds = (taken[each]["recalls_per_second"] for each in (name, "sqlite"))
            report.figures[f"recalls_{name.replace('-', '_')}_over_sqlite_ratio"] = ratio(*speeds)
    columns = [_rows(figures) for figures in taken.values()]
    for what in dict.fromkeys(what for column in columns for what in column):
        report.row(what, *(column.get(what, "") for column in columns))
    return report


async def _measure(at: Bench, loans: int, recalls: int, cached: int) -> dict[str, Any]:
    running = [each for each in at.at.facts.workloads if each.kind is Side.BORROW][:loans]
    warm = min(WARM, loans // 2)
    await at.begin(running[:warm])
    memory, seconds = [(warm, await at.worker.memory())], 0.0
    for first, last in pairwise(warm + (loans - warm) * look // LOOKS for look in range(LOOKS + 1)):
        seconds += await at.begin(running[first:last])
        memory.append((last, await at.worker.memory()))
        _say(f"{last} Loans idle, the worker holds {memory[-1][1]:.1f} MB")
    took, cores = await at.recall([group_name(number) for number in range(recalls)])
    kept = [(count, held) for count, held in memory if count <= cached]
    line = statistics.linear_regression(*zip(*kept, strict=True))
    return {
        "mb_per_1000_loans_in_memory": line.slope * 1000,
        "mb_per_1000_idle_loans": (memory[-1][1] - line.intercept) / loans * 1000,
        "mb_by_loans": memory,
        "loans_begun_per_second": (loans - warm) / seconds,
        "recalls_per_second": recalls / took,
        "cores_while_recalling": cores,
        "loan_life_events": spread([float(each) for each in await at.end()]),
    }


def _rows(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return what the table says of one pair of stores."""
    memory, events = figures["mb_by_loans"], figures["loan_life_events"]
    return {
        "MB per 1,000 idle Loans": figures["mb_per_1000_idle_loans"],
        "MB per 1,000 Loans in memory": figures["mb_per_1000_loans_in_memory"],
        **{f"MB of the worker with {loans} idle Loans": held for loans, held in (memory[0], memory[-1])},
        "Loans begun a second": figures["loans_begun_per_second"],
        "recalls a second": figures["recalls_per_second"],
        **{f"cores of {program} meanwhile": cores for program, cores in figures["cores_while_recalling"].items()},
        "events of a Loan's life, p50": events["p50"],
        "events of a Loan's life, max": events["max"],
    }


def _show(progress: Progress) -> None:
    if progress.stage is Stage.BUILDING:
        _say(f"{progress.component}: {progress.detail}")


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("What a worker costs: memory, events, recalls a second.")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES), help="where things are kept")
    parser.add_argument("--loans", type=positive, default=1000, help="Loans that idle")
    parser.add_argument("--recalls", type=positive, default=100, help="lenders that want a loan back at once")
    parser.add_argument("--cached", type=positive, default=CACHED, help="workflows that the worker keeps in memory")
    given = parser.parse_args(arguments_)
    if "postgresql" in given.stores:
        for program in (PROGRAM, SQL_TOOL):
            build(program, report=_show)
    asyncio.run(measure(given.stores, given.loans, given.recalls, given.cached)).finish(given.json)


if __name__ == "__main__":
    main()
