"""Raises a quota so that who waited for it comes in first, and at once.

Kueue puts a Workload that found no quota aside and looks at it again in batches of a second. A job that is submitted
within that second is looked at immediately: raised plainly, a quota for which a gang of 16 waited went to a later job
of 8 in every one of nine trials, and the gang came in after 1.0 s where nobody was in its way. A touch alone wakes
nobody, for Kueue knows that its equals were refused. Under StrictFIFO it does wake, and stands before every later one:

    StrictFIFO ──▶ acknowledged ──▶ touch who is first in line ──▶ quota raised ──▶ admitted ──▶ BestEffortFIFO again

So the owner's gang comes in within 0.15 s, and its own later jobs never before it. This is done only where everybody
before the last one touched fits: somebody who never fits would hold up the whole queue as long as it is strict. The
annotation says since when a queue is so; the layout ends it after `LONGEST` seconds if its writer could not.

Worker and controller raise the same quota at the same time, for both write what the books say. Whoever finds the queue
strict already does not end that moment, but waits and touches as the other does before it raises.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, WORKLOAD, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import WorkloadEntry
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.contract import BANK_PREFIX
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import Wait

STRICT: Final = "StrictFIFO"
BEST_EFFORT: Final = "BestEffortFIFO"

IN_ORDER_ANNOTATION: Final = f"{BANK_PREFIX}/in-order-since"
"""On a queue that is strict for a moment: since when, RFC 3339."""

LONGEST: Final = 5.0
"""Seconds that a queue may be strict."""

ACKNOWLEDGED_WITHIN: Final = 1.0
"""Seconds that Kueue's acknowledgement is waited for before the quota is raised regardless."""

ADMITTED_WITHIN: Final = 3.0
"""Seconds after which a queue is no longer strict, whether who was first in line was admitted or not."""

TOUCHED_WITHIN: Final = 1.0
"""Seconds in which a Workload that somebody else is writing to is read again to be touched."""

MOST: Final = 8
"""Workloads that are touched for one raise; the rest come in with Kueue's batch."""

_log = logging.getLogger(__name__)


def is_momentary(queue: Object, now: datetime) -> bool:
    """Tell whether a queue is strict because somebody raises its quota just now."""
    since = (queue["metadata"].get("annotations") or {}).get(IN_ORDER_ANNOTATION)
    if since is None:
        return False
    try:
        age = now - datetime.fromisoformat(since)
    except (ValueError, TypeError):
        return False
    return abs(age) < timedelta(seconds=LONGEST)


def first_in_line(waiting: Sequence[WorkloadEntry], resource: str, free: int, now: datetime) -> list[WorkloadEntry]:
    """Return who comes in next, in Kueue's order, up to the first who cannot; whoever cannot is in the way of all."""
    found: list[WorkloadEntry] = []
    for entry in sorted(waiting, key=lambda each: (-each.priority, each.created_at, each.uid)):
        if entry.wait in (Wait.INACTIVE, Wait.BACKOFF) or (entry.requeue_at and entry.requeue_at > now):
            continue  # not in the queue at all
        if entry.wait is not Wait.QUOTA or entry.gpus(resource) > free or len(found) == MOST:
            break
        free -= entry.gpus(resource)
        found.append(entry)
    return found


class Order:
    """Keeps the order of queues whose quota is being raised."""

    def __init__(
        self,
        connection: Connection,
        view: View,
        clock: Callable[[], datetime],
    ) -> None:
        self._connection = connection
        self._view = view
        self._clock = clock
        self._closing: dict[str, asyncio.Task[None]] = {}

    def next_in(self, queue: Object, nominal: int) -> list[WorkloadEntry]:
        """Return whom a quota of `nominal` lets in, where order can be kept; nobody where the queue stays strict."""
        if queue["spec"].get("queueingStrategy") == STRICT and not is_momentary(queue, self._clock()):
            return []
        name, resource = queue["metadata"]["name"], queues.resource_of(queue)
        users = self._view.users(name)
        held = max(queues.reserved(queue), sum(each.gpus(resource) for each in users if each.reserved))
        waiting = [each for each in users if not each.reserved]
        return first_in_line(waiting, resource, nominal - held, self._clock())

    async def open(self, queue: Object, entries: Sequence[WorkloadEntry]) -> Object | None:
        """Make a queue strict and put `entries` before all others; it ends by itself when they are admitted.

        Returns the queue as it stands then, to be raised; None where it has changed since it was read: read it again
        and try again. Best effort otherwise: where it is refused, they come in with Kueue's batch.
        """
        name = queue["metadata"]["name"]
        if not is_momentary(queue, self._clock()):
            try:
                queue = await self._make_strict(queue)
            except ConflictError:
                return None
            except BackendError as error:
                _log.debug("queue %s is raised without order: %s", name, error)
                return queue
            if (before := self._closing.pop(name, None)) is not None:
                before.cancel()
            self._closing[name] = asyncio.create_task(self._close(name, entries), name=f"order of {name}")
        await self._acknowledged(name, int(queue["metadata"]["generation"]))
        await asyncio.gather(*(self._touch(entry) for entry in entries))
        return self._view.queues.get(name) or queue

    async def _make_strict(self, queue: Object) -> Object:
        metadata = queue["metadata"]
        change = {
            "metadata": {"annotations": {IN_ORDER_ANNOTATION: self._clock().isoformat()}},
            "spec": {"queueingStrategy": STRICT},
        }
        version = metadata["resourceVersion"]
        written = await self._connection.patch(CLUSTER_QUEUE, metadata["name"], None, change, version=version)
        self._view.absorb(CLUSTER_QUEUE, written)
        return written

    async def end(self) -> None:
        """End every order now."""
        tasks, self._closing = self._closing, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for name in tasks:
            await self._relax(name)

    async def _acknowledged(self, name: str, generation: int) -> None:
        def holds() -> bool:
            body = self._view.queues.get(name)
            return body is None or queues.observed(body) >= generation

        await self._view.queues.until(holds, ACKNOWLEDGED_WITHIN)

    async def _touch(self, entry: WorkloadEntry) -> None:
        """Change what Kueue looks at and nobody else: the words of the condition Requeued, which stays True.

        Kueue may write its refusal of a moment ago meanwhile, and whoever else raises this quota its own touch: the
        Workload is read again then, for one that is not woken lets later ones pass; not for long, as the raise waits.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + TOUCHED_WITHIN
        while True:
            try:
                body = await self._connection.get(WORKLOAD, entry.name, entry.namespace)
                if body is None or body["metadata"]["uid"] != entry.uid:
                    return
                status = _touched(body, self._clock())
                if status is None:
                    return
                version = body["metadata"]["resourceVersion"]
                written = await self._connection.patch(
                    WORKLOAD, entry.name, entry.namespace, {"status": status}, version=version, subresource="status"
                )
            except (ConflictError, BackendError) as error:
                if isinstance(error, ConflictError) and loop.time() < end:
                    continue
                _log.debug("workload %s/%s is not woken: %s", entry.namespace, entry.name, error)
            else:
                self._view.absorb(WORKLOAD, written)
            return

    async def _close(self, name: str, entries: Sequence[WorkloadEntry]) -> None:
        await self._view.workloads.until(lambda: not any(self._waits(each) for each in entries), ADMITTED_WITHIN)
        await self._relax(name)
        self._closing.pop(name, None)

    def _waits(self, entry: WorkloadEntry) -> bool:
        now = self._view.workloads.get(entry.name, entry.namespace)
        return now is not None and now.uid == entry.uid and now.active and not now.finished and not now.reserved

    async def _relax(self, name: str) -> None:
        try:
            written = await self._connection.patch(CLUSTER_QUEUE, name, None, relaxed())
        except (ConflictError, BackendError) as error:
            _log.debug("queue %s stays strict until it is laid out: %s", name, error)
        else:
            self._view.absorb(CLUSTER_QUEUE, written)


def relaxed() -> Object:
    """Return the change that ends a queue's strict moment."""
    return {"metadata": {"annotations": {IN_ORDER_ANNOTATION: None}}, "spec": {"queueingStrategy": BEST_EFFORT}}


def _touched(body: Object, now: datetime) -> Object | None:
    """Return a Workload's status with other words in its Requeued condition; None where it is not for us to wake."""
    conditions = list((body.get("status") or {}).get("conditions") or ())
    found = next((each for each in conditions if each["type"] == "Requeued"), None)
    if any(each["type"] == "QuotaReserved" and each["status"] == "True" for each in conditions):
        return None
    if found is not None and found["status"] != "True":
        return None  # Kueue holds it back on purpose
    others = [each for each in conditions if each["type"] != "Requeued"]
    touched = {
        # Kueue measures a wait from this transition, so it stays where it was.
        "lastTransitionTime": body["metadata"]["creationTimestamp"],
        "reason": "QuotaRaised",
        **(found or {}),
        "type": "Requeued",
        "status": "True",
        "message": f"gpubank raised the quota at {now.isoformat()}",
    }
    return {"conditions": [*others, touched]}
