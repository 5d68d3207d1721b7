"""Phases of the Loan and Reclaim workflows, and the messages that pass between them."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from pydantic import AwareDatetime

from gpubank.domain.base import Duration, GpuCount, Message
from gpubank.domain.errors import IllegalTransitionError
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.policy import OnCheckpointFailure


class LoanPhase(StrEnum):
    """Where the Loan of one Workload stands: a borrower's, or one of own work that makes room."""

    ACTIVE = "Active"
    """It runs, or waits for its first GPUs."""

    RECALLED = "Recalled"
    """Its lines are recalled; its owner has been told."""

    CHECKPOINTING = "Checkpointing"
    """Asked to save; the answer is awaited and will be verified."""

    DURABLE = "Durable"
    """May be stopped: a verified checkpoint, or nothing that needs one."""

    STOPPING = "Stopping"
    """Deactivated; pods are ending."""

    PARKED = "Parked"
    """Gone from the GPUs; comes back by itself when there is room."""

    PROTECTED = "Protected"
    """Could not be saved in time and its policy protects it; it runs on."""

    CLOSED = "Closed"
    """The Workload finished or is gone; or it is own work that runs on, or waits again."""


LOAN_MOVES: Final[Mapping[LoanPhase, frozenset[LoanPhase]]] = {
    LoanPhase.ACTIVE: frozenset({LoanPhase.RECALLED, LoanPhase.PARKED, LoanPhase.CLOSED}),
    LoanPhase.RECALLED: frozenset(
        {LoanPhase.CHECKPOINTING, LoanPhase.DURABLE, LoanPhase.PROTECTED, LoanPhase.ACTIVE, LoanPhase.CLOSED}
    ),
    LoanPhase.CHECKPOINTING: frozenset({LoanPhase.DURABLE, LoanPhase.PROTECTED, LoanPhase.ACTIVE, LoanPhase.CLOSED}),
    LoanPhase.DURABLE: frozenset(
        {LoanPhase.STOPPING, LoanPhase.CHECKPOINTING, LoanPhase.PROTECTED, LoanPhase.ACTIVE, LoanPhase.CLOSED}
    ),
    LoanPhase.STOPPING: frozenset({LoanPhase.PARKED, LoanPhase.CLOSED}),
    LoanPhase.PARKED: frozenset({LoanPhase.ACTIVE, LoanPhase.CLOSED}),
    LoanPhase.PROTECTED: frozenset({LoanPhase.ACTIVE, LoanPhase.CLOSED}),
    LoanPhase.CLOSED: frozenset(),
}
"""ACTIVE becomes PARKED without a recall only where a worker finds a stop that an earlier run of it had finished."""


class ReclaimPhase(StrEnum):
    """Where one lender's Reclaim stands."""

    PLANNING = "Planning"
    AWAITING_APPROVAL = "AwaitingApproval"
    RECALLING = "Recalling"
    """Notice is given and checkpoints are being written."""

    STOPPING = "Stopping"
    """Victims are being stopped."""

    RETURNING = "Returning"
    """The lender's queue is being raised, once for the whole set."""

    SCHEDULED = "Scheduled"
    """Everybody who waited has its pods on nodes."""

    MET = "Met"
    PARTIAL = "Partial"
    CANCELLED = "Cancelled"


_UNMET: Final = frozenset({ReclaimPhase.PARTIAL, ReclaimPhase.CANCELLED})

RECLAIM_MOVES: Final[Mapping[ReclaimPhase, frozenset[ReclaimPhase]]] = {
    ReclaimPhase.PLANNING: _UNMET | {ReclaimPhase.AWAITING_APPROVAL, ReclaimPhase.RECALLING, ReclaimPhase.RETURNING},
    ReclaimPhase.AWAITING_APPROVAL: _UNMET | {ReclaimPhase.RECALLING, ReclaimPhase.PLANNING},
    ReclaimPhase.RECALLING: _UNMET | {ReclaimPhase.STOPPING, ReclaimPhase.PLANNING},
    ReclaimPhase.STOPPING: _UNMET | {ReclaimPhase.RETURNING, ReclaimPhase.PLANNING},
    ReclaimPhase.RETURNING: _UNMET | {ReclaimPhase.SCHEDULED, ReclaimPhase.PLANNING},
    ReclaimPhase.SCHEDULED: frozenset({ReclaimPhase.MET, ReclaimPhase.PLANNING}),
    **dict.fromkeys((ReclaimPhase.MET, ReclaimPhase.PARTIAL, ReclaimPhase.CANCELLED), frozenset()),
}
"""PLANNING follows wherever facts changed so that the plan no longer meets its demand: a protected victim, a race."""


Phase = TypeVar("Phase", LoanPhase, ReclaimPhase)


def moved(subject: str, moves: Mapping[Phase, frozenset[Phase]], phase: Phase, wanted: Phase) -> Phase:
    """Return `wanted`, or raise `IllegalTransitionError` if the table has no such move."""
    if wanted not in moves[phase]:
        raise IllegalTransitionError(subject, phase, wanted)
    return wanted


# ---- ids


def loan_id(cluster: str, workload_uid: str) -> str:
    """Workflow id of the Loan of one borrow Workload."""
    return f"loan/{cluster}/{workload_uid}"


def reclaim_id(cluster: str, pool: str, lender: str) -> str:
    """Workflow id of one lender's Reclaim."""
    return f"reclaim/{cluster}/{pool}/{lender}"


# ---- messages


class LoanInput(Message):
    """Starts a Loan; signal-with-start always carries it."""

    cluster: str
    pool: str
    borrower: str
    workload: WorkloadKey
    gpus: GpuCount
    state: "LoanState | None" = None
    """What an earlier run hands over when it continues as new."""


class LoanState(Message):
    """What a Loan remembers; also the answer of its query."""

    phase: LoanPhase = LoanPhase.ACTIVE
    term: int = 1
    gpus: GpuCount = 0
    """GPUs of the term, or of the last one while it is parked."""

    lenders: tuple[str, ...] = ()
    recalls: int = 0
    """Ordinal of the last recall; the epoch of checkpoint requests."""

    orders: tuple["RecallOrder", ...] = ()
    """Recalls that want an answer, the first one first; one per demand."""

    deadline: AwareDatetime | None = None
    """End of the notice of the recall that runs, as extended."""

    checkpoint: "CheckpointSummary | None" = None
    """Last checkpoint of this Workload that the bank has verified."""

    last_step: int = 0
    """Highest step that a verified checkpoint has proved."""

    stop_ordered: bool = False
    """A Reclaim has said that its demand can be met."""

    finished: bool = False
    """The Workload finished or is gone."""

    offered: bool = False
    """GPUs for its return lie ready, and it has not been resumed yet."""

    own: bool = False
    """It is own work that makes room."""

    note: str = ""
    """What happened last, for people."""

    history: tuple["TermRecord", ...] = ()
    """Every term so far, oldest first."""

    @property
    def reclaims(self) -> tuple[str, ...]:
        """Reclaims that want an answer, each once."""
        return tuple(dict.fromkeys(order.reclaim for order in self.orders if order.reclaim))

    @property
    def order(self) -> "RecallOrder | None":
        """The recall that came first and gave the notice."""
        return self.orders[0] if self.orders else None


class CheckpointSummary(Message):
    """A checkpoint that the bank has verified itself."""

    uri: str
    step: int
    verified_at: AwareDatetime
    request_id: str


class TermRecord(Message):
    """One stay of the Workload on borrowed GPUs."""

    term: int
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    gpus: GpuCount
    lenders: tuple[str, ...] = ()
    ended_because: str = ""
    checkpoint: CheckpointSummary | None = None


class Granted(Message):
    """Controller to Loan: its lines are granted and it is admitted."""

    term: int
    gpus: GpuCount
    lenders: tuple[str, ...] = ()
    at: AwareDatetime | None = None
    """When it was admitted; None means about now."""


class Offered(Message):
    """Controller to Loan: GPUs for the whole parked Workload lie ready; resume it."""

    term: int
    """Term that it would run in."""

    gpus: GpuCount = 0
    own: bool = False


class Ended(Message):
    """Controller to Loan: its Workload finished or is gone."""

    at: AwareDatetime | None = None
    reason: str = ""


class RecallOrder(Message):
    """Reclaim to Loan: give these GPUs back."""

    reclaim: str
    """Workflow id that wants an answer; empty where a person asked for the return."""

    demand: str
    """Demand that it is for; what a person asked for has an id of its own."""

    lender: str
    kind: str
    """`DemandKind` of the demand."""

    reason: str
    """For the owner of the job, who is about to be asked to save."""

    line_ids: tuple[str, ...]
    needs_checkpoint: bool
    """Whether the Workload is of a class that is never stopped without one."""

    on_checkpoint_failure: OnCheckpointFailure
    deadline: AwareDatetime
    """End of the notice; the borrower's gracePeriod, within the pool's limits."""

    latest_deadline: AwareDatetime | None = None
    """Latest end of the notice that a person may set (the pool's maxGracePeriod); None allows no extension."""

    max_checkpoint_age: Duration = timedelta(seconds=60)
    overdue: bool = False
    """The demand's maxTimeToReturn has passed and the pool evicts: the notice ends now, checkpoint or not."""


class StopOrder(Message):
    """Reclaim to Loan: the demand can be met, stop now."""

    reclaim: str
    demand: str


class ReleaseOrder(Message):
    """Reclaim to Loan: nobody wants it any more; go on unless already stopping."""

    reclaim: str
    demand: str
    reason: str


class LoanOutcome(StrEnum):
    """What a Loan answers to a Reclaim."""

    DURABLE = "Durable"
    PROTECTED = "Protected"
    LEASED = "Leased"
    """A CapacityLease protects it for now; it has refused nothing, and is asked again when that ends."""

    RETURNED = "Returned"
    """Its pods are gone and its lines are returned."""

    GONE = "Gone"
    """It finished or was deleted by itself; its lines are returned or closing."""


class LoanReport(Message):
    """Loan to Reclaim."""

    loan: str
    demand: str
    outcome: LoanOutcome
    reason: str = ""


class Extension(Message):
    """A person gives a recalled job more time, within the pool's maximum."""

    by: Duration
    identity: str = ""
    verified: bool = False
    """Whether the identity was confirmed by the API server."""

    reason: str = ""


class Decision(Message):
    """A person's word on a Reclaim that needs approval, or on a Loan that is to be returned."""

    identity: str
    verified: bool = False
    """Whether the identity was confirmed by the API server."""

    reason: str = ""
    demand: str = ""
    """Demand that it is about; empty means every one that waits for approval."""

    term: int | None = None
    """Term of the Loan that its sender saw: a Loan that is reset hears words on earlier ones again."""


class ReclaimInput(Message):
    """Starts a Reclaim; signal-with-start always carries it."""

    cluster: str
    pool: str
    lender: str
    demands: tuple["DemandProgress", ...] = ()
    """Demands handed over when it continues as new."""


class VictimProgress(Message):
    """One victim, as a Reclaim sees it."""

    workload: WorkloadKey
    borrower: str
    gpus: GpuCount
    answer: "LoanOutcome | None" = None
    reason: str = ""
    asked: bool = False
    """Whether it was recalled, and has neither left nor been let go."""


class DemandProgress(Message):
    """How far a Reclaim has got with one demand; a part of the answer of its query."""

    demand: str
    phase: ReclaimPhase = ReclaimPhase.PLANNING
    gpus: GpuCount = 0
    reason: str = ""
    """Why the GPUs are wanted, or why they could not be had."""

    due_at: AwareDatetime | None = None
    approved_by: str | None = None
    spared: tuple[str, ...] = ()
    """uids of Workloads that could not be saved and run on."""

    overdue: bool = False
    """maxTimeToReturn has passed."""

    victims: tuple[VictimProgress, ...] = ()


class ReclaimState(Message):
    """Answer of a Reclaim's query."""

    phase: ReclaimPhase = ReclaimPhase.PLANNING
    """The phase of the demand that has got least far."""

    demands: tuple[DemandProgress, ...] = ()
    """Demands that this run works on or has ended, oldest first."""


class Needs(Message):
    """Controller to Reclaim: these demands of the lender are open; what is missing from the list has ended."""

    demands: tuple[str, ...]
    at: AwareDatetime
