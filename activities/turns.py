"""Steps of one pool that would only undo each other wait for each other: plans, and whole rounds of quota writes.

Two plans at the same moment choose the same victims, and the one that commits later has planned for nothing; a hundred
of them plan each other's time away. One worker's plans take turns instead. Workers do not know of each other: between
them the books' compare-and-set decides, as it always does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from activities.failures import not_yet

LONGEST_WAIT: Final = 5.0
"""Seconds that a step waits for its turn before it leaves the worker's place to another and is tried again."""

MOST_WAITING: Final = 32
"""Steps that wait for their turn in one pool; more of them would keep a worker's places from work that can be done."""

MOST_ROUNDS: Final = 4
"""Rounds of quota writes of one pool at a time: one of them may wait a second for the scheduler's acknowledgement."""


class Turns:
    """Lets one step of a pool go on at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, pool: str) -> AsyncIterator[None]:
        """Hold the pool's turn until the block ends; raise "not yet" where too many wait, or too long."""
        lock, waiting = self._locks.setdefault(pool, asyncio.Lock()), self._waiting.get(pool, 0)
        if lock.locked() and waiting >= MOST_WAITING:
            raise not_yet(f"{waiting} others wait for their turn in pool {pool!r}")
        self._waiting[pool] = waiting + 1
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                await lock.acquire()
        except TimeoutError:
            raise not_yet(f"others have had their turn in pool {pool!r} for {LONGEST_WAIT:g} s") from None
        finally:
            self._waiting[pool] -= 1
        try:
            yield
        finally:
            lock.release()


Groups = frozenset[str] | None
"""Whose queues; None for everybody's."""


class Rounds:
    """Shares rounds that bring queues up to date: whoever asks before one has begun needs no other."""

    def __init__(self, run: Callable[[str, Groups], Awaitable[None]]) -> None:
        self._run = run
        self._next: dict[str, asyncio.Task[None]] = {}
        """Rounds that have not begun yet."""

        self._groups: dict[str, Groups] = {}
        """Whose queues those are for."""

        self._places: dict[str, asyncio.Semaphore] = {}

    async def after_now(self, pool: str, groups: Groups = None) -> None:
        """Return when a round for these groups that has begun after this call is over, or raise what it raised."""
        wanted = self._groups.setdefault(pool, groups)
        self._groups[pool] = None if wanted is None or groups is None else wanted | groups
        if pool not in self._next:
            self._next[pool] = asyncio.create_task(self._begin(pool), name=f"round of pool {pool}")
        # Whoever gives up leaves the round to the others.
        await asyncio.shield(self._next[pool])

    async def _begin(self, pool: str) -> None:
        async with self._places.setdefault(pool, asyncio.Semaphore(MOST_ROUNDS)):
            del self._next[pool]  # whoever asks from now on may have committed what this round does not see
            await self._run(pool, self._groups.pop(pool))
