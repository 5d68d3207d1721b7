"""What a loop has begun and does not wait for: it looks on, decides on, and hears of it when it is over.

A quota that is raised in order waits up to a second for the scheduler's acknowledgement, and a server under load takes
its time for an answer. Were the loop to wait for each of them, whoever comes meanwhile would wait for all.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final

BRIEF: Final = 0.1
"""Seconds that a loop waits for what it has begun: most is over by then, and the next look shows its effect."""


class Beside:
    """Calls beside a loop, one at a time for each key."""

    def __init__(self, name: str, wake: Callable[[], None], *, at_once: int | None = None) -> None:
        self._name, self._wake = name, wake
        self._places = asyncio.Semaphore(at_once) if at_once is not None else contextlib.nullcontext()
        self._calls: dict[Hashable, asyncio.Task[None]] = {}
        self._left: set[Hashable] = set()
        """Keys of calls that the loop does not wait for any more; their end wakes it."""

        self._wanted: set[Hashable] = set()
        """Keys of calls that another one gave way to; their end wakes it too."""

        self._failed: list[Exception] = []

    def is_busy(self, key: Hashable) -> bool:
        """Whether a call of this key is not over yet."""
        return key in self._calls

    def begin(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Begin a call; False, and nothing is begun, while one of its key goes on."""
        if key in self._calls:
            self._wanted.add(key)
            return False
        self._calls[key] = asyncio.create_task(self._run(key, call), name=f"{self._name} {key}")
        return True

    async def settle(self, seconds: float = BRIEF) -> None:
        """Wait a moment for what has been begun, and what that begins; raise what was raised since the last time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while new := [task for key, task in self._calls.items() if key not in self._left]:
            await asyncio.wait(new, timeout=max(end - loop.time(), 0))
            if loop.time() >= end:
                break
        self._left.update(self._calls)
        if self._failed:
            first, self._failed = self._failed[0], []
            raise first

    async def stop(self) -> None:
        """Cancel what goes on, and see it end."""
        calls = list(self._calls.values())
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            async with self._places:
                await call()
        except Exception as error:  # whatever it is, the loop meets it as if it had made the call itself
            self._failed.append(error)
        finally:
            del self._calls[key]
            if key in self._left | self._wanted:
                self._left.discard(key)
                self._wanted.discard(key)
                self._wake()
