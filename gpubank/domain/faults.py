"""Where a process may die in a recall: every place has one name here, and crash tests stop the bank by it.

    demand ─▶ plan ─▶ recall order ─▶ recall ─▶ ask ─▶ verify ─▶ stop order ─▶ stop ─▶ gone ─▶ raise ─▶ placed ─▶ met
                                                       the owner is done: offer ─▶ resume ─▶ grant

A point is one step of the recall, a spot is a point and a position in it. The steps know nothing of them: they are
activities and signals, and what wraps those (`workers.faults`, `gpubank.controller.faults`) is installed only where the
setting `faults.folder` is set, which production leaves alone.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Position(StrEnum):
    """How far a step has come."""

    BEFORE = "before"
    """Nothing of it has happened."""

    BOOKED = "booked"
    """The books have moved; quotas, and whoever waits, have not heard of it."""

    AFTER = "after"
    """All of it has happened; nobody has been told that it has."""


class FaultPoint(StrEnum):
    """One step of a recall, in the order in which a recall takes them."""

    DEMAND = "demand"
    """The controller tells the Reclaim of a demand that it has booked."""

    PLAN = "plan"
    """Victims are chosen and their lines pledged."""

    RECALL_ORDER = "recall-order"
    """The Reclaim orders its victims to give their GPUs back."""

    RECALL = "recall"
    """The victim's lines are recalled and its queue is lowered."""

    ASK = "ask"
    """The victim is asked for a checkpoint."""

    VERIFY = "verify"
    """The checkpoint is read and believed."""

    STOP_ORDER = "stop-order"
    """The Reclaim orders its victims to stop."""

    STOP = "stop"
    """The victim is deactivated."""

    GONE = "gone"
    """Pods and quota are gone; the lines are returned."""

    RAISE = "raise"
    """The lender's queue is raised by the whole set."""

    PLACED = "placed"
    """The owner's pods are on nodes."""

    MET = "met"
    """The demand is ended in the books."""

    OFFER = "offer"
    """The controller tells the parked borrower's Loan that GPUs lie ready."""

    RESUME = "resume"
    """The borrower is reactivated."""

    GRANT = "grant"
    """The controller tells the Loan that its lines are granted."""


class Spot(NamedTuple):
    """A position in a step."""

    point: FaultPoint
    position: Position

    def __str__(self) -> str:
        return f"{self.point}.{self.position}"

    @classmethod
    def of(cls, text: str) -> "Spot":
        """Read what `str` wrote; raise ValueError where it is none."""
        point, _, position = text.partition(".")
        return cls(FaultPoint(point), Position(position))


BOOKED_POINTS: Final = frozenset(
    {FaultPoint.PLAN, FaultPoint.RECALL, FaultPoint.GONE, FaultPoint.RAISE, FaultPoint.MET}
)
"""Steps that move the books and then write quotas, so that a crash may fall between the two."""

SPOTS: Final = tuple(
    Spot(point, position)
    for point in FaultPoint
    for position in Position
    if position is not Position.BOOKED or point in BOOKED_POINTS
)
"""Every spot, in the order of a recall."""
