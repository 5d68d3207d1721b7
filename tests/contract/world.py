"""What a contract suite may do to a cluster, whatever cluster it is.

A `World` is one pool of its own with its groups and nodes, made for one test. Tests speak of groups and of jobs by
short names; a world maps them to names that are free on its cluster.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpubank.domain.contract import QUEUE_LABEL, RETRYABLE_LABEL, Side, local_borrow_queue, local_own_queue
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.layout import GroupLayout, PoolLayout
from gpubank.domain.pool import DEFAULT_RESOURCE
from gpubank.ports import ObjectStore, QuotaBackend

RETRYABLE: Mapping[str, str] = {RETRYABLE_LABEL: "true"}
"""Labels of the plainest work that may borrow."""


@dataclass(frozen=True)
class JobRequest:
    """A job that a test submits."""

    group: str
    name: str
    side: Side = Side.OWN
    pods: int = 1
    gpus_per_pod: int = 8
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    termination_grace: int = 5
    """Seconds between SIGTERM and SIGKILL."""

    command: Sequence[str] | None = None
    """What each pod runs; None for a pod that runs until it is told to end, and ends at once."""

    def manifest(self, world: "World") -> dict[str, Any]:
        """Write it as a `batch/v1` Job."""
        labels = {**(RETRYABLE if self.side is Side.BORROW else {}), **self.labels}
        spec = {"parallelism": self.pods, "completions": self.pods, "completionMode": "Indexed"}
        return _manifest(world, self, "batch/v1", "Job", spec, labels)


@dataclass(frozen=True)
class DeploymentRequest:
    """A Deployment in a group's own queue that a test submits."""

    group: str
    name: str
    replicas: int
    gpus_per_pod: int = 1
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    termination_grace: int = 5
    command: Sequence[str] | None = None
    side: Side = Side.OWN

    def manifest(self, world: "World") -> dict[str, Any]:
        """Write it as an `apps/v1` Deployment."""
        spec = {"replicas": self.replicas, "selector": {"matchLabels": {"app": self.name}}}
        return _manifest(world, self, "apps/v1", "Deployment", spec, self.labels)


class World(Protocol):
    """One pool on one cluster."""

    backend: QuotaBackend
    objects: ObjectStore
    cluster: str
    pool: str

    def namespace(self, group: str) -> str:
        """Return the namespace in which the group's work runs."""
        ...

    async def submit_job(self, job: JobRequest) -> None:
        """Submit a job; raises what the cluster says where it refuses."""
        ...

    async def submit_deployment(self, deployment: DeploymentRequest) -> None:
        """Submit a Deployment."""
        ...

    async def scale_deployment(self, group: str, name: str, replicas: int) -> None:
        """Set a Deployment's replicas."""
        ...

    async def delete_job(self, group: str, name: str) -> None:
        """Delete a job with its pods."""
        ...

    async def finish_job(self, group: str, name: str) -> None:
        """Let every pod of a job end well."""
        ...

    async def add_nodes(self, *gpus: int) -> None:
        """Add one node for each number, with that many GPUs."""
        ...

    async def lose_node(self, name: str) -> None:
        """Delete a node, and with it what runs there."""
        ...

    async def add_foreign_queue(self, group: str, side: Side) -> None:
        """Let somebody else own the ClusterQueue that the group's queue would be; its quota is 3."""
        ...

    async def quota(self, group: str, side: Side) -> int | None:
        """Return what the ClusterQueue's quota is, whoever owns it; None if there is none."""
        ...

    async def set_fail_safe(self, epoch: int) -> None:
        """Write the watchdog's epoch for the pool; 0 hands it back to the bank."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let time pass on the cluster."""
        ...

    async def wait_until(
        self, holds: Callable[[PoolFacts], object], *, timeout: float = 10.0, what: str = ""
    ) -> PoolFacts:
        """Return the first facts for which `holds`; fail, saying what was waited for, after `timeout` seconds."""
        ...


def layout(world: World, *groups: str) -> PoolLayout:
    """Return the layout of the world's pool for these groups."""
    return PoolLayout(
        cluster=world.cluster,
        pool=world.pool,
        resource_name=DEFAULT_RESOURCE,
        node_labels={"accelerator.aik8s.run/pool": world.pool},
        groups=tuple(GroupLayout(group=group, namespaces=(world.namespace(group),)) for group in groups),
    )


def job_of(facts: PoolFacts, name: str) -> WorkloadFacts | None:
    """Return the Workload of the Job called `name`, or None while there is none."""
    return next((each for each in facts.workloads if each.key.job == f"Job/{name}"), None)


def pods_of(facts: PoolFacts, deployment: str) -> tuple[WorkloadFacts, ...]:
    """Return the Workloads of a Deployment's pods, whichever of the two their owner is said to be."""
    owners = (f"Pod/{deployment}-", f"Deployment/{deployment}", f"ReplicaSet/{deployment}-")
    return tuple(each for each in facts.workloads if each.key.job.startswith(owners))


def the(facts: PoolFacts, name: str) -> WorkloadFacts:
    """Return the Workload of the Job called `name`, which must be there."""
    found = job_of(facts, name)
    assert found is not None, f"no workload of job {name!r}; there are {[each.key.job for each in facts.workloads]}"
    return found


def story(facts: PoolFacts) -> str:
    """Tell the facts in a line per queue and Workload, short enough for a log that is cut."""
    lines = [f"{each.name}: nominal {each.nominal}, reserved {each.reserved}, r{each.stamp}" for each in facts.queues]
    for each in facts.workloads:
        pods = ", ".join(f"{pod.name} on {pod.node or 'no node'}" for pod in each.pod_facts) or "no pods"
        flags = [name for name in ("active", "reserved", "finished", "refused", "placed") if getattr(each, name)]
        wait = "" if each.reserved else f", waits for {each.wait.value}"
        lines.append(f"{each.key.job} of {each.group}: {each.gpus} GPUs, {' '.join(flags)}{wait}; {pods}")
    return "\n".join(lines)


def _manifest(
    world: World,
    request: JobRequest | DeploymentRequest,
    api_version: str,
    kind: str,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    queue = local_own_queue(world.pool) if request.side is Side.OWN else local_borrow_queue(world.pool)
    amount = {DEFAULT_RESOURCE: str(request.gpus_per_pod)}
    annotations = dict(request.annotations)
    if request.command is not None:
        annotations["lab.gpubank.dev/command"] = json.dumps(list(request.command))
    metadata_labels = {QUEUE_LABEL: queue, **labels}
    if request.priority:
        metadata_labels["kueue.x-k8s.io/priority-class"] = priority_class(request.priority)
    pod_spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": request.termination_grace,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}],
    }
    if kind == "Job":
        pod_spec["restartPolicy"] = "Never"
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": request.name, "namespace": world.namespace(request.group), "labels": metadata_labels},
        "spec": {
            **spec,
            "template": {
                "metadata": {"labels": {"app": request.name, **labels}, "annotations": annotations},
                "spec": pod_spec,
            },
        },
    }


def priority_class(value: int) -> str:
    """Name the WorkloadPriorityClass of this value, which a world creates as it is needed."""
    return f"p{value}" if value >= 0 else f"minus{-value}"
