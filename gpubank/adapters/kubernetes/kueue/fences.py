"""Which stamps of a pool's queues are fenced, by what the API server itself says.

    stamp seen ─▶ acknowledged ─▶ wait over: earned ─▶ the queue is read anew: confirmed ─▶ told as fenced

The caches may be late, so a fence that they have earned is not told yet: the old quota may have admitted somebody whom
they do not show. A read that began after the fence was earned shows them all, whoever asked for it; hence one read for
each fence of each queue serves everybody who looks, and nothing else is asked of the server. What the read shows is
judged like any other look: if somebody has edited the queue meanwhile, its fence is taken back.

A few queues are read one by one. Where more have earned a fence since the last look, one request asks for the queues of
these groups alone: the API server picks them by label, and neither writes down nor sends the rest of the pool. Asked
without a version, as here, it answers from no older state than the store's at that moment, as for a single object.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.decide.fence import Fence
from gpubank.domain.contract import GROUP_LABEL, POOL_LABEL

_SINGLE_READS: Final = 8
"""Queues that are read one by one, all at the same time."""

_GROUPS: Final = 100
"""Groups that one request asks for: its line stays below 8 KiB."""

_NEVER: Final = float("-inf")


class Fences:
    """Confirms fences; one for every pool of a cluster."""

    def __init__(self, connection: Connection, view: View, cycle_p99: float) -> None:
        self._connection, self._view = connection, view
        self._fence = Fence(cycle_p99)
        self._confirmed: dict[str, int] = {}
        self._settled: dict[str, Object] = {}
        """Queues whose stamp is fenced and confirmed, as they stood then: nothing is left to be waited for."""

        self._read_at: dict[str, float] = {}
        """When the last answered read of each queue had begun."""

        self._turn = asyncio.Lock()
        """Who reads; whoever comes meanwhile finds most of it read."""

        self._hearing = view.queues.heard_by(self._note)

    def start(self) -> None:
        """Follow the queues."""
        self._hearing.__enter__()

    def stop(self) -> None:
        """Follow them no longer."""
        self._hearing.__exit__(None, None, None)

    @property
    def wait(self) -> float:
        """Seconds between an acknowledgement and its fence."""
        return self._fence.wait

    def measured(self, cycle_p99: float) -> None:
        """Take note of how long Kueue's admission cycles last, as their 99th percentile in seconds."""
        self._fence.measured(cycle_p99)

    def is_awaited(self, pool: str, queue: str = "") -> bool:
        """Whether a fence is awaited, of this queue or of any of the pool."""
        bodies = self._view.of_pool(pool)
        if queue:
            bodies = {queue: bodies[queue]} if queue in bodies else {}
        return any(
            queues.is_acknowledged(body) and queues.stamp(body) > self._confirmed.get(name, queues.NO_STAMP)
            for name, body in self._unsettled(bodies).items()
        )

    async def confirmed(self, pool: str) -> dict[str, int]:
        """Return the highest fenced stamp by queue; whatever has newly earned its fence is read anew first."""
        bodies = self._view.of_pool(pool)
        due = [name for name, body in self._unsettled(bodies).items() if self._is_due(name, body)]
        if due:
            async with self._turn:
                bodies = self._view.of_pool(pool)
                await self._read(pool, {name: bodies[name] for name in due if self._is_due_still(name, bodies)})
        bodies = self._view.of_pool(pool)
        for name, body in self._unsettled(bodies).items():
            due_again = self._is_due(name, body)
            if not due_again and self._confirmed[name] == queues.stamp(body) and queues.is_acknowledged(body):
                self._settled[name] = body
        return {name: self._confirmed[name] for name in bodies}

    def _unsettled(self, bodies: Mapping[str, Object]) -> dict[str, Object]:
        return {name: body for name, body in bodies.items() if self._settled.get(name) is not body}

    def _note(self, before: Object | None, after: Object | None) -> None:
        """Start the fence's clock when the acknowledgement is first seen, not when somebody asks."""
        if after is not None and queues.is_ours(after):
            self._see(after)
        elif after is None and before is not None:
            name = before["metadata"]["name"]
            self._fence.forget(name)
            for known in (self._confirmed, self._settled, self._read_at):
                known.pop(name, None)

    def _see(self, body: Object) -> int:
        acknowledged = queues.is_acknowledged(body)
        return self._fence.seen(body["metadata"]["name"], queues.stamp(body), acknowledged, time.monotonic())

    def _is_due(self, name: str, body: Object) -> bool:
        """Look at a queue, and tell whether its fence is earned and not confirmed yet."""
        earned = self._see(body)
        # A fence that was taken back must be confirmed anew.
        confirmed = min(earned, self._confirmed.get(name, queues.NO_STAMP))
        if earned > confirmed and self._read_at.get(name, _NEVER) >= self._fence.since(name):
            confirmed = earned
        self._confirmed[name] = confirmed
        return earned > confirmed

    def _is_due_still(self, name: str, bodies: Mapping[str, Object]) -> bool:
        return name in bodies and self._is_due(name, bodies[name])

    # ---- reading

    async def _read(self, pool: str, due: Mapping[str, Object]) -> None:
        """Read queues anew, and take down since when what they show is true."""
        if len(due) <= _SINGLE_READS:
            await asyncio.gather(*(self._read_one(name) for name in due))
            return
        groups = sorted({seat[0] for body in due.values() if (seat := queues.side_of(body)) is not None})
        for first in range(0, len(groups), _GROUPS):
            chosen = ",".join(groups[first : first + _GROUPS])
            began = time.monotonic()
            selectors = {"labelSelector": f"{POOL_LABEL}={pool},{GROUP_LABEL} in ({chosen})"}
            self._take(await self._connection.all(CLUSTER_QUEUE, selectors=selectors), began)

    async def _read_one(self, name: str) -> None:
        began = time.monotonic()
        body = await self._connection.get(CLUSTER_QUEUE, name)
        self._take([body] if body is not None else [], began)

    def _take(self, bodies: Iterable[Object], began: float) -> None:
        for body in bodies:
            self._view.absorb(CLUSTER_QUEUE, body)
            self._read_at[body["metadata"]["name"]] = began
