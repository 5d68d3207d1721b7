"""How activities fail: not yet, lost a race, or broken; and how that looks in Temporal.

"Not yet" is benign: it is retried as a poll, and no alarm counts it.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gpubank.domain.errors import BankError, ConflictError

NOT_YET: Final = "NotYet"
"""Type of the failure of an activity that waits."""

MAX_TEXT: Final = 500
"""Longest text of a failure, in characters; what pods and servers say may be long."""

_TRIES: Final = 5

T = TypeVar("T")


def not_yet(message: str, *, again: timedelta | None = None) -> ApplicationError:
    """Build the failure of a poll; `again` overrides when the retry policy would look again."""
    return ApplicationError(
        message[:MAX_TEXT], type=NOT_YET, category=ApplicationErrorCategory.BENIGN, next_retry_delay=again
    )


async def settled(attempt: Callable[[], Awaitable[T]]) -> T:
    """Read, decide and write; again, from the read on, while another writer was faster."""
    for _ in range(_TRIES - 1):
        try:
            return await attempt()
        except ConflictError:
            continue
    return await attempt()


class FailureInterceptor(Interceptor):
    """Turns the bank's errors into Temporal's: typed, bounded, and benign where a retry will settle them."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap every activity."""
        return _Failures(next)


class _Failures(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except BankError as error:
            benign = isinstance(error, ConflictError)
            raise ApplicationError(
                str(error)[:MAX_TEXT],
                type=type(error).__name__,
                category=ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
            ) from error
