"""Every name that the bank and others agree on: labels, annotations, finalizers, queues; and the workload contract.

A workload says in its labels and annotations what may be done to it:

    workload-type training|inference|notebook|batch     retryable "true"     capacity-role serving-floor …
    checkpoint transport + storage [+ endpoint]         expected-duration 30m

    capacity-role or inference ─▶ never a victim        retryable ─▶ batch
    checkpoint hook ─▶ checkpointable                   notebook ─▶ development        else unsaveable

A malformed value counts as absent and is reported; it never makes a workload easier to stop.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

from gpubank.domain.base import BORROW_SUFFIX, GROUP, Duration, Message, parse_duration
from gpubank.domain.errors import Problem
from gpubank.domain.policy import PreemptClass

# What workloads say -----------------------------------------------------------------------------------------

WORKLOAD_TYPE_LABEL: Final = f"{GROUP}/workload-type"
RETRYABLE_LABEL: Final = f"{GROUP}/retryable"
CAPACITY_ROLE_LABEL: Final = f"{GROUP}/capacity-role"
EXPECTED_DURATION_ANNOTATION: Final = f"{GROUP}/expected-duration"
KEEP_RUNNING_ANNOTATION: Final = f"{GROUP}/keep-running-until"

OWNER_ID_LABEL: Final = f"{GROUP}/owner-id"
"""Who runs it, as the platform's directory names them; a claim until admission writes it."""
MODEL_NAME: Final = f"{GROUP}/model"
"""Label, or annotation where the name holds a slash: the model that is trained or served."""
MODEL_VERSION: Final = f"{GROUP}/model-version"
"""Label or annotation: that model's version."""

CHECKPOINT_PREFIX: Final = f"checkpoint.{GROUP}"
CHECKPOINT_TRANSPORT_ANNOTATION: Final = f"{CHECKPOINT_PREFIX}/transport"
CHECKPOINT_ENDPOINT_ANNOTATION: Final = f"{CHECKPOINT_PREFIX}/endpoint"
CHECKPOINT_STORAGE_ANNOTATION: Final = f"{CHECKPOINT_PREFIX}/storage"
CHECKPOINT_REQUEST_ANNOTATION: Final = f"{CHECKPOINT_PREFIX}/request"
"""The annotation transport: the bank writes the request (JSON) here, on the index-0 pod."""
CHECKPOINT_STATUS_ANNOTATION: Final = f"{CHECKPOINT_PREFIX}/status"
"""The annotation transport: the trainer writes its answer (JSON) here, on its own pod."""

# What the bank writes ----------------------------------------------------------------------------------------

FIELD_MANAGER: Final = "gpubank"
"""Field manager of everything the bank applies."""

FINALIZER: Final = f"{GROUP}/bank"
"""Holds an object of the bank while a loan that concerns it is open."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "gpubank"
"""Value of the managed-by label on everything the bank creates; objects without it are left alone."""

BANK_PREFIX: Final = f"bank.{GROUP}"
REVISION_ANNOTATION: Final = f"{BANK_PREFIX}/revision"
"""On a queue: the ledger revision its quota was computed from; a lower one never overwrites a higher."""
MARK_ANNOTATION: Final = f"{BANK_PREFIX}/mark"
"""On a Workload: JSON {loan, term, step}, written in one patch with `active`."""
FAIL_SAFE_EPOCH_ANNOTATION: Final = f"{BANK_PREFIX}/fail-safe-epoch"
"""On a pool's Cohort: the watchdog's epoch; while it is there, the bank writes no quota and no `active`.
On a queue: the epoch that it was put into the Cohort for."""
FAIL_SAFE_LAST_ANNOTATION: Final = f"{BANK_PREFIX}/fail-safe-last-epoch"
"""On a pool's Cohort: the highest epoch that ever stood, so that none comes twice."""
FAIL_SAFE_SINCE_ANNOTATION: Final = f"{BANK_PREFIX}/fail-safe-since"
"""On a pool's Cohort: when the last epoch began, RFC 3339."""
GROUP_LABEL: Final = f"{BANK_PREFIX}/group"
POOL_LABEL: Final = f"{BANK_PREFIX}/pool"
SIDE_LABEL: Final = f"{BANK_PREFIX}/side"
"""On a queue: `own` or `borrow`."""

# What nodes say ----------------------------------------------------------------------------------------------

NODE_PREFIX: Final = "accelerator.aik8s.run"
NODE_POOL_LABEL: Final = f"{NODE_PREFIX}/pool"
NODE_MODEL_LABEL: Final = f"{NODE_PREFIX}/model"
NODE_FABRIC_LABEL: Final = f"{NODE_PREFIX}/fabric"
NODE_LIFECYCLE_LABEL: Final = f"{NODE_PREFIX}/lifecycle"
NODE_VENDOR_LABEL: Final = f"{NODE_PREFIX}/vendor"

# Kueue's names that the bank uses ------------------------------------------------------------------------------

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS_LABEL: Final = "kueue.x-k8s.io/priority-class"
MIN_PARALLELISM_ANNOTATION: Final = "kueue.x-k8s.io/job-min-parallelism"
"""A partial job, which shrinks to what is there; refused in a borrow queue, for a loan is whole."""
ELASTIC_JOB_ANNOTATION: Final = "kueue.x-k8s.io/elastic-job"
"""An elastic job, which resizes while it runs; refused in a borrow queue, for a loan is whole."""


class Side(StrEnum):
    """The two queues of a group in a pool."""

    OWN = "own"
    BORROW = "borrow"


def own_queue(group: str, pool: str) -> str:
    """Name the ClusterQueue that holds the group's guarantee."""
    return f"{group}.{pool}.{Side.OWN}"


def borrow_queue(group: str, pool: str) -> str:
    """Name the ClusterQueue that holds the loans to the group."""
    return f"{group}.{pool}.{Side.BORROW}"


def queue_parts(queue: str) -> tuple[str, str, Side] | None:
    """Take a ClusterQueue's name apart into group, pool and side; None if it is none of the bank's."""
    parts = queue.split(".")
    if len(parts) != 3 or not all(parts) or parts[2] not in tuple(Side):
        return None
    return parts[0], parts[1], Side(parts[2])


def local_own_queue(pool: str) -> str:
    """Name the LocalQueue for guaranteed work, the same in every namespace of a group."""
    return pool


def local_borrow_queue(pool: str) -> str:
    """Name the LocalQueue for borrowing work, the same in every namespace of a group."""
    return f"{pool}{BORROW_SUFFIX}"


def cohort_name(pool: str) -> str:
    """Name the Cohort that the fail-safe uses; in normal operation no queue is in it."""
    return f"gpubank-{pool}"


def flavor_name(pool: str) -> str:
    """Name the pool's one ResourceFlavor."""
    return pool


# The workload contract ---------------------------------------------------------------------------------------


class WorkloadType(StrEnum):
    """What a workload is."""

    TRAINING = "training"
    INFERENCE = "inference"
    NOTEBOOK = "notebook"
    BATCH = "batch"


class Transport(StrEnum):
    """How a checkpoint is asked for."""

    HTTP = "http"
    ANNOTATION = "annotation"
    EXEC = "exec"


class ReclaimClass(StrEnum):
    """What stopping a workload costs, cheapest first; inference is never stopped."""

    RETRYABLE = "retryable"
    CHECKPOINTABLE = "checkpointable"
    NOTEBOOK = "notebook"
    UNSAVEABLE = "unsaveable"
    INFERENCE = "inference"

    @property
    def preempt_class(self) -> PreemptClass | None:
        """What a policy's onlyPreempt calls it; None for what is never a victim."""
        return _PREEMPT.get(self)

    @property
    def may_borrow(self) -> bool:
        """Whether a borrow queue admits it."""
        return self in (ReclaimClass.RETRYABLE, ReclaimClass.CHECKPOINTABLE, ReclaimClass.NOTEBOOK)


_PREEMPT: Final = {
    ReclaimClass.RETRYABLE: PreemptClass.BATCH,
    ReclaimClass.CHECKPOINTABLE: PreemptClass.CHECKPOINTABLE,
    ReclaimClass.NOTEBOOK: PreemptClass.DEVELOPMENT,
    ReclaimClass.UNSAVEABLE: PreemptClass.UNSAVEABLE,
}


class CheckpointHook(Message):
    """How a workload's checkpoint is asked for and where it lands."""

    transport: Transport
    storage: str
    """URI prefix under which every file of a checkpoint lies."""

    endpoint: str = ""
    """Address on the index-0 pod (http), or command (exec); empty where the running pod publishes its address."""


class WorkloadContract(Message):
    """What a workload's labels and annotations say about it."""

    workload_type: WorkloadType | None = None
    retryable: bool = False
    expected_duration: Duration | None = None
    """How long its author thinks it runs; None if unsaid."""

    checkpoint: CheckpointHook | None = None
    capacity_role: str = ""
    """Any value makes the workload no victim, as in `serving-floor`."""

    problems: tuple[Problem, ...] = ()
    """What is malformed; each counts as absent."""

    @classmethod
    def of(cls, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Self:
        """Read the contract from the labels and annotations of a Job or pod template; never raises."""
        reader = _Reader(labels, annotations)
        return cls(
            workload_type=reader.workload_type(),
            retryable=reader.retryable(),
            expected_duration=reader.expected_duration(),
            checkpoint=reader.checkpoint(),
            capacity_role=labels.get(CAPACITY_ROLE_LABEL, ""),
            problems=tuple(reader.problems),
        )

    @property
    def reclaim_class(self) -> ReclaimClass:
        """The cheapest class it qualifies for; malformed labels never make it cheaper."""
        if self.capacity_role or self.workload_type is WorkloadType.INFERENCE:
            return ReclaimClass.INFERENCE
        if self.retryable:
            return ReclaimClass.RETRYABLE
        if self.checkpoint is not None:
            return ReclaimClass.CHECKPOINTABLE
        return ReclaimClass.NOTEBOOK if self.workload_type is WorkloadType.NOTEBOOK else ReclaimClass.UNSAVEABLE


class _Reader:
    """Reads one workload's labels and annotations, collecting what is malformed."""

    def __init__(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        self._labels = labels
        self._annotations = annotations
        self.problems: list[Problem] = []

    def workload_type(self) -> WorkloadType | None:
        value = self._labels.get(WORKLOAD_TYPE_LABEL)
        if value is None:
            return None
        if value in tuple(WorkloadType):
            return WorkloadType(value)
        self._malformed("labels", WORKLOAD_TYPE_LABEL, value, f"must be one of {_listed(WorkloadType)}")
        return None

    def retryable(self) -> bool:
        value = self._labels.get(RETRYABLE_LABEL)
        if value not in (None, "true", "false"):
            self._malformed("labels", RETRYABLE_LABEL, str(value), "must be 'true' or 'false'")
        return value == "true"

    def expected_duration(self) -> Duration | None:
        value = self._annotations.get(EXPECTED_DURATION_ANNOTATION)
        if value is None:
            return None
        try:
            return parse_duration(value)
        except ValueError:
            self._malformed("annotations", EXPECTED_DURATION_ANNOTATION, value, "must be a duration as in '30m'")
            return None

    def checkpoint(self) -> CheckpointHook | None:
        transport = self._annotations.get(CHECKPOINT_TRANSPORT_ANNOTATION)
        storage = self._annotations.get(CHECKPOINT_STORAGE_ANNOTATION, "")
        endpoint = self._annotations.get(CHECKPOINT_ENDPOINT_ANNOTATION, "")
        if transport is None:
            if storage or endpoint:
                rule = f"storage and endpoint need a transport, one of {_listed(Transport)}"
                self._malformed("annotations", CHECKPOINT_TRANSPORT_ANNOTATION, "", rule)
            return None
        if transport not in tuple(Transport):
            rule = f"must be one of {_listed(Transport)}"
            self._malformed("annotations", CHECKPOINT_TRANSPORT_ANNOTATION, transport, rule)
            return None
        if "://" not in storage:
            rule = "must be the URI prefix under which checkpoints land, as in 's3://bucket/run-7'"
            self._malformed("annotations", CHECKPOINT_STORAGE_ANNOTATION, storage, rule)
            return None
        if transport == Transport.EXEC and not endpoint:
            rule = "must be the command that writes a checkpoint"
            self._malformed("annotations", CHECKPOINT_ENDPOINT_ANNOTATION, "", rule)
            return None
        return CheckpointHook(transport=Transport(transport), storage=storage, endpoint=endpoint)

    def _malformed(self, place: str, name: str, value: str, rule: str) -> None:
        field = f"metadata.{place}[{name}]"
        self.problems.append(Problem(field, value and repr(value), rule, "write it so, or remove it"))


def _listed(values: type[StrEnum]) -> str:
    return ", ".join(value for value in values)
