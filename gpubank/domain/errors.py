"""Errors of the bank.

* BankError
  + PolicyError               the request breaks a policy; retrying cannot help
    - IllegalTransitionError    a state machine was asked for a move it does not have
    - InvalidObjectError        an object is malformed or breaks a rule of its kind
  + LedgerError               a transaction would break an invariant of the books; a bug of who decided
  + ConflictError             a compare-and-set lost; read again, decide again
    - StaleFactsError           the decision rests on facts that have changed since
  + BackendError              a cluster, metric, database or hook failed; retrying may help

A message says subject, fact, remedy, in lower case. Only `activities/` turns these into Temporal's errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: where, what stands there, what is asked, and what to write instead."""

    field: str
    """Path as the user writes it, as in `spec.reclaimPolicy.gracePeriod`; empty for the object as a whole."""

    value: str
    """What stands there, as JSON, shortened; empty if nothing does."""

    rule: str
    """What is asked."""

    remedy: str
    """What to write instead."""

    def __str__(self) -> str:
        where = self.field or "object"
        found = f" is {self.value}" if self.value else ""
        return f"{where}{found}: {self.rule}; {self.remedy}"


class BankError(Exception):
    """Base of every error that the bank raises."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without anybody changing the request."""


class PolicyError(BankError):
    """The request breaks a policy; retrying cannot help."""


class IllegalTransitionError(PolicyError):
    """A state machine was asked for a move that its table does not have."""

    def __init__(self, subject: str, state: str, wanted: str) -> None:
        super().__init__(f"{subject} is {state}: it cannot become {wanted}")
        self.subject = subject
        self.state = state
        self.wanted = wanted

    def __reduce__(self) -> tuple[type["IllegalTransitionError"], tuple[str, str, str]]:
        return type(self), (self.subject, self.state, self.wanted)


class InvalidObjectError(PolicyError):
    """An object is malformed or breaks a rule of its kind; `problems` names every one."""

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
        super().__init__(f"{subject} is refused: " + " | ".join(str(problem) for problem in problems))
        self.subject = subject
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type["InvalidObjectError"], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.subject, self.problems)


class LedgerError(BankError):
    """A transaction would break an invariant of the books; a bug of who decided, and nothing was written."""


class ConflictError(BankError):
    """A compare-and-set lost against another writer; read again and decide again."""

    retryable = True


class StaleFactsError(ConflictError):
    """The decision rests on facts that have changed since; gather them again."""


class BackendError(BankError):
    """A cluster, metric, database or hook failed; retrying may help."""

    retryable = True
