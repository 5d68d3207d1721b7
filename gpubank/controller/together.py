"""Many calls, some of them at a time."""

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Final

from gpubank.domain.errors import BankError

AT_ONCE: Final = 8
"""Calls in flight: enough to wait for one answer instead of many, too few to flood a server."""


async def side_by_side(steps: Iterable[Awaitable[None]]) -> None:
    """Take every step, some at a time; after one that fails no more are begun, and its error is raised.

    Each step is made when its turn has come. Two of them must not depend on each other.
    """
    waiting, errors = iter(steps), list[Exception]()

    async def work() -> None:
        while not errors and (step := next(waiting, None)) is not None:
            try:
                await step
            except (BankError, OSError) as error:
                errors.append(error)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    if errors:
        raise errors[0]


async def begun_until(end: float, steps: Iterable[Awaitable[None]]) -> tuple[int, list[Exception]]:
    """Begin steps until a moment of the monotonic clock, some at a time, and wait for those that have begun.

    Return how many were begun, and what went wrong with any of them: one that fails is in no other's way. As many as
    run at a time are always begun. Each step is made when its turn has come, and two of them must not depend on each
    other.
    """
    waiting, begun, errors = iter(steps), 0, list[Exception]()

    async def work(first: bool) -> None:
        nonlocal begun
        while (first or time.monotonic() < end) and (step := next(waiting, None)) is not None:
            first, begun = False, begun + 1
            try:
                await step
            except Exception as error:
                errors.append(error)

    await asyncio.gather(*(work(first=True) for _ in range(AT_ONCE)))
    return begun, errors
