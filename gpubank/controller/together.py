"""Many calls, some of them at a time."""

import asyncio
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
