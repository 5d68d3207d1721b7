"""Waiting for an activity, and leaving it when it is not wanted any more."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError
from temporalio.exceptions import TimeoutError as OutOfTimeError

T = TypeVar("T")


def never() -> bool:
    """Return False: nothing ends the wait but what is waited for."""
    return False


async def wait_until(
    wanted: Callable[[], bool], *, until: Callable[[], datetime | None] = lambda: None, summary: str | None = None
) -> bool:
    """Wait for `wanted`, or for the moment `until`, which may move meanwhile; return whether it was the former."""
    while not wanted():
        end = until()
        if end is None:
            await workflow.wait_condition(lambda: wanted() or until() is not None)
            continue
        left = end - workflow.now()
        if left.total_seconds() <= 0:
            return False
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda end=end: wanted() or until() != end,  # type: ignore[misc]
                timeout=left,
                timeout_summary=summary,
            )
    return True


async def unless(
    activity: workflow.ActivityHandle[T],
    stop: Callable[[], bool],
    *,
    until: Callable[[], datetime | None] = lambda: None,
    summary: str | None = None,
) -> T | None:
    """Await an activity; cancel it when `stop` turns true or `until` comes first, and return None then.

    The activity must have been started with WAIT_CANCELLATION_COMPLETED: what a last attempt did all the same is
    returned, so nobody goes on as if it had not happened.
    """
    await wait_until(lambda: activity.done() or stop(), until=until, summary=summary)
    left = not activity.done()
    if left:
        activity.cancel()
    try:
        return await activity
    except ActivityError:
        # A left activity reports its cancellation, or how its last attempt failed; either way it did nothing.
        if left:
            return None
        raise
    except asyncio.CancelledError:
        if workflow.cancellation_reason() is None:
            return None  # it was left before it had been scheduled
        raise


def said(error: ActivityError) -> str:
    """What an activity failed of, for people; where time was over, what its last attempt failed of."""
    cause = error.cause
    if isinstance(cause, OutOfTimeError) and cause.cause is not None:
        cause = cause.cause
    return (cause.message if isinstance(cause, FailureError) else str(cause or error))[:300]
