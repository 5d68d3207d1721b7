"""The sign of life: one Lease per pool, renewed only while all of the bank is at work there.

    Temporal ─▶ this worker ─▶ the controller's loop turns? ─▶ the ledger takes writes? ─▶ nobody unserved? ─▶ Lease

Whatever is missing, the Lease is left to go stale, and the watchdog hands the pool to the scheduler. A beat never
succeeds: it is an attempt that fails benign and comes again, so that years of it are a history of a few events.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import MAX_TEXT, not_yet
from activities.interfaces import HeartbeatCalls
from activities.pools import Pools
from gpubank.decide.heartbeat import Pulse, looked, promises, unserved, waiting_lenders
from gpubank.domain.errors import BackendError
from gpubank.domain.failsafe import HeartbeatInput, heartbeat_lease, loop_lease
from gpubank.ports import Leases

REFUSED: Final = "HeartbeatRefused"
"""Type of the failure of a beat that found something missing."""

LOOK_FOR: Final = 10.0
"""Seconds in which a loop must give a sign to a worker that has not seen it before; well below one attempt."""

LOOK_EVERY: Final = 0.25


class RunningReclaims(Protocol):
    """Knows which Reclaims run, without delay."""

    async def reclaim_runs(self, cluster: str, pool: str, lender: str) -> bool:
        """Whether the lender's Reclaim runs."""
        ...


class HeartbeatActivities(HeartbeatCalls):
    """Implements `HeartbeatCalls`; it remembers what it saw of the controller's loops, by its own clock."""

    def __init__(
        self,
        pools: Pools,
        *,
        leases: Leases,
        reclaims: RunningReclaims,
        monotonic: Callable[[], float] = time.monotonic,
        look_for: float = LOOK_FOR,
    ) -> None:
        self._pools = pools
        self._leases = leases
        self._reclaims = reclaims
        self._monotonic = monotonic
        self._look_for = look_for
        self._loops: dict[str, Pulse] = {}

    @activity.defn(name="heartbeat.beat")
    async def beat(self, pool: HeartbeatInput) -> None:
        """Renew the pool's Lease, or say what is missing; either way it is tried again, until the pool is gone."""
        again = pool.every
        books = await self._pools.books(pool.pool)
        try:
            terms = await self._pools.terms(pool.pool)
        except BackendError:
            if books.lines or books.demands:
                raise
            return  # the pool was removed while nobody was there to say so
        if not await self._loop_turns(pool):
            raise _refused(f"the controller's loop of pool {pool.pool!r} gives no sign of life", again)
        await self._pools.ledger.beat(pool.cluster, pool.pool)
        now = self._pools.now()
        running = [
            lender
            for lender in waiting_lenders(books, terms, now)
            if await self._reclaims.reclaim_runs(pool.cluster, pool.pool, lender)
        ]
        if waiting := unserved(books, terms, running, now):
            named = ", ".join(demand.demand_id for demand in waiting)
            raise _refused(f"nobody works on {len(waiting)} demands of pool {pool.pool!r}: {named}", again)
        await self._leases.renew(
            heartbeat_lease(pool.cluster, pool.pool),
            holder="gpubank",
            duration=pool.lasts,
            promises=promises(books, terms),
        )
        raise not_yet(f"pool {pool.pool!r} is served; it beats again", again=again)

    async def _loop_turns(self, pool: HeartbeatInput) -> bool:
        """Whether the loop's Lease has changed within its duration.

        A worker that has not looked for as long, for others had the beats, waits for a change: what it remembers
        would make a loop that died meanwhile look alive.
        """
        name, end = loop_lease(pool.cluster, pool.pool), self._monotonic() + self._look_for
        new = False
        while True:
            beat, now = await self._leases.read(name), self._monotonic()
            before = self._loops.get(name)
            if before is None or (beat is not None and now - before.looked_at > beat.duration.total_seconds()):
                before, new = None, True
            pulse = self._loops[name] = looked(before, beat, now)
            if pulse.chain_since is not None:
                return True
            if not new or beat is None or now > end:
                return False
            if activity.in_activity() and activity.is_worker_shutdown():
                return False  # another worker beats on; this one's end need not wait for a loop's next turn
            await asyncio.sleep(LOOK_EVERY)


def _refused(message: str, again: timedelta) -> ApplicationError:
    return ApplicationError(message[:MAX_TEXT], type=REFUSED, next_retry_delay=again)
