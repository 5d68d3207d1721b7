"""The quota port on Kueue.

    observe ◀── facts ◀── caches ◀── watches        (no call to the API server, but one per fence)
    lay_out · write_quota · stop · resume · nudge · recount ──▶ API server ──▶ the answer goes into the caches at once

How late `observe` may be: what the bank wrote it sees at once, what Kueue and others do as soon as the watch brings it
(milliseconds; `STALE` seconds at worst, then it refuses to answer). Where lateness would be dangerous it is not relied
on: before a stamp is first called fenced, the queue is read anew from the API server after the fence's wait, so that
the reservations told with it include everything that the old quota admitted (see `fences`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from gpubank.adapters.kubernetes.cache import Cache
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import JobEntry, PodEntry, WorkloadEntry
from gpubank.adapters.kubernetes.kueue.facts import PoolReader
from gpubank.adapters.kubernetes.kueue.fences import Fences
from gpubank.adapters.kubernetes.kueue.layout import LayoutWriter
from gpubank.adapters.kubernetes.kueue.order import Order
from gpubank.adapters.kubernetes.kueue.quota import Writer
from gpubank.adapters.kubernetes.kueue.settings import check_settings
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.contract import Side, cohort_name, flavor_name, queue_parts
from gpubank.domain.facts import Mark, PoolFacts
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout
from gpubank.domain.loan import WorkloadKey

FOLD: Final = 0.03
"""Seconds in which changes that follow each other are told as one."""


def _now() -> datetime:
    return datetime.now(UTC)


class KueueBackend:
    """Lends and recalls on one cluster's Kueue.

    Use it as an async context manager, or call `start` and `stop_watching`.

    The connection stays the caller's to close.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        cluster: str,
        cycle_p99: float = 0.0,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """`cycle_p99`: how long Kueue's admission cycles last, as their 99th percentile in seconds; 0 if unknown."""
        self._connection = connection
        self._cluster = cluster
        self._clock = clock
        self._view = View(connection, clock)
        self._layout = LayoutWriter(connection, self._view, clock)
        self._order = Order(connection, self._view, clock)
        self._writer = Writer(connection, self._view, self._order)
        self._fences = Fences(connection, self._view, cycle_p99)
        self._readers: dict[str, PoolReader] = {}

    def start(self) -> None:
        """Begin to watch; needs a running event loop."""
        self._fences.start()
        self._view.caches.start()

    async def stop_watching(self) -> None:
        """End every watch."""
        await self._order.end()
        await self._view.caches.stop()
        self._fences.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_watching()

    # ---- the port

    async def lay_out(self, layout: PoolLayout) -> LayoutReport:
        """Create or repair flavor and queues; see the port."""
        await self._view.caches.ready()
        return await self._layout.lay_out(layout)

    async def remove(self, pool: str) -> LayoutReport:
        """Remove what the bank made for the pool; what is in use stays and is reported."""
        await self._view.caches.ready()
        return await self._layout.remove(pool)

    async def observe(self, pool: str) -> PoolFacts:
        """Return the pool's facts from the caches; see the module for how late they may be. Raises `BackendError`."""
        await self._view.caches.ready()
        fenced = await self._fences.confirmed(pool)
        reader = self._readers.setdefault(pool, PoolReader(self._cluster, pool))
        return reader.read(self._view.seen(pool, fenced), at=self._clock())

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Set one queue's quota and stamp, whoever waits for a raise first; see the port and `order`."""
        await self._view.caches.ready()  # who waits is seen in them
        await self._writer.write_quota(pool, group, kind, nominal=nominal, revision=revision)

    async def take_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Take a queue out of the fail-safe's Cohort, with its quota and stamp; see the port."""
        await self._view.caches.ready()
        await self._writer.take_back(pool, group, kind, nominal=nominal, revision=revision)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Deactivate a Workload and mark it; see the port."""
        await self._writer.stop(pool, workload, mark, seen=seen)

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Reactivate a Workload that the mark's Loan has stopped; see the port."""
        await self._writer.resume(pool, workload, mark, seen=seen)

    async def nudge(self, pool: str, workload: WorkloadKey) -> None:
        """Have a waiting Workload considered at once, if it is among the next in its queue; best effort.

        `write_quota` does so by itself for whoever waits; this is for one that was passed over.
        """
        await self._view.caches.ready()
        entry = self._view.workloads.get(workload.name, workload.namespace)
        if entry is None or entry.uid != workload.uid or entry.reserved:
            return
        queue = self._view.queues.get(self._queue_of(entry))
        if queue is None or not queues.belongs(queue, pool) or queues.in_cohort(queue):
            return
        entries = self._order.next_in(queue, queues.nominal(queue))
        if any(each.uid == workload.uid for each in entries):
            await self._order.open(queue, entries)

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        """Have Kueue say at once what a queue has reserved; best effort."""
        await self._view.caches.ready()
        await self._writer.recount(pool, group, kind)

    async def changes(self, pool: str, about: WorkloadKey | None = None) -> AsyncGenerator[None, None]:
        """Yield when the pool's facts may have changed, a fence that was waited out included; once at the start.

        With `about` only what may concern that Workload is told: in a pool of thousands something changes all the time.
        """
        changed = asyncio.Event()
        queue = "" if about is None else self._queue_about(about)
        concerns = self._concerns if about is None else partial(self._concerns_one, about, queue)

        def hear(before: object, after: object) -> None:
            if concerns(pool, before) or concerns(pool, after):
                changed.set()

        with self._view.heard_by(hear):
            yield
            while True:
                try:
                    async with asyncio.timeout(self._fences.wait if self._fences.is_awaited(pool, queue) else None):
                        await changed.wait()
                except TimeoutError:
                    pass
                else:
                    await asyncio.sleep(FOLD)
                changed.clear()
                yield

    # ---- beyond the port

    @property
    def pods(self) -> Cache[PodEntry]:
        """Its watch of pods, for whoever reads other things off them (`Cache.beside`)."""
        return self._view.pods

    def measured(self, cycle_p99: float) -> None:
        """Take note of how long Kueue's admission cycles last, as their 99th percentile in seconds."""
        self._fences.measured(cycle_p99)

    async def check_settings(self, namespace: str | None = None) -> tuple[LayoutProblem, ...]:
        """Return which of Kueue's settings are not as the bank needs them; see `settings`."""
        return await check_settings(self._connection, self._view, namespace)

    # ---- what concerns whom

    def _concerns(self, pool: str, entry: object) -> bool:
        if isinstance(entry, WorkloadEntry):
            queue = entry.cluster_queue or self._queue_of(entry)
            parts = queue_parts(queue)
            return parts is not None and parts[1] == pool
        if isinstance(entry, dict):
            return queues.belongs(entry, pool) or entry["metadata"]["name"] in (cohort_name(pool), flavor_name(pool))
        return entry is not None  # pods, nodes and jobs are not worth telling apart

    def _concerns_one(self, about: WorkloadKey, queue: str, pool: str, entry: object) -> bool:
        """Whether a change may concern one Workload: itself, its pods and its queue; without a queue, any."""
        if isinstance(entry, WorkloadEntry):
            return entry.uid == about.uid
        if isinstance(entry, PodEntry):
            return entry.namespace == about.namespace
        if isinstance(entry, JobEntry):  # one that is suspended can have no pods any more
            return entry.suspended
        if isinstance(entry, dict):
            name = entry["metadata"]["name"]
            return name == cohort_name(pool) or (name == queue if queue else queues.belongs(entry, pool))
        return False

    def _queue_about(self, about: WorkloadKey) -> str:
        """Return the ClusterQueue that a Workload is in; empty where it is not seen."""
        entry = self._view.workloads.get(about.name, about.namespace)
        return "" if entry is None or entry.uid != about.uid else entry.cluster_queue or self._queue_of(entry)

    def _queue_of(self, entry: WorkloadEntry) -> str:
        found = self._view.local_queues.get(entry.queue, entry.namespace)
        return str(found["spec"]["clusterQueue"]) if found else ""
