"""The fail-safe: signs of life, and what the watchdog sees and writes at the scheduler when they are missing.

    bank in charge ── no beat for failSafeAfter ──▶ epoch n on the Cohort ──▶ borrow queues in ──▶ own queues in
          ▲                                                                                            │
          └── queues out, one by one, with the books' quotas ◀── epoch cleared ◀── as long of beats ───┘

While an epoch stands, the scheduler borrows and takes back by itself, and nobody of the bank writes a quota.
"""

from datetime import timedelta
from typing import NamedTuple

from pydantic import AwareDatetime, Field

from gpubank.domain.base import Duration, GpuCount, Message
from gpubank.domain.contract import Side


def heartbeat_id(cluster: str, pool: str) -> str:
    """Workflow id of the heartbeat of one pool."""
    return f"heartbeat/{cluster}/{pool}"


def heartbeat_lease(cluster: str, pool: str) -> str:
    """Name of the Lease `heartbeat/<cluster>/<pool>`, spelled as an object's name may be."""
    return f"heartbeat-{cluster}-{pool}"


def loop_lease(cluster: str, pool: str) -> str:
    """Name of the Lease that the controller's loop of one pool renews after every turn that came to an end."""
    return f"loop-{cluster}-{pool}"


class HeartbeatInput(Message):
    """Starts the heartbeat of one pool."""

    cluster: str
    pool: str
    every: Duration = timedelta(seconds=10)
    """Pause between two beats."""

    @property
    def lasts(self) -> timedelta:
        """How long a beat is good for: a few may be missed."""
        return max(4 * self.every, timedelta(seconds=1)) + timedelta(seconds=5)


class Beat(Message):
    """A Lease as it was read: a sign of life."""

    holder: str
    renewed_at: str
    """As it is written there; compared with what was read before, never with a clock."""

    duration: Duration
    """How far apart two renewals may be and still count as unbroken."""

    promises: dict[str, GpuCount] = Field(default_factory=dict)
    """Guarantees in force that differ from what policies ask, by group: the bank's last word on them."""

    @property
    def token(self) -> str:
        """What differs after every renewal."""
        return f"{self.holder} {self.renewed_at}"


class CohortQueue(Message):
    """One ClusterQueue as the fail-safe sees it."""

    name: str
    group: str
    kind: Side
    version: str
    """Opaque version of the object, for compare-and-set."""

    nominal: GpuCount
    reserved: GpuCount = 0
    in_cohort: bool = False
    """Whether it stands in the pool's Cohort."""

    borrowing_limit: int | None = None
    reclaims: bool = False
    """Whether it takes back what others of the Cohort borrow of it."""

    epoch: int = 0
    """Epoch that it was put into the Cohort for; 0 for none."""

    best_effort: bool = True
    """Whether one that does not fit lets others pass."""

    acknowledged: bool = False
    """Whether the scheduler has taken in its spec as it stands."""


class CohortFacts(Message):
    """One pool's Cohort, and the queues that may stand in it."""

    pool: str
    version: str = ""
    """Opaque version of the Cohort; empty while there is none."""

    epoch: int = 0
    """Epoch that stands; 0 while the bank is in charge."""

    last_epoch: int = 0
    """Highest epoch that ever stood."""

    surplus: GpuCount = 0
    """Quota of the Cohort itself."""

    queues: tuple[CohortQueue, ...] = ()


class Begin(NamedTuple):
    """Write the epoch on the Cohort, without any quota of its own; the first write of a switch."""

    epoch: int
    at: AwareDatetime


class Enter(NamedTuple):
    """Put one queue into the Cohort."""

    queue: CohortQueue
    nominal: int
    borrowing_limit: int
    reclaims: bool
    epoch: int


class Lend(NamedTuple):
    """Give the Cohort what no group is guaranteed."""

    surplus: int
    epoch: int


class End(NamedTuple):
    """Clear the epoch, if it is still this one: the bank takes its queues back."""

    epoch: int


FailSafeWrite = Begin | Enter | Lend | End
