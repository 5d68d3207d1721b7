"""The loan line: GPUs of one lender in the hands of one Workload, its states, and the only moves between them.

    OFFERED ──▶ GRANTED ──▶ RECALLED ──▶ RETURNED
       │         ▲ │ ▲ └──────────────────▲  (novation: another line takes its place)
       ▼         │ ▼ └── RECALLED            (protected, or the demand is gone)
    WITHDRAWN   CLOSING ─▶ RETURNED

A Workload that borrows 16 GPUs of two lenders has two lines. All lines of one Workload between its admission and
its stop are one *term*; a Workload that was parked and came back is in its next term. Every row carries a version,
and every move is a compare-and-set from the named state.

A line on the *own side* lends nothing: it holds what own work leaves to more important work of its group.

    chosen ──▶ taken ──▶ RETURNED      both RECALLED: chosen weighs nothing, for the Workload holds its quota itself;
       └──────────────────▲            taken, right before it is stopped, so that nobody else comes into its place
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pydantic import AwareDatetime

from gpubank.domain.base import Message, PositiveGpuCount
from gpubank.domain.contract import Side
from gpubank.domain.errors import IllegalTransitionError

SURPLUS: Final = "pool"
"""The lender of what no group is guaranteed; no business group may bear this name."""


class LineState(StrEnum):
    """Where a line stands."""

    OFFERED = "Offered"
    """The lender's queue is being lowered; nobody has the GPUs yet."""

    GRANTED = "Granted"
    """The borrower's queue is raised; the Workload runs on it or is about to."""

    CLOSING = "Closing"
    """Nobody uses it; the borrower's queue is being lowered."""

    RECALLED = "Recalled"
    """The lender wants it back; the borrower's queue is lowered, the Workload may still run."""

    RETURNED = "Returned"
    """The lender has it back."""

    WITHDRAWN = "Withdrawn"
    """An own job of the lender came first; nothing was ever lent."""


MOVES: Final[Mapping[LineState, frozenset[LineState]]] = {
    LineState.OFFERED: frozenset({LineState.GRANTED, LineState.WITHDRAWN}),
    LineState.GRANTED: frozenset({LineState.CLOSING, LineState.RECALLED, LineState.RETURNED}),
    LineState.CLOSING: frozenset({LineState.GRANTED, LineState.RETURNED}),
    LineState.RECALLED: frozenset({LineState.GRANTED, LineState.RETURNED}),
    LineState.RETURNED: frozenset(),
    LineState.WITHDRAWN: frozenset(),
}

OWN_MOVES: Final[Mapping[LineState, frozenset[LineState]]] = {LineState.RECALLED: frozenset({LineState.RETURNED})}
"""Moves of a line on the own side: it is begun as RECALLED, and grants nothing to anybody."""

LENT: Final = frozenset({LineState.OFFERED, LineState.GRANTED, LineState.CLOSING, LineState.RECALLED})
"""States in which a line weighs on its lender."""

OPEN: Final = LENT
"""States of a line that has not ended."""


class WorkloadKey(Message):
    """Names one Kueue Workload, whatever happens to its name."""

    uid: str
    """uid of the Workload object."""

    namespace: str
    name: str
    """Name of the Workload object."""

    job: str = ""
    """`Kind/name` of the object that owns it, for people."""

    @property
    def title(self) -> str:
        """Name it as its owner does: by the job, where that is known."""
        return self.job or self.name

    @property
    def short(self) -> str:
        """`namespace/job` as people type it."""
        return f"{self.namespace}/{self.job.rpartition('/')[2] or self.name}"


class Line(Message):
    """One row of the book of loans."""

    line_id: str
    """`<pool>-<number>`, unique within the cluster's ledger."""

    cluster: str
    pool: str
    lender: str
    """A business group, or `SURPLUS`."""

    borrower: str
    side: Side = Side.BORROW
    """Queue that its Workload runs in; on the own side lender and borrower are its group, and nobody owes anybody."""

    gpus: PositiveGpuCount
    workload: WorkloadKey
    term: int
    """Ordinal of the Workload's stay, from 1."""

    state: LineState
    version: int = 1
    """Grows by one with every change of the row."""

    revision: int
    """Ledger revision of the pool at the row's last change; what a queue's stamp is compared with."""

    replaces: str | None = None
    """Line that this one novates, while it is OFFERED."""

    demand: str | None = None
    """Demand that the line's GPUs are pledged to."""

    reason: str = ""
    """Why it was last moved, for people."""

    offered_at: AwareDatetime
    granted_at: AwareDatetime | None = None
    """When the borrower's queue was raised for it; on the own side, when it was taken."""

    moved_at: AwareDatetime
    """When the row last changed its state."""

    ended_at: AwareDatetime | None = None

    @property
    def is_self_loan(self) -> bool:
        """Whether a group serves itself; such a line counts against no limit."""
        return self.lender == self.borrower

    @property
    def is_own(self) -> bool:
        """Whether it stands on the own side."""
        return self.side is Side.OWN

    @property
    def is_chosen(self) -> bool:
        """Whether it says no more than that own work is to make room; such a line ends with its pledge."""
        return self.is_own and self.granted_at is None

    @property
    def is_open(self) -> bool:
        """Whether the line has not ended."""
        return self.state in OPEN

    def check_move(self, state: LineState) -> None:
        """Raise `IllegalTransitionError` unless the line may become `state`."""
        moves = OWN_MOVES if self.is_own else MOVES
        if state not in moves[self.state]:
            raise IllegalTransitionError(f"line {self.line_id!r}", self.state, state)
