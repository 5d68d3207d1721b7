"""What a check says."""

from enum import StrEnum

from gpubank.domain.base import Message


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """Something is not as it should be, and the bank works."""

    FAIL = "FAIL"
    """The bank does not work, or not as it must."""


class Check(Message):
    """One line of the report."""

    area: str
    """What was checked, in a word."""

    level: Level
    message: str
    remedy: str = ""
    """What to do; empty where nothing needs to be done, or where the message says it."""


def ok(area: str, message: str) -> Check:
    """All is well."""
    return Check(area=area, level=Level.OK, message=message)


def warn(area: str, message: str, remedy: str = "") -> Check:
    """The bank works, but not as it should."""
    return Check(area=area, level=Level.WARN, message=message, remedy=remedy)


def fail(area: str, message: str, remedy: str = "") -> Check:
    """The bank does not work as it must."""
    return Check(area=area, level=Level.FAIL, message=message, remedy=remedy)
