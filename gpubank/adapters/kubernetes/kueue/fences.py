"""Which stamps of a pool's queues are fenced, by what the API server itself says.

    stamp seen ─▶ acknowledged ─▶ wait over: earned ─▶ the queue is read anew: confirmed ─▶ told as fenced

The caches may be late, so a fence that they have earned is not told yet: the old quota may have admitted somebody whom
they do not show. A read that began after the fence was earned shows them all, whoever asked for it; hence one read for
each fence of each queue serves everybody who looks, and nothing else is asked of the server. What the read shows is
judged like any other look: if somebody has edited the queue meanwhile, its fence is taken back.

Queues are read one by one, as many as have earned a fence since the last look. All of them are listed only where most
of the pool is due at once, as after a start or the way back from the fail-safe: that costs as much as all of them.
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

_SINGLE_READS: Final = 16
"""Queues that are read one by one however small the pool is."""

_AT_ONCE: Final = 16
"""Reads in flight."""

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

        self._turns: dict[str, asyncio.Lock] = {}
        """Who reads which queue; who reads them all has the empty name."""

        self._slots = asyncio.Semaphore(_AT_ONCE)
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
        if len(due) > max(_SINGLE_READS, len(bodies) // 2):
            await self._read_all(max(self._fence.since(name) for name in due))
        else:
            await asyncio.gather(*(self._read(name, self._fence.since(name)) for name in due))
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

    # ---- reading

    async def _read(self, name: str, since: float) -> None:
        """Read one queue, unless somebody has in a read that began at `since` or later."""
        async with self._turns.setdefault(name, asyncio.Lock()), self._slots:
            if self._read_at.get(name, _NEVER) >= since:
                return
            began = time.monotonic()
            body = await self._connection.get(CLUSTER_QUEUE, name)
            self._take([body] if body is not None else [], began)

    async def _read_all(self, since: float) -> None:
        async with self._turns.setdefault("", asyncio.Lock()):
            if self._read_at.get("", _NEVER) >= since:
                return
            began = time.monotonic()
            self._take(await self._connection.all(CLUSTER_QUEUE), began)
            self._read_at[""] = began

    def _take(self, bodies: Iterable[Object], began: float) -> None:
        for body in bodies:
            self._view.absorb(CLUSTER_QUEUE, body)
            self._read_at[body["metadata"]["name"]] = began
