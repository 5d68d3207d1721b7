"""Writes to Kueue: quotas and the `active` of Workloads, each one compare-and-set against what was read.

The fail-safe outranks the bank: once the watchdog has written its epoch on the pool's Cohort, nothing here writes.
Cohort and queue are read at the same time. If the epoch came after that read, so will the watchdog's own edit of the
queue, which overwrites ours or makes ours fail; if the queue was read after that edit, it stands in the Cohort.
"""

import asyncio
from collections.abc import Callable

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, COHORT, WORKLOAD, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import read_mark, write_mark
from gpubank.adapters.kubernetes.kueue.order import Order
from gpubank.domain.contract import MARK_ANNOTATION, REVISION_ANNOTATION, Side, cohort_name
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import Mark
from gpubank.domain.loan import WorkloadKey

Absorb = Callable[[Kind, Object], None]
"""Takes what the server answered to a write into the caches."""


class Writer:
    """Writes quotas, stops and resumes."""

    def __init__(self, connection: Connection, absorb: Absorb, order: Order) -> None:
        self._connection = connection
        self._absorb = absorb
        self._order = order

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Set a queue's quota and stamp, as the port says; whoever waited for a raise comes in first."""
        name = queues.QUEUE_NAMES[kind](group, pool)
        body = await self._read(pool, name, revision)
        if nominal > queues.nominal(body) and (entries := self._order.next_in(body, nominal)):
            await self._order.open(body, entries)
            body = await self._read(pool, name, revision)
        try:
            await self._set(pool, body, nominal, revision)
        except ConflictError:
            # Kueue writes its status all the time: once more, with everything read and checked anew.
            await self._set(pool, await self._read(pool, name, revision), nominal, revision)

    async def _read(self, pool: str, name: str, revision: int) -> Object:
        """Return the queue; raise unless a quota of `revision` may be written to it."""
        cohort, body = await asyncio.gather(
            self._connection.get(COHORT, cohort_name(pool)), self._connection.get(CLUSTER_QUEUE, name)
        )
        _refuse_in_fail_safe(pool, cohort)
        if body is None or not queues.belongs(body, pool):
            raise BackendError(f"ClusterQueue {name!r} is not there or not the bank's; lay the pool out first")
        if queues.in_cohort(body):
            fact = f"ClusterQueue {name!r} stands in Cohort {body['spec']['cohortName']!r}"
            raise ConflictError(f"{fact}; the bank leaves it alone until the fail-safe ends")
        if (stamp := queues.stamp(body)) > revision:
            fact = f"ClusterQueue {name!r} bears revision {stamp}, later than {revision}"
            raise ConflictError(f"{fact}; compute again")
        return body

    async def _set(self, pool: str, body: Object, nominal: int, revision: int) -> None:
        if (queues.nominal(body), queues.stamp(body)) == (nominal, revision):
            self._absorb(CLUSTER_QUEUE, body)
            return
        change = {
            "metadata": {"annotations": {REVISION_ANNOTATION: str(revision)}},
            "spec": {"resourceGroups": queues.resource_groups(pool, queues.resource_of(body), nominal)},
        }
        metadata = body["metadata"]
        written = await self._connection.patch(
            CLUSTER_QUEUE, metadata["name"], None, change, version=metadata["resourceVersion"]
        )
        self._absorb(CLUSTER_QUEUE, written)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Deactivate and mark a Workload; see the port."""
        await self._refuse_in_fail_safe(pool)
        if await self._change(workload, mark, seen, active=False):
            return
        body = await self._find(workload)
        if body is None or (read_mark(body["metadata"].get("annotations") or {}) == mark and not _active(body)):
            return
        raise _moved_on(workload, seen)

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Reactivate a Workload that this Loan has stopped, and mark it; see the port."""
        body, _ = await asyncio.gather(self._find(workload), self._refuse_in_fail_safe(pool))
        if body is None:
            return
        before = read_mark(body["metadata"].get("annotations") or {})
        if before == mark and _active(body):
            return
        if before is None or (before.loan, before.step) != (mark.loan, "stop"):
            fact = f"bears the mark of {before.loan!r}, step {before.step!r}" if before else "bears no mark"
            raise ConflictError(f"{_named(workload)} {fact}; only what {mark.loan!r} has stopped is resumed by it")
        if cause := _deactivated_by_kueue(body):
            raise ConflictError(f"{_named(workload)} was deactivated by Kueue itself ({cause}); it stays so")
        if body["metadata"]["resourceVersion"] != seen or not await self._change(workload, mark, seen, active=True):
            raise _moved_on(workload, seen)

    async def _change(self, workload: WorkloadKey, mark: Mark, seen: str, *, active: bool) -> bool:
        """Write `active` and mark in one patch; False where the Workload is gone or moved on."""
        change = {"metadata": {"annotations": {MARK_ANNOTATION: write_mark(mark)}}, "spec": {"active": active}}
        try:
            written = await self._connection.patch(WORKLOAD, workload.name, workload.namespace, change, version=seen)
        except (ConflictError, ApiNotFoundError):
            return False
        self._absorb(WORKLOAD, written)
        return True

    async def _find(self, workload: WorkloadKey) -> Object | None:
        """Return the Workload, or None when it is gone; another one of its name is not it."""
        body = await self._connection.get(WORKLOAD, workload.name, workload.namespace)
        return body if body is not None and body["metadata"]["uid"] == workload.uid else None

    async def _refuse_in_fail_safe(self, pool: str) -> None:
        _refuse_in_fail_safe(pool, await self._connection.get(COHORT, cohort_name(pool)))


def _refuse_in_fail_safe(pool: str, cohort: Object | None) -> None:
    if epoch := queues.fail_safe_epoch(cohort):
        raise ConflictError(f"pool {pool!r} is in fail-safe epoch {epoch}; the bank writes nothing until it ends")


def _active(body: Object) -> bool:
    return body["spec"].get("active") is not False


def _deactivated_by_kueue(body: Object) -> str:
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Evicted" and condition["status"] == "True":
            reason = str(condition.get("reason") or "")
            return reason if reason.startswith("DeactivatedDueTo") else ""
    return ""


def _moved_on(workload: WorkloadKey, seen: str) -> ConflictError:
    return ConflictError(f"{_named(workload)} has changed since version {seen!r}; read it again and decide again")


def _named(workload: WorkloadKey) -> str:
    return f"Workload '{workload.namespace}/{workload.name}'"
