"""Verdicts on the bank's API objects."""

from typing import NamedTuple

from gpubank.domain.errors import Problem

Subject = tuple[str, str]
"""Kind and key (`namespace/name` or `name`) of an object."""


class Verdict(NamedTuple):
    """Whether an object is in force, and why not."""

    reason: str
    """A reason of `gpubank.domain.conditions`."""

    problems: tuple[Problem, ...] = ()
    says: str = "what the spec says is in force"
    """What is in force, in words."""

    @property
    def ready(self) -> bool:
        """Whether what the object says is in force."""
        return not self.problems

    @property
    def message(self) -> str:
        """For the condition."""
        return " | ".join(str(problem) for problem in self.problems) or self.says


def refused(reason: str, field: str, value: str, rule: str, remedy: str) -> Verdict:
    """Return the verdict on an object that breaks one rule."""
    return Verdict(reason, (Problem(field=field, value=value, rule=rule, remedy=remedy),))
