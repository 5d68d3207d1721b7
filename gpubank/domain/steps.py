"""What workflows ask of activities, and what they are told: one record per step, with the key that makes it one effect.

Inputs name what the step is about and never what it will find; every activity reads that itself.
"""

from datetime import timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpubank.domain.base import Duration, GpuCount, Message
from gpubank.domain.contract import ReclaimClass
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.pool import OnOverdue
from gpubank.domain.recall import CheckpointSummary, LoanInput, RecallOrder, ReleaseOrder, StopOrder

# ---- Loan


class LoanStep(Message):
    """One step of one Loan."""

    loan: str
    """Workflow id."""

    cluster: str
    pool: str
    borrower: str
    workload: WorkloadKey
    term: int
    recall: int = 0
    """Ordinal of the recall that the step belongs to."""

    reason: str = ""
    """For people: the owner of the job, the audit trail."""

    asked: bool = False
    """Whether a person ordered it, which no lease forbids."""

    good_until: AwareDatetime | None = None
    """To stop it: when the checkpoint is too old that it is stopped with; None where that does not matter."""

    idle: bool = False
    """To stop it: whether it is stopped without a checkpoint because no pod of it runs."""

    unsaved: bool = False
    """To stop it: whether it could not be saved, and only the borrower's own policy has it stopped all the same."""

    def key(self, step: str) -> str:
        """Idempotency key of an effect of this step."""
        return f"{self.loan}/{self.term}/{step}"


class LoanSight(Message):
    """What stands in the books and at the scheduler about one Workload."""

    found: bool = True
    finished: bool = False
    """Finished, or gone."""

    pods_gone: bool = False
    """It holds neither quota nor pods."""

    stopped: bool = False
    """The bank deactivated it in this term, and nobody has resumed it."""

    placed: bool = False
    gpus: GpuCount = 0
    term: int = 1
    admitted_at: AwareDatetime | None = None
    lenders: tuple[str, ...] = ()
    granted_lines: tuple[str, ...] = ()
    recalled_lines: tuple[str, ...] = ()
    own: bool = False
    """Whether it is own work of its group."""

    recalls: int = 0
    """Recalls that the audit trail knows of."""

    live_demands: tuple[str, ...] = ()
    """Demands of the pool that have not ended."""


class RecalledLines(Message):
    """What came of recalling a Workload's lines."""

    lines: tuple[str, ...] = ()
    """Lines that are RECALLED now."""

    gpus: GpuCount = 0
    lenders: tuple[str, ...] = ()
    term: int = 1
    own: bool = False
    """Whether it is own work of its group."""

    finished: bool = False
    """The Workload finished or is gone: there is nothing to recall."""


class ReleaseStep(Message):
    """Let the Workload keep what was recalled."""

    step: LoanStep
    drop_pledges: bool = True
    """Whether the demands that the lines were pledged to lose them."""


class StopResult(StrEnum):
    """What came of an attempt to stop a Workload."""

    STOPPED = "Stopped"
    GONE = "Gone"
    """It finished or was deleted by itself."""

    REFUSED = "Refused"
    """Its lines are not recalled (any more), or another term runs: nothing was done."""

    LEASED = "Leased"
    """A CapacityLease protects it now: nothing was done."""

    PROTECTED = "Protected"
    """The borrower's policy protects now what could not be saved: nothing was done."""

    STALE = "Stale"
    """Its checkpoint has grown old while the stop waited, as in a freeze, or its pods run now: nothing was done."""


class GoneResult(Message):
    """A Workload has left the GPUs and its lines are returned."""

    at: AwareDatetime
    lines: tuple[str, ...] = ()
    finished: bool = False
    """The Workload will not come back: it finished or is gone."""


class CheckpointStep(Message):
    """Ask for one checkpoint, or for its state."""

    step: LoanStep
    request_id: str
    epoch: int
    deadline: AwareDatetime
    last_step: int = 0
    requested_at: AwareDatetime | None = None
    """When it was first asked for; None in the request itself."""


class CheckpointOutcome(Message):
    """What came of a request."""

    checkpoint: CheckpointSummary | None = None
    """Verified by the bank."""

    nothing_to_save: bool = False
    """No pod runs: stopping the Workload costs nothing that is not lost already."""

    finished: bool = False
    """The Workload finished or is gone."""

    requested_at: AwareDatetime | None = None
    failure: str = ""
    """Why none will come; empty while it may."""

    @property
    def is_last(self) -> bool:
        """Whether nothing more will come of the request."""
        return bool(self.checkpoint or self.failure or self.finished or self.nothing_to_save)


class Notice(Message):
    """Tell the owner of a Workload, once per key."""

    key: str
    pool: str
    workload: WorkloadKey
    reason: str
    """CamelCase, as of an Event."""

    message: str


class LedgerNote(Message):
    """Append one audit event, once per key."""

    key: str
    at: AwareDatetime
    actor: str
    subject: str
    action: str
    detail: dict[str, str | int | float | None] = Field(default_factory=dict)


# ---- Reclaim


class DemandStep(Message):
    """One step for one demand."""

    reclaim: str
    """Workflow id."""

    cluster: str
    pool: str
    lender: str
    demand: str
    reason: str = ""
    gpus: GpuCount | None = None
    """What it asked for when it was last looked at, where a change of that is of interest."""


class DemandView(Message):
    """One demand as it stands, with the terms that govern it."""

    state: DemandState | None = None
    """None when it has ended."""

    kind: DemandKind = DemandKind.WORKLOAD
    gpus: GpuCount = 0
    workload: WorkloadKey | None = None
    reason: str = ""
    opened_at: AwareDatetime | None = None
    due_at: AwareDatetime | None = None
    on_overdue: OnOverdue = OnOverdue.PROTECT

    @property
    def live(self) -> bool:
        """Whether anybody still waits for it in this Reclaim."""
        return self.state in (DemandState.OPEN, DemandState.RAISED)


class PlanStep(Message):
    """Plan what is given up for one demand, and pledge it."""

    step: DemandStep
    spared: tuple[str, ...] = ()
    """uids of Workloads that could not be saved and run on."""


class PlannedVictim(Message):
    """One Workload that is to be stopped."""

    workload: WorkloadKey
    borrower: str
    gpus: GpuCount
    line_ids: tuple[str, ...]
    reclaim_class: ReclaimClass
    needs_checkpoint: bool
    on_checkpoint_failure: OnCheckpointFailure
    grace: Duration
    """Longest notice: the borrower's gracePeriod within the pool's maxGracePeriod."""


class PlannedRecall(Message):
    """What is given up for one demand."""

    live: bool = True
    """Whether the demand still is."""

    raised: bool = False
    """An earlier run has given the whole set back already."""

    complete: bool = False
    """Whether it meets the demand."""

    need: GpuCount = 0
    covered: GpuCount = 0
    victims: tuple[PlannedVictim, ...] = ()
    approval_required: bool = False
    reason: str = ""
    """Why it is not complete."""

    leased: tuple[str, ...] = ()
    """uids of those whom only a CapacityLease keeps."""

    retry_at: AwareDatetime | None = None
    """When time alone makes more possible."""

    max_time_to_return: Duration = timedelta(minutes=30)
    max_grace: Duration = timedelta()
    max_checkpoint_age: Duration = timedelta(seconds=60)


class LoanOrder(Message):
    """One order to one Loan; exactly one of the three."""

    start: LoanInput
    recall: RecallOrder | None = None
    stop: StopOrder | None = None
    release: ReleaseOrder | None = None


class LoanOrders(Message):
    """Orders that go out together."""

    orders: tuple[LoanOrder, ...]


class RaiseOutcome(StrEnum):
    """What came of giving a demand's whole set back at once."""

    RAISED = "Raised"
    REPLAN = "Replan"
    """What was pledged does not come, or is not enough: plan again."""

    ENDED = "Ended"
    """The demand has ended."""


class RaiseResult(Message):
    """What came of raising the lender's queue."""

    outcome: RaiseOutcome
    reason: str = ""


class PlacedOutcome(StrEnum):
    """What became of the owner's Workload after its queue was raised."""

    PLACED = "Placed"
    SLIPPED = "Slipped"
    """Somebody else was admitted first; the demand is open again."""

    ENDED = "Ended"
    """The Workload or the demand is gone."""


class PlacedResult(Message):
    """What became of the owner's Workload."""

    outcome: PlacedOutcome
    reason: str = ""


class EndDemand(Message):
    """End a demand, and give up what is pledged to it."""

    step: DemandStep
    state: DemandState
    """MET, PARTIAL or CANCELLED."""
