"""A pulse that wakes everybody who follows it; beats that nobody saw fold into one."""

import asyncio
from collections.abc import AsyncIterator


class Pulse:
    """Counts beats, and lets any number of followers wait for the next."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: set[asyncio.Event] = set()

    def beat(self) -> None:
        """Wake every follower."""
        self._count += 1
        for event in self._waiting:
            event.set()

    async def follow(self) -> AsyncIterator[None]:
        """Yield once at the start, and then whenever there was a beat since the last time."""
        seen = -1
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while True:
                event.clear()
                if seen == self._count:
                    await event.wait()
                seen = self._count
                yield
        finally:
            self._waiting.discard(event)
