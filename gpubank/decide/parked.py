"""Parked Workloads that are gone: neither facts nor books tell of them, for they hold no GPUs and have no lines.

    parked ──▶ missing ──▶ missing for `MISSING_FOR`: its Loan is told ──▶ forgotten
                  └──▶ there again: nothing has happened

Whoever steps hands from one step to the next who was parked. Where that is lost, as with the controller, a Loan finds
out by itself.
"""

from datetime import timedelta
from typing import Final

from pydantic import AwareDatetime

from gpubank.decide.desk import Desk
from gpubank.domain.base import Message
from gpubank.domain.contract import Side
from gpubank.domain.facts import WorkloadFacts

MISSING_FOR: Final = timedelta(seconds=5)
"""How long it must have been missing: while a LocalQueue is made anew, nobody sees who waits in it."""

TOLD_FOR: Final = timedelta(minutes=1)
"""How long it is told, counted from when it was missed; by then its Loan has looked for itself."""


class Missing(Message):
    """A parked Workload that is not there any more."""

    workload: WorkloadFacts
    since: AwareDatetime


class Parked(Message):
    """Who is parked, and who was and is missing."""

    there: tuple[WorkloadFacts, ...] = ()
    missing: tuple[Missing, ...] = ()


NOBODY: Final = Parked()


def missing(desk: Desk, before: Parked) -> tuple[Missing, ...]:
    """Return who was parked and is gone, by uid; whoever has lines is told of by those."""
    found = {each.workload.key.uid: each for each in before.missing}
    for workload in before.there:
        if desk.workload(workload.key.uid) is None:
            found[workload.key.uid] = Missing(workload=workload, since=desk.now)
    return tuple(
        each for uid, each in sorted(found.items()) if desk.workload(uid) is None and not desk.books.lines_of(uid)
    )


def parked(desk: Desk, gone: tuple[Missing, ...]) -> Parked:
    """Return what the next step has to know: who is parked now, and who is `gone` and not told of for long enough."""
    return Parked(
        there=tuple(each for side in Side for each in desk.stirring(side) if each.parked),
        missing=tuple(each for each in gone if desk.now < each.since + TOLD_FOR),
    )
