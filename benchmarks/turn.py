"""One round of a pool's loop: 1,000 groups and 10,000 Workloads, 20 new ones a second, of which 5 become loans.

    python -m benchmarks.turn [--groups 1000] [--workloads 10000] [--seconds 10] [--json FILE]

The Kueue backend on a cluster on paper, a ledger on SQLite, decisions, and processes that only listen. A round
sees, decides, commits, writes and tells once. `processor` is the time that the process computed meanwhile, the
traffic's own part included; `busy` is the share of one core that all of it takes at this rate.
"""

import asyncio
import contextlib
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.paper_cluster import PaperCluster
from benchmarks.report import Report, arguments, positive, spread
from benchmarks.worlds import CLUSTER, POOL, SIZE, Size, World, group_name, workload, world
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.ledger import SqlLedger
from gpubank.controller.main import COLLECTOR
from gpubank.controller.pool_loop import PoolLoop
from gpubank.controller.words import Words
from gpubank.decide.step import LenderNeeds, LoanSignal
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import LineState, WorkloadKey
from gpubank.domain.transaction import CapacityChange, GuaranteeChange, Move, Offer, Transaction
from gpubank.ports import Processes

LOANS_PER_SECOND = 5
OWN_PER_SECOND = 15


class Listeners:
    """Processes and owners that take note and do nothing."""

    def __init__(self) -> None:
        self.heard = 0

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        self.heard += 1

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        self.heard += 1

    async def notify(self, *, key: str, pool: str, workload: WorkloadKey, reason: str, message: str) -> None:
        self.heard += 1


async def found(ledger: SqlLedger, books: Books) -> Books:
    """Write the books of a world into a ledger, as if they had come about there."""
    at = books.lines[0].offered_at
    head: dict[str, Any] = {"cluster": CLUSTER, "pool": POOL, "at": at, "actor": "bench"}
    grants = tuple(GuaranteeChange(group=g.group, version=0, in_force=g.in_force) for g in books.guarantees)
    capacity = CapacityChange(capacity=books.capacity)
    await ledger.commit(Transaction(key="founding", capacity=capacity, guarantees=grants, **head))
    in_order = sorted(books.lines, key=lambda line: int(line.line_id.rpartition("-")[2]))
    offers = tuple(
        Offer(lender=x.lender, borrower=x.borrower, gpus=x.gpus, workload=x.workload, term=1) for x in in_order
    )
    written = await ledger.commit(Transaction(key="offers", offers=offers, **head))
    moves = tuple(
        Move(line_id=x.line_id, version=x.version, from_state=x.state, to_state=LineState.GRANTED)
        for x in written.lines
    )
    return await ledger.commit(Transaction(key="grants", moves=moves, **head))


class Traffic:
    """New Workloads, and the admission of those that have quota."""

    def __init__(self, cluster: PaperCluster, at: World) -> None:
        self._cluster, self._groups = cluster, len(at.terms.groups)
        self._nodes = itertools.cycle(node.name for node in at.facts.nodes if node.used + SIZE <= node.gpus)
        self._numbers = itertools.count()
        self._asking: list[WorkloadFacts] = []
        self.admitted: list[float] = []
        """Seconds that each loan took, from submission to the quota."""

        self._submitted: dict[str, float] = {}

    def submit(self, side: Side) -> None:
        """Submit one job."""
        number = next(self._numbers)
        group = group_name(number * 7 % self._groups)
        now = datetime.now(UTC)
        asks = SIZE if side is Side.BORROW else 100 * SIZE
        job = workload(f"new-{number:06d}", group, side, asks)
        job = job.model_copy(update={"created_at": now, "waiting_since": now})
        self._cluster.add(job)
        if side is Side.BORROW:
            self._asking.append(job)
            self._submitted[job.key.uid] = time.monotonic()

    def admit(self) -> None:
        """Admit whom the quota lets in, one of a group at a time."""
        left = []
        for job in self._asking:
            used = self._used.get(job.group, 0)
            if self._cluster.nominal(job.group, Side.BORROW) - used >= job.gpus:
                self._used[job.group] = used + job.gpus
                self._cluster.admit(job, next(self._nodes), datetime.now(UTC))
                self.admitted.append(time.monotonic() - self._submitted[job.key.uid])
            else:
                left.append(job)
        self._asking = left

    _used: dict[str, int]

    def begin(self, reserved: dict[str, int]) -> None:
        """Take note of what every borrow queue holds at the start."""
        self._used = reserved


async def measure(groups: int, workloads: int, seconds: int) -> Report:
    """Run the loop under traffic."""
    at = world(
        Size(groups=groups, loans=workloads * 2 // 5, own=workloads * 2 // 5, waiting=workloads // 5, slack=2 * SIZE),
        datetime.now(UTC),
    )
    report = Report("rounds of a pool's loop", ("what", "p50", "p95", "max"))
    with tempfile.TemporaryDirectory() as folder:
        async with await SqlLedger.open(f"sqlite:///{Path(folder) / 'ledger.db'}") as ledger:
            await found(ledger, at.books)
            cluster = PaperCluster(at)
            await _run(report, at, cluster, ledger, seconds)
    return report


async def _run(report: Report, at: World, cluster: PaperCluster, ledger: SqlLedger, seconds: int) -> None:
    listeners, traffic = Listeners(), Traffic(cluster, at)
    traffic.begin({q.group: q.reserved for q in at.facts.queues if q.kind is Side.BORROW})
    terms = at.terms.model_copy(update={"resume_after": timedelta(0)})
    connection: Any = cluster
    async with Timed(connection, cluster=CLUSTER) as backend:
        loop = PoolLoop(
            CLUSTER,
            POOL,
            backend=backend,
            ledger=ledger,
            processes=listeners,
            notifier=listeners,
            terms=lambda: terms,
            now=lambda: datetime.now(UTC),
        )
        loop._words = words = TimedWords(backend, listeners, loop.poke)
        before = time.perf_counter()
        while not await loop.turn():  # until it is at rest
            pass
        report.row("first turns, ms", (time.perf_counter() - before) * 1000, "", "")
        words.rounds.clear()
        cpu, begun, requests, heard = time.process_time(), time.monotonic(), cluster.requests, listeners.heard
        task = asyncio.create_task(loop.run())
        for _ in range(seconds):
            for number in range(LOANS_PER_SECOND + OWN_PER_SECOND):
                traffic.submit(Side.BORROW if number % 4 == 0 else Side.OWN)
                await asyncio.sleep(1 / (LOANS_PER_SECOND + OWN_PER_SECOND))
                traffic.admit()
        cpu, wall = time.process_time() - cpu, time.monotonic() - begun
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    _tell(report, "round, ms", "round_ms", [each.seconds * 1000 for each in words.rounds])
    _tell(report, "round, processor ms", "round_cpu_ms", [each.cpu * 1000 for each in words.rounds])
    _tell(report, "submitted to quota, ms", "lend_ms", [each * 1000 for each in traffic.admitted])
    report.row("rounds a second", len(words.rounds) / wall, "", "")
    report.row("busy, cores", cpu / wall, "", "")
    report.row("requests a second", (cluster.requests - requests) / wall, "", "")
    report.figures |= {
        "groups": len(at.terms.groups),
        "workloads": len(at.facts.workloads),
        "busy_cores": cpu / wall,
        "requests_per_second": (cluster.requests - requests) / wall,
        "loans_granted": len(traffic.admitted),
        "signals": listeners.heard - heard,
    }


class Round(NamedTuple):
    """How long one round took."""

    seconds: float
    cpu: float
    """Seconds of processor time of the whole process."""


class Timed(KueueBackend):
    """Kueue's backend, and when the loop has looked at it last."""

    begun = Round(0.0, 0.0)

    async def observe(self, pool: str) -> PoolFacts:
        self.begun = Round(time.perf_counter(), time.process_time())
        return await super().observe(pool)


class TimedWords(Words):
    """Words of the loop, which end its round: from the look at the cluster until everybody is told."""

    def __init__(self, backend: Timed, processes: Processes, wake: Callable[[], None]) -> None:
        super().__init__(CLUSTER, POOL, processes, first_pause=timedelta(seconds=15), wake=wake)
        self._backend = backend
        self.rounds: list[Round] = []

    async def tell(self, signals: Sequence[LoanSignal], needs: Sequence[LenderNeeds], now: datetime) -> None:
        await super().tell(signals, needs, now)
        begun = self._backend.begun
        self.rounds.append(Round(time.perf_counter() - begun.seconds, time.process_time() - begun.cpu))


def _tell(report: Report, title: str, name: str, values: Sequence[float]) -> None:
    found = spread(values)
    report.row(title, found["p50"], found["p95"], found["max"])
    report.figures[name] = found


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("What a turn of a pool's loop costs.")
    parser.add_argument("--groups", type=positive, default=1000, help="business groups of the pool")
    parser.add_argument("--workloads", type=positive, default=10_000, help="Workloads that are there already")
    parser.add_argument("--seconds", type=positive, default=10, help="how long traffic lasts")
    given = parser.parse_args(arguments_)
    gc.set_threshold(*COLLECTOR)  # as the controller's process does
    asyncio.run(measure(given.groups, given.workloads, given.seconds)).finish(given.json)


if __name__ == "__main__":
    main()
