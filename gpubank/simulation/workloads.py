"""The cluster's own records of work: jobs, their Workloads, their pods. Mutable, and nobody's but the simulation's."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpubank.domain.contract import WorkloadContract
from gpubank.domain.facts import Mark, Wait
from gpubank.domain.loan import WorkloadKey
from gpubank.simulation.commands import Command
from gpubank.simulation.manifests import JobManifest
from gpubank.simulation.processes import LocalProcess
from gpubank.simulation.queues import Queue

DEACTIVATED = "Deactivated"
"""Reason of an eviction by `active=false`, as Kueue says it."""

PREEMPTED = "Preempted"
"""Reason of an eviction for somebody else of the Cohort, as Kueue says it."""


@dataclass(eq=False)
class Pod:
    """One pod, from its creation until it is gone."""

    uid: str
    name: str
    namespace: str
    gpus: int
    index: int
    priority: int
    order: int
    """Ordinal of its creation."""

    selector: dict[str, str]
    """Labels that its node must have."""

    grace: float
    """Seconds between SIGTERM and SIGKILL."""

    annotations: dict[str, str] = field(default_factory=dict)
    command: Command | None = None
    gated: bool = False
    """Exists, but may not be placed before its Workload is admitted."""

    node: str = ""
    ip: str = ""
    running: bool = False
    terminating: bool = False
    ends_by: datetime | None = None
    """When its grace ends, once it is told to end."""

    stuck: bool = False
    """Does not go although it has ended: its node is dead, or a finalizer holds it."""

    gone: bool = False
    process: LocalProcess | None = None


@dataclass(eq=False)
class Workload:
    """One Kueue Workload."""

    uid: str
    namespace: str
    name: str
    job: str
    """`Kind/name` of the object that owns it."""

    manifest: JobManifest
    contract: WorkloadContract
    priority: int
    created_at: datetime
    order: int
    """Ordinal of its creation; breaks ties between equal times."""

    wanted: int
    """Pods that it consists of from the start."""

    waiting_since: datetime
    queue: Queue | None = None
    """ClusterQueue that it waits in; None while its LocalQueue does not exist."""

    gpus_per_pod: int = 0
    """Known once the queue is."""

    done: set[int] = field(default_factory=set)
    """Completion indexes whose pods ended well."""

    failed: int = 0
    """Pods that ended badly."""

    active: bool = True
    reserved: bool = False
    admitted_at: datetime | None = None
    finished: bool = False
    evicted: str = ""
    evicting: bool = False
    """Told to end, but its quota is not free yet."""

    gate: Wait | None = None
    """What it waits for besides quota, when a test says so."""

    mark: Mark | None = None
    version: int = 1
    pods: list[Pod] = field(default_factory=list)

    @property
    def key(self) -> WorkloadKey:
        """Its name for good."""
        return WorkloadKey(uid=self.uid, namespace=self.namespace, name=self.name, job=self.job)

    @property
    def current(self) -> int:
        """Pods that it still needs at a time, those that ended well taken off."""
        return min(self.wanted, self.manifest.completions - len(self.done)) if self.suspendable else self.wanted

    @property
    def suspendable(self) -> bool:
        """Whether its kind can be suspended."""
        return self.manifest.suspendable

    @property
    def gpus(self) -> int:
        """GPUs that it asks for or holds, those of pods that ended well taken off."""
        return self.current * self.gpus_per_pod

    @property
    def rank(self) -> tuple[int, datetime, int]:
        """Its place in the order of a queue: priority, then creation."""
        return -self.priority, self.created_at, self.order

    @property
    def wait(self) -> Wait:
        """What it waits for, if it waits."""
        if not self.active:
            return Wait.INACTIVE
        return self.gate or Wait.QUOTA

    @property
    def eligible(self) -> bool:
        """Whether an admission cycle may consider it."""
        waits = not self.reserved and not self.finished and not self.evicting
        return self.active and waits and self.gate is None


class JobState(StrEnum):
    """How a job fares, for people."""

    PENDING = "Pending"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(eq=False)
class Job:
    """One Job or Deployment."""

    manifest: JobManifest
    created_at: datetime
    priority: int
    replicas: int
    """Of a Deployment; 1 for a Job."""

    workloads: list[Workload] = field(default_factory=list)
    failed: bool = False

    @property
    def state(self) -> JobState:
        """How it fares."""
        if self.failed:
            return JobState.FAILED
        live = [workload for workload in self.workloads if not workload.finished]
        if self.workloads and not live:
            return JobState.SUCCEEDED
        if any(workload.evicting for workload in live):
            return JobState.STOPPING
        if any(not workload.active for workload in live):
            return JobState.STOPPING if any(workload.pods for workload in live) else JobState.STOPPED
        running = [pod.running for workload in live for pod in workload.pods if not pod.terminating]
        return JobState.RUNNING if running and all(running) else JobState.PENDING


@dataclass(frozen=True)
class JobView:
    """What `list_jobs` tells about a job."""

    kind: str
    namespace: str
    name: str
    queue: str
    """LocalQueue that it was submitted to."""

    state: JobState
    pods: int
    """Pods that it consists of at a time."""

    running: int
    created_at: datetime
    workloads: tuple[str, ...]
    """uids of its Workloads."""

    nodes: tuple[str, ...]
