"""Writes to Kueue: quotas and the `active` of Workloads, each one compare-and-set against what was read.

The fail-safe outranks the bank: once the watchdog has written its epoch on the pool's Cohort, nothing here writes.
The Cohort is read anew for every write, the queue is as the watch has it, and every write names the version that it
rests on. If the epoch came after the Cohort was read, so will the watchdog's own edit of the queue, which overwrites
ours or makes ours fail; and a queue that is seen after that edit stands in the Cohort. A version that has passed costs
one read of the queue itself.
"""

import asyncio
import logging
from typing import Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, COHORT, WORKLOAD, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import read_mark, write_mark
from gpubank.adapters.kubernetes.kueue.order import Order
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.contract import (
    BANK_PREFIX,
    FAIL_SAFE_EPOCH_ANNOTATION,
    MARK_ANNOTATION,
    REVISION_ANNOTATION,
    Side,
    cohort_name,
)
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import Mark
from gpubank.domain.loan import WorkloadKey

RECOUNTED_ANNOTATION: Final = f"{BANK_PREFIX}/recounted"
"""On a queue: the version of it whose count was too old, so that every touch is another one."""

_log = logging.getLogger(__name__)

_TRIES: Final = 5
"""How often it is tried to open the order of a queue that Kueue keeps writing to, and then to set its quota."""


class Cohorts:
    """Reads the Cohorts of pools, each time anew."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._next: dict[str, asyncio.Task[Object | None]] = {}
        """Reads that have not begun yet: whoever asks until then shares them."""

    async def read(self, pool: str) -> Object | None:
        """Return the pool's Cohort as it is after this call has begun; many calls at once are one read."""
        if pool not in self._next:
            self._next[pool] = asyncio.create_task(self._read(pool), name=f"cohort of {pool}")
        return await asyncio.shield(self._next[pool])

    async def _read(self, pool: str) -> Object | None:
        del self._next[pool]  # whoever asks from now on may have seen something that this read does not show
        return await self._connection.get(COHORT, cohort_name(pool))


class Writer:
    """Writes quotas, stops and resumes."""

    def __init__(self, connection: Connection, view: View, order: Order) -> None:
        self._connection, self._view, self._order = connection, view, order
        self._cohorts = Cohorts(connection)

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Set a queue's quota and stamp, as the port says; whoever waited for a raise comes in first."""
        name = queues.QUEUE_NAMES[kind](group, pool)
        body = await self._seen(pool, name, revision)
        for _ in range(_TRIES):
            entries = self._order.next_in(body, nominal) if nominal > queues.nominal(body) else []
            if not entries:
                break
            if (opened := await self._order.open(body, entries)) is not None:
                _refuse_unless_ours(pool, name, opened, revision)
                body = opened
                break
            body = await self._read(pool, name, revision)
        for _ in range(_TRIES - 1):
            try:
                await self._set(pool, body, nominal, revision)
            except ConflictError:
                # Kueue writes its status all the time: once more, with everything read and checked anew.
                body = await self._read(pool, name, revision)
            else:
                return
        await self._set(pool, body, nominal, revision)

    async def take_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Take a queue out of the fail-safe's Cohort with its quota and stamp; see the port.

        The queue is read before the Cohort: an epoch that begins after that stamps the queue itself, and whoever wrote
        first is the one that the other's write is checked against.
        """
        name = queues.QUEUE_NAMES[kind](group, pool)
        body = await self._connection.get(CLUSTER_QUEUE, name)
        _refuse_in_fail_safe(pool, await self._cohorts.read(pool))
        if body is None or not queues.belongs(body, pool) or not queues.in_cohort(body):
            await self.write_quota(pool, group, kind, nominal=nominal, revision=revision)
            return
        metadata = body["metadata"]
        change = {
            "metadata": {
                "annotations": {REVISION_ANNOTATION: str(revision), FAIL_SAFE_EPOCH_ANNOTATION: None},
            },
            "spec": {
                "cohortName": None,
                "preemption": queues.NEVER,
                "resourceGroups": queues.resource_groups(pool, queues.resource_of(body), nominal),
            },
        }
        written = await self._connection.patch(CLUSTER_QUEUE, name, None, change, version=metadata["resourceVersion"])
        self._view.absorb(CLUSTER_QUEUE, written)

    async def _read(self, pool: str, name: str, revision: int) -> Object:
        """Read the queue; raise unless a quota of `revision` may be written to it."""
        cohort, body = await asyncio.gather(self._cohorts.read(pool), self._connection.get(CLUSTER_QUEUE, name))
        _refuse_in_fail_safe(pool, cohort)
        return _refuse_unless_ours(pool, name, body, revision)

    async def _seen(self, pool: str, name: str, revision: int) -> Object:
        """Return the queue as the watch has it; where that is no queue to write to, what a read says counts."""
        try:
            body = _refuse_unless_ours(pool, name, self._view.queues.get(name), revision)
        except (BackendError, ConflictError):
            return await self._read(pool, name, revision)
        _refuse_in_fail_safe(pool, await self._cohorts.read(pool))
        return body

    async def _set(self, pool: str, body: Object, nominal: int, revision: int) -> None:
        if _stands(body, nominal, revision):
            # Only the server says so for sure: the watch may not have told yet that somebody has edited it.
            body = await self._read(pool, body["metadata"]["name"], revision)
            self._view.absorb(CLUSTER_QUEUE, body)
            if _stands(body, nominal, revision):
                return
        change = {
            "metadata": {"annotations": {REVISION_ANNOTATION: str(revision)}},
            "spec": {"resourceGroups": queues.resource_groups(pool, queues.resource_of(body), nominal)},
        }
        metadata = body["metadata"]
        written = await self._connection.patch(
            CLUSTER_QUEUE, metadata["name"], None, change, version=metadata["resourceVersion"]
        )
        self._view.absorb(CLUSTER_QUEUE, written)

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        """Touch a queue: Kueue counts what it holds a second after a Workload left, but at once if it changes."""
        body = self._view.queues.get(queues.QUEUE_NAMES[kind](group, pool))
        if body is None or not queues.belongs(body, pool) or queues.in_cohort(body):
            return
        metadata = body["metadata"]
        change = {"metadata": {"annotations": {RECOUNTED_ANNOTATION: metadata["resourceVersion"]}}}
        try:
            written = await self._connection.patch(CLUSTER_QUEUE, metadata["name"], None, change)
        except (ConflictError, BackendError) as error:
            _log.debug("queue %s is counted when Kueue does: %s", metadata["name"], error)
        else:
            self._view.absorb(CLUSTER_QUEUE, written)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Deactivate and mark a Workload; see the port. One that has finished is as good as gone."""
        body = await self._read_workload(pool, workload)
        if body is None or _has_finished(body) or (_mark(body) == mark and not _active(body)):
            return
        await self._change(body, mark, seen, active=False)

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Reactivate a Workload that this Loan has stopped, and mark it; see the port."""
        body = await self._read_workload(pool, workload)
        if body is None or _has_finished(body) or (_mark(body) == mark and _active(body)):
            return
        before = _mark(body)
        if before is None or (before.loan, before.step) != (mark.loan, "stop"):
            fact = f"bears the mark of {before.loan!r}, step {before.step!r}" if before else "bears no mark"
            raise ConflictError(f"{_named(body)} {fact}; only what {mark.loan!r} has stopped is resumed by it")
        if cause := _deactivated_by_kueue(body):
            raise ConflictError(f"{_named(body)} was deactivated by Kueue itself ({cause}); it stays so")
        await self._change(body, mark, seen, active=True)

    async def _change(self, body: Object, mark: Mark, seen: str, *, active: bool) -> None:
        """Write `active` and mark in one patch, against the version that the decision rests on."""
        metadata = body["metadata"]
        moved_on = f"{_named(body)} has changed since version {seen!r}; read it again and decide again"
        if metadata["resourceVersion"] != seen:
            raise ConflictError(moved_on)
        change = {"metadata": {"annotations": {MARK_ANNOTATION: write_mark(mark)}}, "spec": {"active": active}}
        try:
            written = await self._connection.patch(
                WORKLOAD, metadata["name"], metadata["namespace"], change, version=seen
            )
        except ConflictError as error:
            raise ConflictError(moved_on) from error
        except ApiNotFoundError:
            return
        self._view.absorb(WORKLOAD, written)

    async def _read_workload(self, pool: str, workload: WorkloadKey) -> Object | None:
        """Return the Workload, or None when it is gone; another one of its name is not it. Refuses in the fail-safe."""
        cohort, body = await asyncio.gather(
            self._cohorts.read(pool),
            self._connection.get(WORKLOAD, workload.name, workload.namespace),
        )
        _refuse_in_fail_safe(pool, cohort)
        return body if body is not None and body["metadata"]["uid"] == workload.uid else None


def _refuse_in_fail_safe(pool: str, cohort: Object | None) -> None:
    if epoch := queues.fail_safe_epoch(cohort):
        raise ConflictError(f"pool {pool!r} is in fail-safe epoch {epoch}; the bank writes nothing until it ends")


def _refuse_unless_ours(pool: str, name: str, body: Object | None, revision: int) -> Object:
    """Return the queue; raise unless it is the bank's to write, and no later revision was written to it."""
    if body is None or not queues.belongs(body, pool):
        raise BackendError(f"ClusterQueue {name!r} is not there or not the bank's; lay the pool out first")
    if queues.in_cohort(body):
        fact = f"ClusterQueue {name!r} stands in Cohort {body['spec']['cohortName']!r}"
        raise ConflictError(f"{fact}; the bank leaves it alone until the fail-safe ends")
    if (stamp := queues.stamp(body)) > revision:
        fact = f"ClusterQueue {name!r} bears revision {stamp}, later than {revision}"
        raise ConflictError(f"{fact}; compute again")
    return body


def _stands(body: Object, nominal: int, revision: int) -> bool:
    """Whether a queue has this quota and stamp."""
    return (queues.nominal(body), queues.stamp(body)) == (nominal, revision)


def _active(body: Object) -> bool:
    return body["spec"].get("active") is not False


def _mark(body: Object) -> Mark | None:
    return read_mark(body["metadata"].get("annotations") or {})


def _has_finished(body: Object) -> bool:
    return _condition(body, "Finished") is not None


def _deactivated_by_kueue(body: Object) -> str:
    """Return why Kueue itself deactivated a Workload; empty where it did not. Ours reads plain `Deactivated`."""
    reason = str((_condition(body, "Evicted") or {}).get("reason") or "")
    return reason if reason.startswith("DeactivatedDueTo") else ""


def _condition(body: Object, kind: str) -> Object | None:
    """Return a condition while it is True."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), None)


def _named(body: Object) -> str:
    return f"Workload '{body['metadata']['namespace']}/{body['metadata']['name']}'"
