"""What the bank keeps of each object in its caches: small, already read, and independent of any pool.

A pod's manifest is some ten kilobytes, a Workload's more; a cluster has tens of thousands of them. An entry holds
only what some fact is made of.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.adapters.kubernetes.quantities import Requests, floor, pod_requests
from gpubank.domain.base import GROUP, bounded
from gpubank.domain.contract import CHECKPOINT_PREFIX, MARK_ANNOTATION
from gpubank.domain.facts import Mark, Wait

WORKLOAD_ANNOTATION: Final = "kueue.x-k8s.io/workload"
"""On a pod: name of the Workload that it was admitted with."""

_INDEX_LABELS: Final = ("batch.kubernetes.io/job-completion-index", "kueue.x-k8s.io/pod-group-pod-index")
_SECOND: Final = timedelta(seconds=1)

_QUOTA_REASONS: Final = frozenset(
    {"WaitingForQuota", "ExceedsMaxQuota", "PendingEvaluation", "WaitingForPreemptedWorkloads"}
)
_REFUSALS: Final = frozenset({"WaitingForQuota", "ExceedsMaxQuota"})
_OTHER_WORDS: Final = (
    "untolerated taint",
    "doesn't match node affinity",
    "unavailable in ClusterQueue",
    "topology",
    "is inactive",
    "not found",
    "is stopped",
    "admission checks",
    "namespace",
    "LimitRange",
)
"""What Kueue's message on a Workload that it cannot admit says when quota is not the matter, or not the only one."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One ownerReference."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod that asks for devices and has not finished."""

    uid: str
    namespace: str
    name: str
    owner: str
    """uid of its controller; empty for a bare pod."""

    workload: str
    """Name of its Workload, where Kueue wrote it on the pod."""

    requests: Requests
    node: str
    ip: str
    running: bool
    terminating: bool
    index: int
    labels: Mapping[str, str]
    """Only the bank's."""

    annotations: Mapping[str, str]
    """Only the bank's."""

    ends_by: datetime | None = None
    """When its grace ends; the server writes the end, not the beginning, as deletionTimestamp."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node that has devices."""

    name: str
    labels: Mapping[str, str]
    allocatable: Requests
    ready: bool


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A Job's own words about itself."""

    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    suspended: bool = False
    """Whether it is to have no pods."""


@dataclass(frozen=True, slots=True)
class PodSet:
    """Equal pods of a Workload."""

    declared: int
    count: int
    """Pods admitted or asked for, net of those that will not run any more."""

    requests: Requests
    """Per pod."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of an object."""

    status: bool
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A Workload, whoever's queue it is in."""

    uid: str
    namespace: str
    name: str
    version: str
    queue: str
    """Name of its LocalQueue."""

    cluster_queue: str
    """ClusterQueue that its quota is reserved in; empty without a reservation."""

    owners: tuple[Owner, ...]
    priority: int
    created_at: datetime
    active: bool
    pod_sets: tuple[PodSet, ...]
    conditions: Mapping[str, Condition]
    requeue_at: datetime | None
    wait: Wait
    """What it waits for, a requeue time aside; meaningful without a reservation."""

    mark: Mark | None
    state_since: datetime
    """Since when it has held a reservation, or waited as it does."""

    priority_class: str = ""
    """Name of its WorkloadPriorityClass or PriorityClass; empty for none."""

    @property
    def finished(self) -> bool:
        return self.holds("Finished")

    @property
    def reserved(self) -> bool:
        return self.holds("QuotaReserved") and not self.finished

    @property
    def refused(self) -> bool:
        """Whether an admission cycle has looked at it since it began to wait, and found too little quota."""
        quota = self.conditions.get("QuotaReserved")
        return quota is not None and not quota.status and _lacks_quota(quota)

    def holds(self, condition: str) -> bool:
        """Tell whether a condition is True."""
        found = self.conditions.get(condition)
        return found is not None and found.status

    def gpus(self, resource: str) -> int:
        """Devices it asks for, or holds, in all; within the bounds of what is reckoned with."""
        return bounded(sum(each.count * each.requests.get(resource, 0) for each in self.pod_sets))

    def declares(self, resource: str) -> bool:
        """Tell whether it ever asked for any."""
        return any(each.declared * each.requests.get(resource, 0) for each in self.pod_sets)


# ---- readers


def read_pod(body: Object, before: PodEntry | None = None) -> PodEntry | None:
    """Read a pod; None for one without devices."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    requests = pod_requests(spec)
    if not requests or status.get("phase") in ("Succeeded", "Failed"):
        return None
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    controller = next((ref["uid"] for ref in metadata.get("ownerReferences") or () if ref.get("controller")), "")
    return PodEntry(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        owner=controller,
        workload=annotations.get(WORKLOAD_ANNOTATION, ""),
        requests=requests,
        node=spec.get("nodeName") or "",
        ip=status.get("podIP") or "",
        running=status.get("phase") == "Running",
        terminating="deletionTimestamp" in metadata,
        index=_index(labels),
        labels=_ours(labels),
        annotations=_ours(annotations),
        ends_by=_time(metadata.get("deletionTimestamp")),
    )


def read_node(body: Object, before: NodeEntry | None = None) -> NodeEntry | None:
    """Read a node; None for one without devices."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    allocatable = {name: floor(amount) for name, amount in (status.get("allocatable") or {}).items() if "/" in name}
    if not any(allocatable.values()):
        return None
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions") or ())
    return NodeEntry(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        allocatable=allocatable,
        ready=ready and not spec.get("unschedulable", False),
    )


def read_job(body: Object, before: JobEntry | None = None) -> JobEntry | None:
    """Read a Job; None for one that says nothing of the bank's contract and is not suspended."""
    metadata = body["metadata"]
    labels, annotations = _ours(metadata.get("labels") or {}), _ours(metadata.get("annotations") or {})
    suspended = bool((body.get("spec") or {}).get("suspend"))
    if not labels and not annotations and not suspended:
        return None
    return JobEntry(metadata["uid"], labels, annotations, suspended)


class WorkloadReader:
    """Reads Workloads, and remembers to a fraction of a second when their state changed.

    Kubernetes writes times in whole seconds, cut off, so that a Workload created just now may look a second old. The
    reader was there when it changed and knows better; after a restart it takes the latest moment that fits.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def __call__(self, body: Object, before: WorkloadEntry | None = None) -> WorkloadEntry:
        """Read one Workload."""
        metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
        conditions = {each["type"]: _condition(each) for each in status.get("conditions") or ()}
        active = spec.get("active") is not False
        checks = [each.get("state") for each in status.get("admissionChecks") or ()]
        entry = WorkloadEntry(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            version=metadata.get("resourceVersion", ""),
            queue=spec.get("queueName") or "",
            cluster_queue=(status.get("admission") or {}).get("clusterQueue") or "",
            owners=tuple(_owner(ref) for ref in metadata.get("ownerReferences") or ()),
            priority=int(spec.get("priority") or 0),
            priority_class=(spec.get("priorityClassRef") or {}).get("name") or "",
            created_at=_time(metadata.get("creationTimestamp")) or self._clock(),
            active=active,
            pod_sets=_pod_sets(spec, status),
            conditions=conditions,
            requeue_at=_time((status.get("requeueState") or {}).get("requeueAt")),
            wait=wait_of(active, conditions, failed_check="Retry" in checks or "Rejected" in checks),
            mark=read_mark(metadata.get("annotations") or {}),
            state_since=self._clock(),
        )
        if before is None or before.uid != entry.uid:
            # No condition tells since when it is refused for another reason; who held quota is billed until it lost it.
            if entry.wait is Wait.OTHER and "Evicted" not in entry.conditions:
                return entry
            return replace(entry, state_since=min(entry.state_since, _changed_at(entry) + _SECOND))
        unchanged = (before.reserved, before.wait) == (entry.reserved, entry.wait)
        return replace(entry, state_since=before.state_since) if unchanged else entry


def wait_of(active: bool, conditions: Mapping[str, Condition], *, failed_check: bool) -> Wait:
    """Tell what a Workload without a reservation waits for, a requeue time aside.

    Kueue says so in a reason only with its gate UnadmittedWorkloadsObservability; without it the reason is `Pending`
    whatever the matter, and only the message tells a lack of quota from a flavor that will never fit.
    """
    quota, requeued = conditions.get("QuotaReserved"), conditions.get("Requeued")
    if not active:
        return Wait.INACTIVE
    if failed_check:
        return Wait.CHECK
    # A moment after its reactivation it still bears the words of its deactivation.
    if requeued is not None and not requeued.status and requeued.reason != "Deactivated":
        return Wait.BACKOFF
    if quota is None or quota.status or quota.reason in _QUOTA_REASONS:
        return Wait.QUOTA
    if quota.reason == "Pending":
        return Wait.OTHER if any(each in quota.message for each in _OTHER_WORDS) else Wait.QUOTA
    return Wait.OTHER


def _lacks_quota(quota: Condition) -> bool:
    """Tell whether Kueue says that an assignment failed for want of quota; an eviction says other things."""
    return quota.reason in _REFUSALS or ("insufficient" in quota.message and "quota" in quota.message)


def _changed_at(entry: WorkloadEntry) -> datetime:
    """Return when its state last changed, as far as its conditions tell, in whole seconds."""
    told = [entry.conditions[name].since for name in ("Requeued", "Evicted", "Finished") if name in entry.conditions]
    # A Workload that never held quota is told that there is none long after it began to wait.
    if (quota := entry.conditions.get("QuotaReserved")) and (quota.status or told):
        told.append(quota.since)
    return max([entry.created_at, *(each for each in told if each)])


def read_mark(annotations: Mapping[str, str]) -> Mark | None:
    """Read the bank's mark; None where there is none, or one that nobody of the bank has written."""
    try:
        return Mark.model_validate_json(annotations[MARK_ANNOTATION])
    except (KeyError, ValidationError):
        return None


def write_mark(mark: Mark) -> str:
    """Write a mark as `read_mark` reads it."""
    return json.dumps({"loan": mark.loan, "term": mark.term, "step": mark.step}, sort_keys=True)


def _pod_sets(spec: Object, status: Object) -> tuple[PodSet, ...]:
    assigned = {
        each["name"]: each.get("count") for each in (status.get("admission") or {}).get("podSetAssignments") or ()
    }
    reclaimable = {each["name"]: int(each.get("count") or 0) for each in status.get("reclaimablePods") or ()}
    found = []
    for pod_set in spec.get("podSets") or ():
        name, template = pod_set.get("name", "main"), pod_set.get("template") or {}
        metadata = template.get("metadata") or {}
        count = assigned.get(name) or int(pod_set.get("count") or 0)
        found.append(
            PodSet(
                declared=int(pod_set.get("count") or 0),
                count=max(int(count) - reclaimable.get(name, 0), 0),
                requests=pod_requests(template.get("spec") or {}),
                labels=_ours(metadata.get("labels") or {}),
                annotations=_ours(metadata.get("annotations") or {}),
            )
        )
    return tuple(found)


def _ours(names: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in names.items() if name.split("/", 1)[0].endswith(GROUP)}


def checkpoint_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return those of the checkpoint contract."""
    return {name: value for name, value in annotations.items() if name.startswith(f"{CHECKPOINT_PREFIX}/")}


def _owner(reference: Mapping[str, Any]) -> Owner:
    return Owner(reference["kind"], reference["name"], reference["uid"], reference.get("apiVersion", ""))


def _condition(body: Mapping[str, Any]) -> Condition:
    return Condition(
        status=body.get("status") == "True",
        reason=body.get("reason") or "",
        message=body.get("message") or "",
        since=_time(body.get("lastTransitionTime")),
    )


def _index(labels: Mapping[str, str]) -> int:
    for label in _INDEX_LABELS:
        if (value := labels.get(label, "")).isdecimal():
            return int(value)
    return 0


def _time(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value) if value else None
