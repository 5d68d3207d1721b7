"""The controller of one cluster: agreements become queues and loops, and what came of it becomes status.

The same code drives a real cluster and the simulation; only the ports differ. On a cluster one replica leads.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from gpubank.agreements import LEASE, Agreements, Model, ObjectReader, Objects
from gpubank.controller.observer import Observer
from gpubank.controller.pool_loop import PoolLoop
from gpubank.controller.status import FinalizerWrite, PoolView, StatusWrite, finalizers, statuses
from gpubank.controller.together import side_by_side
from gpubank.decide.agreement import Agreement
from gpubank.domain.books import Books
from gpubank.domain.errors import BackendError, BankError, ConflictError, InvalidObjectError, LedgerError
from gpubank.domain.layout import LayoutProblem, LayoutReport
from gpubank.domain.pool import Backend
from gpubank.domain.terms import PoolTerms
from gpubank.ports import Heartbeats, Leases, LedgerStore, Notifier, ObjectStore, Processes, QuotaBackend

log = logging.getLogger(__name__)

SETTINGS_EVERY = timedelta(minutes=1)
"""How old the last look at the scheduler's settings may be."""

HEARTBEATS_EVERY = 30
"""Seconds between two looks at whether every pool's heartbeat runs: one may have been terminated."""

MIN_PAUSE, MAX_PAUSE = timedelta(milliseconds=250), timedelta(seconds=2)
"""Least time between two looks at the objects; a burst of edits is one look."""

REST = 3
"""Times as long as a look took that the next one waits, up to `MAX_PAUSE`: with a thousand groups a look is work, what
it writes is a change like any other, and the pools' loops share the processor with it."""


class Controller:
    """Reconciles all pools of one cluster."""

    def __init__(
        self,
        cluster: str,
        *,
        objects: ObjectStore,
        backends: dict[Backend, QuotaBackend],
        ledger: LedgerStore,
        processes: Processes,
        notifier: Notifier,
        now: Callable[[], datetime],
        heartbeats: Heartbeats | None = None,
        leases: Leases | None = None,
        observer: Observer | None = None,
        resync: timedelta = timedelta(seconds=15),
        reader: ObjectReader | None = None,
    ) -> None:
        """Without `heartbeats` and `leases` the controller gives no sign of life, as where nobody watches it.

        `reader` lists what `objects` holds, at less cost where there is such a way.
        """
        self.cluster = cluster
        self._heartbeats, self._leases, self._observer = heartbeats, leases, observer
        self._objects, self._backends, self._ledger = objects, backends, ledger
        self._processes, self._notifier, self._now, self._resync = processes, notifier, now, resync
        self._agreements = Agreements(cluster, reader or objects, clock=now)
        self._agreement: Agreement | None = None
        self._loops: dict[str, tuple[PoolLoop, asyncio.Task[None]]] = {}
        self._reports: dict[str, LayoutReport] = {}
        self._written: dict[tuple[str, str, str], datetime] = {}
        """When statuses that may wait were written last."""

        self._checked: dict[int, tuple[datetime, tuple[LayoutProblem, ...]]] = {}

    def terms(self, pool: str) -> PoolTerms | None:
        """The pool's terms as last read."""
        return self._agreement.terms.get(pool) if self._agreement else None

    async def run(self) -> None:
        """Reconcile until cancelled, on every change of an object and after every resync."""
        changed = asyncio.Event()
        beside = [asyncio.create_task(each) for each in (self._watch(changed), self._post(), self._keep_beating())]
        try:
            while True:
                changed.clear()
                problem, began = "", time.monotonic()
                for task in beside:
                    if task.done():
                        await task  # raises what ended it: a controller that posts nothing or does not beat is none
                try:
                    await self.reconcile()
                except (BankError, OSError) as error:
                    problem = str(error)
                    log.warning("reconcile failed: %s", problem)
                if self._observer is not None:
                    self._observer.reconciled(problem)
                took = timedelta(seconds=time.monotonic() - began)
                with contextlib.suppress(TimeoutError):
                    # No wait_for: before Python 3.12 it swallows a cancellation that comes with a change, and a
                    # controller that has lost the lead would go on.
                    async with asyncio.timeout(min(self._resync.total_seconds(), 2)):
                        await changed.wait()
                await asyncio.sleep(min(max(REST * took, MIN_PAUSE), MAX_PAUSE).total_seconds())
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self.stop()

    async def stop(self) -> None:
        """Stop every pool's loop."""
        await self._stop_loops(set())

    async def _watch(self, changed: asyncio.Event) -> None:
        while True:
            try:
                async for _ in self._objects.changes():
                    changed.set()
            except BackendError as error:
                log.warning("watch of the bank's objects failed: %s", error)
            await asyncio.sleep(1)

    async def _post(self) -> None:
        """Post what is due in the ledger: at every full hour and after an outage, and soon after a line's end."""
        while True:
            try:
                await self._ledger.post(until=self._now())
            except BankError as error:
                level = logging.ERROR if isinstance(error, LedgerError) else logging.WARNING
                log.log(level, "posting failed: %s", error)
                if self._observer is not None:
                    self._observer.posting_failed()
            await asyncio.sleep(60)

    async def _keep_beating(self) -> None:
        """See that every pool's heartbeat runs, and that those of removed pools end; never in reconcile's way."""
        beating: set[str] = set()
        while self._heartbeats is not None:
            wanted = set(self._loops)
            try:
                await self._heartbeats.start_sweeps(self.cluster)
            except BankError as error:
                log.warning("sweeps of cluster %s: %s", self.cluster, error)
            for pool in sorted(wanted | beating):
                try:
                    if pool in wanted:
                        await self._heartbeats.start_heartbeat(self.cluster, pool)
                        beating.add(pool)
                    else:
                        await self._heartbeats.end_heartbeat(self.cluster, pool)
                        beating.discard(pool)
                except BankError as error:  # Temporal is away, or has no such namespace
                    log.warning("pool %s: heartbeat: %s", pool, error)
            await asyncio.sleep(HEARTBEATS_EVERY if wanted else 1)

    async def reconcile(self) -> None:
        """One look: lay out what is agreed, keep the loops running, write status and finalizers."""
        objects, agreed = await self._agreements.read()
        for unreadable in objects.unreadable:
            await self._objects.event(unreadable.body, reason="Invalid", message=unreadable.message, warning=True)
        before, self._agreement = self._agreement, agreed
        views: dict[str, PoolView] = {}
        for pool in objects.pools:
            books = await self._ledger.books(self.cluster, pool.name)
            report, problem = await self._lay_out(pool.name, self._backends.get(pool.spec.backend), books)
            loop = self._loop(pool.name, pool.spec.backend)
            views[pool.name] = PoolView(books, loop.facts if loop else None, report, problem or self._problem(loop))
            if loop and (before is None or before.terms.get(pool.name) != self._agreement.terms[pool.name]):
                loop.poke()
        await self._stop_loops({pool.name for pool in objects.pools})
        held = finalizers(objects, views)
        for write in (each for each in held if each.remove_pool):
            await self._finalize(write, objects)
        await side_by_side(self._finalize(write, objects) for write in held if not write.remove_pool)
        # Finalizers have just been written, which is no news: statuses are written over them.
        known: dict[tuple[str, str, str], Model] = {
            (each.kind, each.name, each.namespace): each for each in (await self._agreements.read())[0].all
        }
        news = statuses(objects, agreed, views, self._now())
        await side_by_side(
            self._write_status(write, known.get((write.kind, write.name, write.namespace or ""))) for write in news
        )

    def _problem(self, loop: PoolLoop | None) -> str:
        return loop.problem if loop else ""

    async def _lay_out(self, pool: str, backend: QuotaBackend | None, books: Books) -> tuple[LayoutReport, str]:
        assert self._agreement is not None
        if backend is None:
            return (
                LayoutReport(),
                f"pool {pool!r} names a backend that this controller does not have; change spec.backend",
            )
        try:
            report = await backend.lay_out(self._agreement.layout(pool, _busy_groups(books)))
            report = report.model_copy(update={"problems": (*report.problems, *await self._settings(backend))})
        except BackendError as error:
            return self._reports.get(pool, LayoutReport()), str(error)
        if report.changed:
            log.info("pool %s: laid out %s", pool, ", ".join(report.changed))
            if loop := self._loops.get(pool):
                loop[0].poke()
        self._reports[pool] = report
        return report, ""

    async def _settings(self, backend: QuotaBackend) -> Sequence[LayoutProblem]:
        """Problems of the scheduler's settings, looked up once a minute: they change with its deployment."""
        now = self._now()
        known = self._checked.get(id(backend))
        if known is None or now - known[0] > SETTINGS_EVERY:
            known = self._checked[id(backend)] = (now, tuple(await backend.check_settings()))
        return known[1]

    def _loop(self, pool: str, kind: Backend) -> PoolLoop | None:
        """Return the pool's loop, started where it is missing or has died."""
        backend = self._backends.get(kind)
        if backend is None:
            return None
        running = self._loops.get(pool)
        if running is not None and not running[1].done():
            return running[0]
        if running is not None and (error := running[1].exception()) is not None:
            log.error("pool %s: loop died: %s", pool, error, exc_info=error)
        loop = PoolLoop(
            self.cluster,
            pool,
            backend=backend,
            ledger=self._ledger,
            processes=self._processes,
            notifier=self._notifier,
            terms=lambda: self.terms(pool),
            now=self._now,
            leases=self._leases,
            observer=self._observer,
            resync=self._resync,
        )
        self._loops[pool] = (loop, asyncio.create_task(loop.run(), name=f"pool {pool}"))
        return loop

    async def _stop_loops(self, keep: set[str]) -> None:
        for pool in [pool for pool in self._loops if pool not in keep]:
            _, task = self._loops.pop(pool)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._observer is not None:
                self._observer.gone(pool)

    async def _finalize(self, write: FinalizerWrite, objects: Objects) -> None:
        if write.remove_pool:
            backend = next((self._backends.get(p.spec.backend) for p in objects.pools if p.name == write.name), None)
            if backend is not None and (report := await backend.remove(write.name)).problems:
                # A queue with a quota in force or with work keeps the pool; its loop goes on, and lowers the quota.
                self._reports[write.name] = report
                return
            await self._stop_loops({pool.name for pool in objects.pools} - {write.name})
        await self._objects.set_finalizer(write.kind, write.name, write.namespace, held=write.held)

    def _is_due(self, write: StatusWrite) -> bool:
        """Whether the last status of the object was written long enough ago; it is taken for written from now on."""
        key, now = (write.kind, write.name, write.namespace or ""), self._now()
        if (last := self._written.get(key)) is not None and timedelta() <= now - last < write.pause:
            return False
        self._written[key] = now
        return True

    async def _write_status(self, write: StatusWrite, known: Model | None) -> None:
        if known is None:
            return  # it is gone
        if write.pause and not self._is_due(write):
            return  # a later look writes what is true then
        # An approval of a lease that came meanwhile is not overwritten.
        seen = write.seen if write.kind == LEASE else known.metadata.resource_version
        if write.note is not None:
            await self._ledger.note(**write.note._asdict())
        try:
            await self._objects.patch_status(write.kind, write.name, write.namespace, write.status, seen=seen)
        except ConflictError:
            return  # the next look judges the object as it is then
        except InvalidObjectError as error:
            # An older CRD or somebody's admission policy does not take it: nobody else's status waits for that.
            log.error("%s", error)
            return
        for reason, message, warning in write.events:
            await self._objects.event(known.to_wire(), reason=reason, message=message, warning=warning)


def _busy_groups(books: Books) -> Sequence[str]:
    """Groups that need their queues whatever the policies say: something is in force for them, or on loan."""
    lines = {group for line in books.lines for group in (line.lender, line.borrower)}
    return [group for group in books.groups if group in lines or books.guarantee(group).in_force]
