"""Demands: what an owner waits for, and how far the bank has got with it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pydantic import AwareDatetime

from gpubank.domain.base import GpuCount, Message, PositiveGpuCount
from gpubank.domain.errors import IllegalTransitionError
from gpubank.domain.loan import WorkloadKey


class DemandKind(StrEnum):
    """Why GPUs are wanted back."""

    WORKLOAD = "Workload"
    """Own work waits for quota."""

    LIMIT = "Limit"
    """More is lent than a limit, lowered since, allows."""

    SHRUNK = "Shrunk"
    """The pool has fewer GPUs than are reserved."""

    PLACEMENT = "Placement"
    """Own work is admitted, and no node has room for it."""

    OVERADMITTED = "Overadmitted"
    """An own job slipped in while the loan was granted; the loan goes back."""

    RETURN = "Return"
    """A person asked for the return of a loan."""


WHOLE: Final = frozenset({DemandKind.WORKLOAD, DemandKind.PLACEMENT})
"""Demands that a part does not help: nobody is stopped for them unless all of it can be had."""


class DemandState(StrEnum):
    """How far a demand has got."""

    OPEN = "Open"
    RAISED = "Raised"
    """All of it is back in the owner's queue; its admission and its pods are awaited."""

    MET = "Met"
    """The owner's pods are scheduled, or the limit holds."""

    PARTIAL = "Partial"
    """Not all could be had; pledges are released, and it is tried again on changed facts."""

    CANCELLED = "Cancelled"
    """Nobody waits any more."""


MOVES: Final[Mapping[DemandState, frozenset[DemandState]]] = {
    DemandState.OPEN: frozenset({DemandState.RAISED, DemandState.MET, DemandState.PARTIAL, DemandState.CANCELLED}),
    DemandState.RAISED: frozenset({DemandState.OPEN, DemandState.MET, DemandState.PARTIAL, DemandState.CANCELLED}),
    DemandState.PARTIAL: frozenset({DemandState.OPEN, DemandState.MET, DemandState.CANCELLED}),
    DemandState.MET: frozenset({DemandState.OPEN}),
    DemandState.CANCELLED: frozenset({DemandState.OPEN}),
}
"""MET and CANCELLED reopen when the same Workload waits again, after Kueue requeued it; RAISED does when somebody
else was admitted first."""

LIVE: Final = frozenset({DemandState.OPEN, DemandState.RAISED, DemandState.PARTIAL})
"""States of a demand that has not ended."""


class Demand(Message):
    """One row of the book of demands."""

    demand_id: str
    """`<pool>/<lender>/<kind>/<workload uid or limit>`."""

    cluster: str
    pool: str
    lender: str
    """Who wants its GPUs: a group, or `SURPLUS` for a shrunken pool."""

    kind: DemandKind
    workload: WorkloadKey | None = None
    """The own Workload that waits, where there is one."""

    gpus: PositiveGpuCount
    """What it asks for in all."""

    pods: int = 1
    """Pods that must be placed; `gpus` is divided evenly among them."""

    idle: GpuCount = 0
    """Own quota that is kept free for it: what was idle, and what has come back."""

    state: DemandState = DemandState.OPEN
    version: int = 1
    """Grows with every change of the row; begins at the revision of the books, so that none returns on reopening."""

    revision: int = 0
    reason: str = ""
    opened_at: AwareDatetime
    due_at: AwareDatetime
    """`opened_at` plus the pool's maxTimeToReturn."""

    moved_at: AwareDatetime | None = None
    """When it last changed its state."""

    ended_at: AwareDatetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether GPUs are still being gathered for it."""
        return self.state is DemandState.OPEN

    def check_move(self, state: DemandState) -> None:
        """Raise `IllegalTransitionError` unless the demand may become `state`."""
        if state is not self.state and state not in MOVES[self.state]:
            raise IllegalTransitionError(f"demand {self.demand_id!r}", self.state, state)
