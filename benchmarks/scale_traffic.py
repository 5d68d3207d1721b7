"""New work at a steady rate, and what becomes of it: seen by one watch of all Workloads.

every so many-th  borrows           runs for a while once it has a loan
every so many-th  demands           own work of a lender whose GPUs are lent: somebody must be recalled
the rest          own, short        of busy groups, comes in at once
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from benchmarks.scale_pool import CLUSTER, HEADROOM, POOL, SLOT, Plan, Role, job, own_work
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import WatchExpiredError
from gpubank.adapters.kubernetes.kinds import JOB, WORKLOAD, Object
from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.contract import Side
from gpubank.domain.demand import LIVE
from gpubank.domain.errors import BackendError
from gpubank.domain.loan import LineState

OWN_SECONDS: Final = 15.0
"""How long a short own job runs at most; less where so many would not fit."""

DEMAND_SECONDS: Final = 10.0
"""How long an owner keeps what it got back."""

BETWEEN_LOANS: Final = 3.0
"""Seconds that GPUs lie between two loans: the end is seen, the next loan is offered, fenced and admitted."""

BOOKS_EVERY: Final = 1.0
LAG_EVERY: Final = 0.05


@dataclass
class Sighting:
    """One Workload, as the watch told of it; times are of this machine's clock, in seconds since the epoch."""

    uid: str
    created: float
    word: float | None = None
    """When Kueue first said anything of it, be it that there is not enough quota."""

    reserved: float | None = None
    finished: bool = False


class Sight:
    """Watches all Workloads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.by_job: dict[str, Sighting] = {}
        self.holding: dict[str, int] = {}
        """Workloads that hold quota, by the first part of their job's name."""

        self._holders: dict[str, set[str]] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        _, version, _ = await self._connection.page(WORKLOAD, selectors={"limit": "1"})
        while True:
            try:
                watch = self._connection.watch(WORKLOAD, version=version, selectors={})
                async with aclosing(watch) as events:
                    async for change, body in events:
                        version = body["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            self.take(change, body)
            except WatchExpiredError:
                _, version, _ = await self._connection.page(WORKLOAD, selectors={"limit": "1"})
            except BackendError:
                await asyncio.sleep(1)

    def take(self, change: str, body: Object) -> None:
        """Take down what the watch tells."""
        now = time.time()
        owners = body["metadata"].get("ownerReferences") or (body["metadata"],)
        name, conditions = owners[0]["name"], (body.get("status") or {}).get("conditions") or ()
        said = {each["type"]: each["status"] == "True" for each in conditions}
        seen = self.by_job.setdefault(name, Sighting(body["metadata"]["uid"], now))
        if said and seen.word is None:
            seen.word = now
        held = said.get("QuotaReserved", False) and not said.get("Finished", False) and change != "DELETED"
        if held and seen.reserved is None:
            seen.reserved = now
        seen.finished = seen.finished or said.get("Finished", False)
        self._count(name, held)

    def _count(self, name: str, held: bool) -> None:
        kind = name.partition("-")[0]
        holders = self._holders.setdefault(kind, set())
        (holders.add if held else holders.discard)(name)
        self.holding[kind] = len(holders)


@dataclass
class Ledgered:
    """What the books say, read once a second."""

    ledger: SqlLedger
    opened: dict[str, datetime] = field(default_factory=dict)
    """When the demand of a Workload was opened, by uid."""

    lending: tuple[str, ...] = ()
    """Lenders of granted loans to others that have no demand."""

    live: int = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(BOOKS_EVERY)

    async def read(self) -> None:
        """Read once."""
        books = await self.ledger.books(CLUSTER, POOL)
        live = [demand for demand in books.demands if demand.state in LIVE]
        for demand in books.demands:
            if demand.workload is not None:
                self.opened.setdefault(demand.workload.uid, demand.opened_at)
        asking = {demand.lender for demand in live}
        lent = {line.lender for line in books.lines if line.state is LineState.GRANTED and not line.is_self_loan}
        self.live, self.lending = len(live), tuple(sorted(lent - asking))


@dataclass(frozen=True)
class Mix:
    """What new work consists of."""

    rate: float
    """New Workloads a second."""

    loans: float
    """Share that borrows."""

    recalls: float
    """Share that is own work of a lender whose GPUs are lent."""


@dataclass
class Sent:
    """What was submitted in one step."""

    demands: dict[str, str] = field(default_factory=dict)
    """Lender by job."""

    borrowing: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    refused: int = 0
    late: list[float] = field(default_factory=list)
    """Seconds that the event loop came late, looked at all the time: how far off every time here may be."""


class Traffic:
    """Submits."""

    def __init__(self, connection: Connection, plan: Plan, books: Ledgered) -> None:
        self._connection, self._plan, self._books = connection, plan, books
        self._names = itertools.count()
        self._borrowers = itertools.cycle(plan.of_role(Role.BORROWER))
        self._busy = itertools.cycle(plan.of_role(Role.BUSY))
        self._asked: dict[str, float] = {}
        self._ending = set[asyncio.Task[None]]()

    def loan(self, kind: str, seconds: float | None) -> Object:
        """Return a job that only a loan starts."""
        return job(next(self._borrowers), f"{kind}-{next(self._names)}", Side.BORROW, SLOT, seconds=seconds)

    def life(self, mix: Mix) -> float:
        """Seconds that a loan runs, so that as many end as are asked for."""
        return max(self._plan.churning / (mix.rate * mix.loans) - BETWEEN_LOANS, 2.0)

    def standing(self, mix: Mix) -> Iterable[Object]:
        """Yield work for every loan that fits, and some that waits; those that end do so one after the other."""
        for _ in range(self._plan.standing_loans):
            yield self.loan("standing", None)
        life, churning = self.life(mix), self._plan.churning
        for number in range(churning + max(churning // 5, 2)):
            yield self.loan("churning", life * (number % churning + 1) / churning)

    async def run(self, mix: Mix, seconds: float) -> Sent:
        """Submit for so many seconds, each job when its time has come, whether those before are stored or not."""
        sent, tasks = Sent(), set[asyncio.Task[None]]()
        lag = asyncio.create_task(_lag(sent.late))
        begun, loans, recalls = time.monotonic(), 0.0, 0.0
        for number in range(round(mix.rate * seconds)):
            await asyncio.sleep(max(begun + number / mix.rate - time.monotonic(), 0))
            loans, recalls = loans + mix.loans, recalls + mix.recalls
            if loans >= 1:
                loans -= 1
                body = self.loan("borrow", self.life(mix))
                sent.borrowing.append(body["metadata"]["name"])
            elif recalls >= 1 and (lender := self._lender()):
                recalls -= 1
                body = job(lender, f"demand-{next(self._names)}", Side.OWN, SLOT, seconds=DEMAND_SECONDS)
                sent.demands[body["metadata"]["name"]] = lender
            else:
                body = own_work(next(self._busy), f"short-{next(self._names)}")
                sent.own.append(body["metadata"]["name"])
            tasks.add(task := asyncio.create_task(self._submit(body, sent, mix)))
            task.add_done_callback(tasks.discard)
        lag.cancel()
        await asyncio.gather(*tasks)
        return sent

    def _lender(self) -> str | None:
        """Return the lender that has not demanded for longest, of those whose GPUs are lent now."""
        ready = [name for name in self._books.lending if time.monotonic() - self._asked.get(name, 0) > DEMAND_SECONDS]
        if not ready:
            return None
        found = min(ready, key=lambda name: (self._asked.get(name, 0), name))
        self._asked[found] = time.monotonic()
        return found

    def _short(self, mix: Mix) -> float:
        room = HEADROOM * len(self._plan.of_role(Role.BUSY)) / 2
        return min(OWN_SECONDS, room / (mix.rate * (1 - mix.loans - mix.recalls)))

    async def _submit(self, body: Object, sent: Sent, mix: Mix) -> None:
        kind = WORKLOAD if body["kind"] == WORKLOAD.name else JOB
        try:
            await self._connection.create(kind, body)
        except BackendError:
            sent.refused += 1
            return
        if kind is WORKLOAD:
            self._ending.add(task := asyncio.create_task(self._end(body["metadata"], self._short(mix))))
            task.add_done_callback(self._ending.discard)

    async def _end(self, metadata: Object, seconds: float) -> None:
        """Delete a Workload without a Job when its time is over."""
        await asyncio.sleep(seconds)
        with contextlib.suppress(BackendError):
            await self._connection.delete(WORKLOAD, metadata["name"], metadata["namespace"])


async def _lag(late: list[float]) -> None:
    while True:
        begun = time.monotonic()
        await asyncio.sleep(LAG_EVERY)
        late.append(time.monotonic() - begun - LAG_EVERY)


@dataclass(frozen=True)
class Demanded:
    """One demand, in seconds."""

    word: float
    """From the Workload's creation to Kueue's first word about it."""

    opened: float | None
    """To the demand in the books."""

    started: float
    """To the start of a Reclaim."""

    admitted: float | None


class Span(NamedTuple):
    """When a Reclaim began, and when it ended; infinity while it runs. Seconds since the epoch."""

    begin: float
    end: float


class Outcome(NamedTuple):
    """What became of the demands of one step."""

    met: list[Demanded]
    """Those for which a Reclaim was started."""

    spared: int
    """Came in without a demand in the books: the GPUs had just come back."""

    joined: int
    """Served by a Reclaim of their lender that ran already, for an earlier demand; when it heard is not known."""

    unheard: int
    """Kueue has said nothing about their Workloads, or has made none, by the end; those that were refused included."""

    forgotten: int
    """Kueue has said something of them, and there is no Reclaim."""


def outcome(sent: Sent, sight: Sight, books: Ledgered, reclaims: Mapping[str, Sequence[Span]]) -> Outcome:
    """Return what became of every demand; `reclaims` says when Reclaims ran, by lender."""
    found, spared, joined, unheard, forgotten = [], 0, 0, 0, 0
    for name, lender in sent.demands.items():
        seen, ran = sight.by_job.get(name), reclaims.get(lender, ())
        begun = None if seen is None else min((each.begin for each in ran if each.begin >= seen.created), default=None)
        if seen is None or seen.word is None or begun is None:
            opened = books.opened.get(seen.uid) if seen is not None else None
            if seen is not None and seen.reserved is not None and opened is None:
                spared += 1
            elif opened is not None and any(each.begin < opened.timestamp() < each.end for each in ran):
                joined += 1
            elif seen is None or seen.word is None:
                unheard += 1
            else:
                forgotten += 1
            continue
        opened = books.opened.get(seen.uid)
        found.append(
            Demanded(
                word=seen.word - seen.created,
                opened=opened.timestamp() - seen.created if opened else None,
                started=begun - seen.created,
                admitted=seen.reserved - seen.created if seen.reserved else None,
            )
        )
    return Outcome(found, spared, joined, unheard, forgotten)
