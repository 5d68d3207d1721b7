"""What the model scheduler is made of: terms, queues, jobs."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpubank.domain.contract import CheckpointHook, Side, Transport, WorkloadContract
from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import Mark
from gpubank.domain.terms import GroupTerms, PoolTerms

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
CLUSTER, POOL = "local", "h100"
WHOLE = (DemandKind.WORKLOAD, DemandKind.PLACEMENT)

RETRYABLE = WorkloadContract(retryable=True)
SERVING = WorkloadContract(retryable=True, capacity_role="serving-floor")
HOOKED = WorkloadContract(checkpoint=CheckpointHook(transport=Transport.HTTP, storage="file:///ckpt"))


def group_terms(name: str, guaranteed: int, **update: object) -> GroupTerms:
    """Terms of a group that lends all it has and borrows what it likes."""
    terms = GroupTerms(group=name, guaranteed=guaranteed, borrow_limit=1000, lending_limit=guaranteed)
    return terms.model_copy(update=update)


def pool_terms(*groups: GroupTerms, capacity: int, **update: object) -> PoolTerms:
    """Terms of a pool that waits for nothing."""
    terms = PoolTerms(
        cluster=CLUSTER,
        pool=POOL,
        resource_name="nvidia.com/gpu",
        capacity=capacity,
        groups=groups,
        max_grace_period=timedelta(minutes=10),
        max_termination=timedelta(seconds=60),
        max_time_to_return=timedelta(hours=1),
        resume_after=timedelta(0),
        min_run_time=timedelta(0),
        fail_safe_after=timedelta(minutes=5),
    )
    return terms.model_copy(update=update)


@dataclass
class Queue:
    """A ClusterQueue: its quota, and the one that a running admission cycle still uses."""

    nominal: int = 0
    old: int = 0
    stamp: int = -1
    fenced: int = -1


@dataclass
class Job:
    """A Workload and its pods."""

    uid: str
    group: str
    kind: Side
    pods: int
    size: int
    created_at: datetime
    priority: int = 0
    priority_class: str = ""
    contract: WorkloadContract = RETRYABLE
    active: bool = True
    reserved: bool = False
    finished: bool = False
    admitted_at: datetime | None = None
    waiting_since: datetime = NOW
    mark: Mark | None = None
    nodes: list[str] = field(default_factory=list)
    """Node of every pod that runs."""

    @property
    def gpus(self) -> int:
        """What it asks for."""
        return self.pods * self.size

    @property
    def term(self) -> int:
        """Term in which it runs."""
        return self.mark.term if self.mark is not None else 1
