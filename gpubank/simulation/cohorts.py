"""Cohorts: what the scheduler does by itself once the fail-safe has put a pool's queues into one.

A queue in a Cohort borrows what its members and the Cohort itself have and do not use, within its limit. One that
reclaims has borrowers preempted for what it is guaranteed: lowest priority first, then the newest, nobody who does
not borrow.
"""

from collections.abc import Callable
from datetime import datetime

from gpubank.domain.errors import ConflictError
from gpubank.domain.failsafe import CohortFacts, CohortQueue
from gpubank.simulation.queues import Cohort, CohortTerms, Queue, QueueBook
from gpubank.simulation.workloads import Workload

Members = Callable[[Queue], tuple[Workload, ...]]


class Cohorts:
    """Judges admissions of queues that stand in a Cohort, by the quotas in force."""

    def __init__(self, book: QueueBook, members: Members) -> None:
        self._book = book
        self._members = members

    def of(self, queue: Queue) -> tuple[Queue, ...]:
        """Return every queue that shares a Cohort with this one, itself included; nothing outside a Cohort."""
        if queue.cohort_in_force is None:
            return ()
        return tuple(other for other in self._book.of_pool(queue.pool) if other.cohort_in_force is not None)

    def borrows(self, queue: Queue, gpus: int) -> bool:
        """Whether the queue would be over its own quota with `gpus` more."""
        return self._used(queue) + gpus > queue.in_force

    def fits(self, queue: Queue, gpus: int, promised: int) -> bool:
        """Whether the Cohort has room for `gpus` more of the queue, beside what is `promised` in this cycle."""
        terms = queue.cohort_in_force
        if terms is None or self._used(queue) + gpus > queue.in_force + terms.borrowing_limit:
            return False
        used = sum(self._used(other) for other in self.of(queue))
        return used + promised + gpus <= self._quota(queue)

    def victims(self, queue: Queue, gpus: int) -> tuple[Workload, ...]:
        """Return whom the queue has preempted so that `gpus` more fit; nobody if it may not, or it does not help."""
        terms = queue.cohort_in_force
        if terms is None or not terms.reclaims or self.borrows(queue, gpus):
            return ()
        missing = sum(self._used(other) for other in self.of(queue)) + gpus - self._quota(queue)
        over = {other.name: self._used(other) - other.in_force for other in self.of(queue) if other is not queue}
        chosen: list[Workload] = []
        for workload in sorted(self._candidates(queue), key=_mildest):
            name = workload.queue.name if workload.queue is not None else ""
            if missing > 0 and over.get(name, 0) > 0:
                chosen.append(workload)
                over[name] -= workload.gpus
                missing -= workload.gpus
        return tuple(chosen) if missing <= 0 else ()

    def _candidates(self, queue: Queue) -> list[Workload]:
        others = (other for other in self.of(queue) if other is not queue)
        return [each for other in others for each in self._members(other) if each.reserved and not each.finished]

    def _used(self, queue: Queue) -> int:
        return sum(each.gpus for each in self._members(queue) if each.reserved and not each.finished)

    def _quota(self, queue: Queue) -> int:
        return self._book.cohort(queue.pool).surplus + sum(other.in_force for other in self.of(queue))


def _mildest(workload: Workload) -> tuple[int, float, str]:
    admitted = workload.admitted_at.timestamp() if workload.admitted_at is not None else 0.0
    return workload.priority, -admitted, workload.uid


class SimulatedFailSafe:
    """Implements `FailSafeBackend`: the watchdog's hand at the simulated scheduler."""

    def __init__(self, book: QueueBook, members: Members, changed: Callable[[Queue | None], None]) -> None:
        """`changed` takes a queue whose spec was written, or None for the Cohort."""
        self._book = book
        self._members = members
        self._changed = changed

    async def observe(self, pool: str) -> CohortFacts:
        """Return the pool's Cohort and its queues."""
        cohort = self._book.cohort(pool)
        return CohortFacts(
            pool=pool,
            version=str(cohort.version),
            epoch=cohort.epoch,
            last_epoch=cohort.last_epoch,
            surplus=cohort.surplus,
            queues=tuple(self._queue(queue) for queue in self._book.of_pool(pool)),
        )

    def _queue(self, queue: Queue) -> CohortQueue:
        terms = queue.cohort
        return CohortQueue(
            name=queue.name,
            group=queue.group,
            kind=queue.kind,
            version=str(queue.generation),
            nominal=queue.nominal,
            reserved=sum(each.gpus for each in self._members(queue) if each.reserved and not each.finished),
            in_cohort=terms is not None,
            borrowing_limit=terms.borrowing_limit if terms else None,
            reclaims=bool(terms and terms.reclaims),
            epoch=terms.epoch if terms else 0,
            acknowledged=queue.acknowledged >= queue.generation,
        )

    async def begin(self, pool: str, epoch: int, *, at: datetime, seen: str) -> None:
        """Write the epoch, and take the Cohort's own quota off it."""
        cohort = self._seen(pool, seen)
        cohort.epoch = cohort.last_epoch = epoch
        cohort.since = at
        cohort.surplus = 0
        self._changed(None)

    async def enter(
        self, pool: str, queue: CohortQueue, *, nominal: int, borrowing_limit: int, reclaims: bool, epoch: int
    ) -> None:
        """Put one queue into the Cohort."""
        found = self._book.queues.get(queue.name)
        if found is None or str(found.generation) != queue.version:
            raise ConflictError(f"queue {queue.name!r} has changed since it was read; read it again")
        found.nominal = nominal
        found.cohort = CohortTerms(borrowing_limit, reclaims, epoch)
        found.generation += 1
        self._changed(found)

    async def lend(self, pool: str, surplus: int, *, seen: str) -> None:
        """Set the Cohort's own quota."""
        self._seen(pool, seen).surplus = surplus
        self._changed(None)
        for queue in self._book.of_pool(pool):
            self._changed(queue)

    async def end(self, pool: str, epoch: int, *, seen: str) -> None:
        """Clear the epoch."""
        cohort = self._seen(pool, seen)
        if cohort.epoch != epoch:
            raise ConflictError(f"pool {pool!r} is in epoch {cohort.epoch}, not {epoch}; read it again")
        cohort.epoch = 0
        self._changed(None)

    def _seen(self, pool: str, seen: str) -> Cohort:
        cohort = self._book.cohort(pool)
        if str(cohort.version) != seen:
            raise ConflictError(f"Cohort of pool {pool!r} has changed since version {seen!r}; read it again")
        cohort.version += 1
        return cohort
