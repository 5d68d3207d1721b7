"""What a decision wants written to the books: one transaction, all of it or nothing."""

from pydantic import AwareDatetime

from gpubank.domain.base import GpuCount, Message, PositiveGpuCount
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.loan import LineState, WorkloadKey


class Offer(Message):
    """Begin a line: the lender's queue comes down, nobody has the GPUs yet."""

    lender: str
    borrower: str
    gpus: PositiveGpuCount
    workload: WorkloadKey
    term: int
    replaces: str | None = None
    """Line that it will novate."""


class Choose(Message):
    """Begin a line on the own side: own work that is to make room for a demand of its group. It weighs nothing yet."""

    group: str
    gpus: PositiveGpuCount
    workload: WorkloadKey
    term: int
    demand: str


class Take(Message):
    """Lower the own queue by what a chosen Workload holds, right before it is stopped."""

    line_id: str
    version: int


class Move(Message):
    """Move a line from one state to another; a compare-and-set on state and version."""

    line_id: str
    version: int
    from_state: LineState
    to_state: LineState
    demand: str | None = None
    """Demand that the line is pledged to from now on; kept where None and the line goes on."""

    release: bool = False
    """Drop the pledge, as when the demand is gone."""

    reason: str = ""


class Reattach(Message):
    """Give a GRANTED line, or a part of it, to another Workload of the same borrower that took its quota."""

    line_id: str
    version: int
    gpus: PositiveGpuCount
    workload: WorkloadKey
    term: int


class Swap(Message):
    """Exchange the lenders of two live lines of equal size; no job and no queue is touched but the lenders' books."""

    line_id: str
    version: int
    other_id: str
    other_version: int


class Split(Message):
    """Cut `gpus` off a live line into a line of its own; the new line gets the next line id."""

    line_id: str
    version: int
    gpus: PositiveGpuCount


class Pledge(Message):
    """Pledge a live line to a demand, or take it from its demand; a chosen line ends with its pledge."""

    line_id: str
    version: int
    demand: str | None


class GuaranteeChange(Message):
    """Set one group's guarantee in force."""

    group: str
    version: int
    """0 begins the row."""

    in_force: GpuCount
    releasing: GpuCount = 0
    """Part that is being given up: no longer in the queue, not yet free for others."""

    recalled: bool | None = None
    """Whether its slack has to last before it is lent; kept, together with `slack_since`, where None."""

    slack_since: AwareDatetime | None = None
    """Since when there is slack."""


class DemandOpening(Message):
    """Open a demand, or reopen an ended one."""

    demand_id: str
    lender: str
    kind: DemandKind
    gpus: PositiveGpuCount
    pods: int = 1
    workload: WorkloadKey | None = None
    idle: GpuCount = 0
    """Own idle quota pledged to it from the start."""

    due_at: AwareDatetime
    reason: str = ""


class DemandChange(Message):
    """Change a demand; a compare-and-set on its version."""

    demand_id: str
    version: int
    state: DemandState
    gpus: PositiveGpuCount | None = None
    idle: GpuCount | None = None
    """Own quota kept free for it; an ended demand keeps none."""

    due_at: AwareDatetime | None = None
    """When it is overdue, where it is tried anew; kept where None."""

    reason: str = ""


class CapacityChange(Message):
    """Set what the platform vouches for."""

    capacity: GpuCount


class Transaction(Message):
    """One decision's writes."""

    key: str
    """Idempotency key; a key seen before changes nothing and is success."""

    cluster: str
    pool: str
    at: AwareDatetime
    actor: str
    """Workflow id, `controller`, or a person."""

    note: str = ""
    """One sentence for the audit trail."""

    capacity: CapacityChange | None = None
    guarantees: tuple[GuaranteeChange, ...] = ()
    openings: tuple[DemandOpening, ...] = ()
    splits: tuple[Split, ...] = ()
    swaps: tuple[Swap, ...] = ()
    pledges: tuple[Pledge, ...] = ()
    reattachments: tuple[Reattach, ...] = ()
    offers: tuple[Offer, ...] = ()
    choices: tuple[Choose, ...] = ()
    takes: tuple[Take, ...] = ()
    moves: tuple[Move, ...] = ()
    demands: tuple[DemandChange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it would write nothing."""
        return not (
            self.capacity
            or self.guarantees
            or self.openings
            or self.splits
            or self.swaps
            or self.pledges
            or self.reattachments
            or self.offers
            or self.choices
            or self.takes
            or self.moves
            or self.demands
        )
