"""What a sweep may find: ledger, cluster and open workflows that do not fit together."""

from datetime import timedelta
from enum import StrEnum

from gpubank.domain.base import Duration, GpuCount, Message
from gpubank.domain.loan import WorkloadKey


def sweep_schedule(cluster: str) -> str:
    """Id of the Schedule that sweeps one cluster, and the beginning of the ids of its sweeps."""
    return f"sweep/{cluster}"


class SweepKind(StrEnum):
    """Classes of what does not fit."""

    LOAN_MISSING = "LoanMissing"
    """A Workload has lines, and its Loan was terminated or expired. It is started; it finds out where it stood."""

    LOAN_LEFT_OVER = "LoanLeftOver"
    """A Loan runs whose Workload is gone and has no lines. It is told."""

    RECLAIM_MISSING = "ReclaimMissing"
    """A demand is open, and its lender's Reclaim was terminated or expired. It is started."""

    HEARTBEAT_MISSING = "HeartbeatMissing"
    """A pool gives no sign of life because nobody is to give it. It is started."""

    ORPHAN_PARKED = "OrphanParked"
    """The bank stopped a Workload, and nobody is there to bring it back. Its Loan is started, if it is this bank's."""

    STEP_INTERRUPTED = "StepInterrupted"
    """A line or a guarantee has been on its way for too long, though who moves it is at work. Reported."""

    QUOTA_EDITED = "QuotaEdited"
    """A quota is not what the books say, and nobody of the bank is about to write it. The controller repairs it."""

    UNKNOWN_WORK = "UnknownWork"
    """Work in a borrow queue that has no loan, or that could never be recalled. Reported."""


class SweepFinding(Message):
    """One thing that does not fit."""

    kind: SweepKind
    pool: str
    subject: str
    """What it is about: a Workload's uid, a queue, a lender, a line; the same as long as it is the same finding."""

    message: str
    """Subject, fact, remedy, for people."""

    mended: bool = False
    """Whether somebody has been started or told who mends it."""

    workload: WorkloadKey | None = None
    """Whose owner is to be told, where somebody is."""


class LoanStart(Message):
    """A Loan that must run: it finds out by itself where it stands."""

    workload: WorkloadKey
    borrower: str
    gpus: GpuCount


class SweepInput(Message):
    """Starts a sweep of one cluster."""

    cluster: str
    settle: Duration = timedelta(seconds=10)
    """Pause between two looks; only what is found in both counts, for much is on its way at any moment."""


class SweepStep(Message):
    """Sweep one pool."""

    cluster: str
    pool: str
    settle: Duration = timedelta(seconds=10)


class PoolList(Message):
    """Pools that are to be swept."""

    pools: tuple[str, ...] = ()


class SweepReport(Message):
    """What one sweep found."""

    pools: int = 0
    findings: tuple[SweepFinding, ...] = ()
    unswept: tuple[str, ...] = ()
    """Pools that could not be looked at, and why."""
