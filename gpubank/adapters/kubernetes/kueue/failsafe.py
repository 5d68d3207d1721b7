"""The watchdog's hand at Kueue: one Cohort and the pool's ClusterQueues, read from the store, written by version.

    begin   Cohort: epoch, no quota          enter   ClusterQueue: Cohort, quota, limit, reclaim, epoch in one write
    lend    Cohort: the surplus as quota     end     Cohort: no epoch

Nothing is cached and nothing is watched: it has to work when everything else of the bank does not, with few rights.
"""

from datetime import datetime
from typing import Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, COHORT, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.order import BEST_EFFORT, IN_ORDER_ANNOTATION
from gpubank.domain.base import format_instant
from gpubank.domain.contract import (
    FAIL_SAFE_EPOCH_ANNOTATION,
    FAIL_SAFE_LAST_ANNOTATION,
    FAIL_SAFE_SINCE_ANNOTATION,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    cohort_name,
)
from gpubank.domain.errors import ConflictError
from gpubank.domain.failsafe import CohortFacts, CohortQueue

RECLAIM: Final = {**queues.NEVER, "reclaimWithinCohort": "Any"}
"""Preemption of an own queue in the Cohort: it takes back what others borrow of it, whatever their priority."""


class KueueFailSafe:
    """Implements `FailSafeBackend`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def observe(self, pool: str) -> CohortFacts:
        """Return the pool's Cohort and its queues as they stand in the store."""
        cohort = await self._connection.get(COHORT, cohort_name(pool))
        found = [
            queue
            for body in await self._queues(pool)
            if queues.belongs(body, pool) and (queue := _queue(pool, body)) is not None
        ]
        if cohort is None:
            return CohortFacts(pool=pool, queues=tuple(found))
        epoch = queues.fail_safe_epoch(cohort)
        return CohortFacts(
            pool=pool,
            version=cohort["metadata"]["resourceVersion"],
            epoch=epoch,
            last_epoch=max(epoch, queues.last_epoch(cohort)),
            surplus=queues.nominal({"spec": cohort.get("spec") or {}}),
            queues=tuple(sorted(found, key=lambda each: each.name)),
        )

    async def _queues(self, pool: str) -> list[Object]:
        selectors = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY},{POOL_LABEL}={pool}"}
        return await self._connection.all(CLUSTER_QUEUE, selectors=selectors)

    async def begin(self, pool: str, epoch: int, *, at: datetime, seen: str) -> None:
        """Write the epoch on the Cohort and take its own quota off it."""
        annotations = {
            FAIL_SAFE_EPOCH_ANNOTATION: str(epoch),
            FAIL_SAFE_LAST_ANNOTATION: str(epoch),
            FAIL_SAFE_SINCE_ANNOTATION: format_instant(at),
        }
        if seen:
            change = {"metadata": {"annotations": annotations}, "spec": {"resourceGroups": None, "parentName": None}}
            await self._connection.patch(COHORT, cohort_name(pool), None, change, version=seen)
            return
        await self._connection.create(
            COHORT,
            {
                "apiVersion": COHORT.api_version,
                "kind": COHORT.name,
                "metadata": {
                    "name": cohort_name(pool),
                    "labels": {MANAGED_BY_LABEL: MANAGED_BY, POOL_LABEL: pool},
                    "annotations": annotations,
                },
                "spec": {},
            },
        )

    async def enter(
        self, pool: str, queue: CohortQueue, *, nominal: int, borrowing_limit: int, reclaims: bool, epoch: int
    ) -> None:
        """Put one queue into the Cohort; a moment of strict order, whose writer may be dead, ends with it."""
        body = await self._connection.get(CLUSTER_QUEUE, queue.name)
        if body is None or body["metadata"]["resourceVersion"] != queue.version:
            raise ConflictError(f"ClusterQueue {queue.name!r} has changed since it was read; read it again")
        groups = queues.resource_groups(pool, queues.resource_of(body), nominal)
        groups[0]["flavors"][0]["resources"][0]["borrowingLimit"] = str(borrowing_limit)
        change = {
            "metadata": {"annotations": {FAIL_SAFE_EPOCH_ANNOTATION: str(epoch), IN_ORDER_ANNOTATION: None}},
            "spec": {
                "cohortName": cohort_name(pool),
                "resourceGroups": groups,
                "preemption": RECLAIM if reclaims else queues.NEVER,
                "queueingStrategy": BEST_EFFORT,
            },
        }
        await self._connection.patch(CLUSTER_QUEUE, queue.name, None, change, version=queue.version)

    async def lend(self, pool: str, surplus: int, *, seen: str) -> None:
        """Set the Cohort's own quota."""
        resource = next((name for body in await self._queues(pool) if (name := queues.resource_of(body))), "")
        groups = queues.resource_groups(pool, resource, surplus) if surplus and resource else None
        change = {"spec": {"resourceGroups": groups}}
        await self._connection.patch(COHORT, cohort_name(pool), None, change, version=seen)

    async def end(self, pool: str, epoch: int, *, seen: str) -> None:
        """Clear the epoch, by the version at which it was seen."""
        change = {
            "metadata": {"annotations": {FAIL_SAFE_EPOCH_ANNOTATION: None, FAIL_SAFE_LAST_ANNOTATION: str(epoch)}}
        }
        await self._connection.patch(COHORT, cohort_name(pool), None, change, version=seen)


def _queue(pool: str, body: Object) -> CohortQueue | None:
    seat = queues.side_of(body)
    if seat is None:
        return None
    spec = body["spec"]
    return CohortQueue(
        name=body["metadata"]["name"],
        group=seat[0],
        kind=seat[1],
        version=body["metadata"]["resourceVersion"],
        nominal=queues.nominal(body),
        reserved=queues.reserved(body),
        in_cohort=spec.get("cohortName") == cohort_name(pool),
        borrowing_limit=queues.borrowing_limit(body),
        reclaims=(spec.get("preemption") or {}).get("reclaimWithinCohort") == "Any",
        epoch=queues.fail_safe_epoch(body),
        best_effort=spec.get("queueingStrategy") == BEST_EFFORT,
        acknowledged=queues.is_acknowledged(body),
    )
