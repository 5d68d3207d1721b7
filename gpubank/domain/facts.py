"""What a quota backend sees of one pool, in the bank's own words. Facts carry no judgement."""

from collections import Counter
from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpubank.domain.base import GpuCount, Message
from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.loan import WorkloadKey


class Wait(StrEnum):
    """What a Workload without quota waits for."""

    QUOTA = "Quota"
    """Nothing but quota (WaitingForQuota, or ExceedsMaxQuota, or nothing said yet)."""

    BACKOFF = "Backoff"
    """A requeue time ahead."""

    CHECK = "Check"
    """An admission check that has not passed."""

    INACTIVE = "Inactive"
    """`active` is false."""

    OTHER = "Other"
    """No matching flavor, a stopped queue, and the like."""


class Mark(Message):
    """Written with every stop and resume, in one patch with `active`: who did it, and for which step."""

    loan: str
    """Workflow id of the Loan."""

    term: int
    step: str
    """`stop` or `resume`."""


class QueueFacts(Message):
    """One ClusterQueue of the bank."""

    name: str
    group: str
    kind: Side
    nominal: GpuCount
    """Quota in force at the scheduler."""

    reserved: GpuCount = 0
    """GPUs reserved (QuotaReserved), net of reclaimable pods."""

    stamp: int = -1
    """Ledger revision whose quota was written last; -1 when none ever was."""

    fenced: int = -1
    """Highest stamp that no running admission cycle can precede: acknowledged, and the fence time has passed."""

    fail_safe: bool = False
    """Whether the queue stands in the fail-safe's cohort."""


class PodFacts(Message):
    """One pod of a Workload."""

    uid: str
    name: str
    gpus: GpuCount
    node: str = ""
    """Node it is bound to; empty while it waits."""

    running: bool = False
    terminating: bool = False
    ends_by: AwareDatetime | None = None
    """When its grace ends, once it is told to end; later than that nothing keeps it but a dead node or a finalizer."""

    index: int = 0
    """Completion index, where there is one."""

    ip: str = ""
    """Address; empty until it has one."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Only the checkpoint contract's."""


class WorkloadFacts(Message):
    """One Workload in a queue of the bank."""

    key: WorkloadKey
    group: str
    kind: Side
    gpus: GpuCount
    """Current request, net of reclaimable pods."""

    pods: int = 1
    """Pods it consists of; `gpus` is divided evenly among them."""

    priority: int = 0
    priority_class: str = ""
    """Name of the class that its priority comes from; empty where it names none."""

    created_at: AwareDatetime
    active: bool = True
    reserved: bool = False
    """QuotaReserved is True."""

    admitted_at: AwareDatetime | None = None
    finished: bool = False
    wait: Wait = Wait.QUOTA
    """Meaningful while `reserved` is False."""

    waiting_since: AwareDatetime
    """Since when it has waited as it does."""

    refused: bool = False
    """Whether the scheduler has considered it since, and has said that there is not enough quota for it."""

    evicted: str = ""
    """Reason of the Evicted condition while it is True."""

    mark: Mark | None = None
    version: str = ""
    """Opaque version of the object, for compare-and-set."""

    contract: WorkloadContract = WorkloadContract()
    suspendable: bool = True
    """Whether its kind can be suspended (bare pods cannot)."""

    pod_facts: tuple[PodFacts, ...] = ()

    @property
    def gpus_per_pod(self) -> int:
        """GPUs that each pod needs on one node."""
        return -(-self.gpus // max(self.pods, 1))

    @property
    def placed(self) -> bool:
        """Whether every pod is bound to a node."""
        bound = [pod for pod in self.pod_facts if pod.node and not pod.terminating]
        return len(bound) >= self.pods

    @property
    def works(self) -> bool:
        """Whether a pod of it runs that is not being ended: there may be something to lose."""
        return any(pod.running and not pod.terminating for pod in self.pod_facts)

    @property
    def gone(self) -> bool:
        """Whether it holds neither quota nor pods."""
        return not self.reserved and not self.pod_facts

    @property
    def next_term(self) -> int:
        """Term in which it would run if it were granted GPUs now."""
        if self.mark is None:
            return 1
        return self.mark.term + (self.mark.step == "stop")

    @property
    def given_up(self) -> bool:
        """Whether the scheduler deactivated it by itself, as after too many requeues; then it stays so.

        One that was evicted for another reason just before the bank deactivated it keeps that reason.
        """
        return self.evicted.startswith("DeactivatedDueTo")

    @property
    def stopped(self) -> bool:
        """Whether the bank stopped it and nobody has resumed it, finished or not."""
        return not self.active and self.mark is not None and self.mark.step == "stop"

    @property
    def parked(self) -> bool:
        """Whether the bank stopped it, and it can come back."""
        return self.stopped and not self.finished


class NodeFacts(Message):
    """One node of the pool."""

    name: str
    gpus: GpuCount
    """Allocatable GPUs."""

    used: GpuCount = 0
    """GPUs of all bound pods, terminating ones included, whoever owns them."""

    ready: bool = True
    """Ready and schedulable."""


class PoolFacts(Message):
    """Everything a decision needs to know about a pool's scheduler, at one moment."""

    cluster: str
    pool: str
    at: AwareDatetime
    queues: tuple[QueueFacts, ...] = ()
    workloads: tuple[WorkloadFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    fail_safe_epoch: int = 0
    """Epoch of the fail-safe; 0 when the bank is in charge."""

    fail_safe_since: AwareDatetime | None = None
    """When the fail-safe was last switched on, whether it still stands or not."""

    @property
    def in_fail_safe(self) -> bool:
        """Whether the scheduler borrows by itself: an epoch stands, or queues are still on their way back."""
        return self.fail_safe_epoch != 0 or any(queue.fail_safe for queue in self.queues)

    def queue(self, group: str, kind: Side) -> QueueFacts | None:
        """Return the group's queue, or None while it does not exist."""
        kept = self.__dict__.get("_queues")
        if kept is None or kept[0] is not self.queues:  # a copy of the facts may hold other queues
            found = {(q.group, q.kind): q for q in reversed(self.queues)}
            kept = self.__dict__["_queues"] = (self.queues, found)
        index: dict[tuple[str, Side], QueueFacts] = kept[1]
        return index.get((group, kind))

    def pending(self, group: str) -> int:
        """GPUs that Workloads of the group ask for and have not been admitted on."""
        kept = self.__dict__.get("_pending")
        if kept is None or kept[0] is not self.workloads:
            waiting = Counter[str]()
            for each in self.workloads:
                if not each.reserved and not each.finished:
                    waiting[each.group] += each.gpus
            kept = self.__dict__["_pending"] = (self.workloads, waiting)
        sums: Counter[str] = kept[1]
        return sums[group]

    def workload(self, uid: str) -> WorkloadFacts | None:
        """Return the Workload with `uid`, or None when it is gone."""
        kept = self.__dict__.get("_workloads")
        if kept is None or kept[0] is not self.workloads:
            kept = self.__dict__["_workloads"] = (self.workloads, {w.key.uid: w for w in reversed(self.workloads)})
        index: dict[str, WorkloadFacts] = kept[1]
        return index.get(uid)
