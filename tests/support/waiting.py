"""Waiting for what nobody tells of: looks until it is there, and says what was waited for in vain."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

EVERY = 0.05
"""Seconds between two looks."""

AFTER_AN_OUTAGE: Final = 90
"""Seconds within which everybody watches an API server again that was away for a moment.

client-go tries ever more rarely, at last every 30 to 60 s (its backoff of 30 s with a jitter of 1).
"""


async def soon(turns: int = 20) -> None:
    """Let whatever can go on without waiting go on."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def seen(
    look: Callable[[], Any], what: str, seconds: float = 30, *, say: Callable[[], object] = str, every: float = EVERY
) -> Any:
    """Return what `look`, which may be a coroutine function, finds first that counts as true.

    Fail after `seconds`, saying `what` was waited for and what there is instead.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                found = look()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(every)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(_in_vain(what, seconds, say)) from None


def until(look: Callable[[], object], what: str, seconds: float = 30, *, say: Callable[[], object] = str) -> None:
    """Wait without a loop of events, as `seen` does in one."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() >= deadline:
            raise AssertionError(_in_vain(what, seconds, say))
        time.sleep(EVERY)


def _in_vain(what: str, seconds: float, say: Callable[[], object]) -> str:
    return f"waited {seconds:g} s in vain for {what}\n{say()}"
