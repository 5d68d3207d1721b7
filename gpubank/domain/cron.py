"""Cron times: five fields, minute hour day month weekday, as Debian's cron reads them.

Names (`MON`, `JAN`) are upper case; `@daily`, seconds and the extensions `L`, `W`, `#` are refused, because others
that read the same file know them differently or not at all.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, WithJsonSchema

from gpubank.domain.base import broken


def _field(number: str, names: str = "") -> str:
    value = f"({number}{'|' + names if names else ''})"
    item = rf"(\*|{value}(-{value})?)(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


CRON_PATTERN: Final = (
    "^"
    + " +".join(
        (
            _field("[0-5]?[0-9]"),
            _field("[01]?[0-9]|2[0-3]"),
            _field("0?[1-9]|[12][0-9]|3[01]"),
            _field("0?[1-9]|1[0-2]", "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"),
            _field("[0-7]", "SUN|MON|TUE|WED|THU|FRI|SAT"),
        )
    )
    + "$"
)
CRON_MAX_LENGTH: Final = 128

_ANY_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)


def check_cron(expression: str) -> str:
    """Return the expression if it is a cron time that comes at all, else raise ValueError."""
    if len(expression) > CRON_MAX_LENGTH or not re.fullmatch(CRON_PATTERN, expression):
        raise broken(
            "a cron time has five fields: minute hour day month weekday",
            "write it as in '30 8 * * 1-5', half past eight on weekdays",
            value=expression,
        )
    try:
        CronSim(expression, _ANY_DAY)  # it refuses days that no month has; every other time comes
    except CronSimError as error:
        raise broken(_reason(str(error)), "write a time that comes", value=expression) from error
    return expression


def same_times(one: str, other: str) -> bool:
    """Whether two cron times, both valid, mean the same moments however they are written."""
    return _meaning(one) == _meaning(other)


def _meaning(expression: str) -> tuple[object, ...]:
    cron = CronSim(expression, _ANY_DAY)
    weekdays = frozenset(0 if day == 7 else day for day in cron.weekdays)
    return (
        frozenset(cron.minutes),
        frozenset(cron.hours),
        frozenset(cron.days),
        frozenset(cron.months),
        weekdays,
        cron.day_and,
    )


def _reason(message: str) -> str:
    field = message.removeprefix("Bad ")
    if field == "day-of-month":
        return "the day of the month does not exist in the months named, so this time never comes"
    return f"the {field} field is no range of ascending values"


CronTime = Annotated[
    str,
    AfterValidator(check_cron),
    WithJsonSchema({"type": "string", "pattern": CRON_PATTERN, "maxLength": CRON_MAX_LENGTH}),
]
"""Moments that recur, five cron fields; the time zone stands beside it."""
