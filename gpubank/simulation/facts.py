"""The cluster's records in the bank's own words."""

from gpubank.domain.base import bounded
from gpubank.domain.contract import CHECKPOINT_PREFIX, Side
from gpubank.domain.facts import PodFacts, Wait, WorkloadFacts
from gpubank.simulation.workloads import Pod, Workload


def workload_facts(workload: Workload, group: str, kind: Side) -> WorkloadFacts:
    """Say what the bank may know of a Workload."""
    return WorkloadFacts(
        key=workload.key,
        group=group,
        kind=kind,
        gpus=bounded(workload.gpus),
        pods=workload.current,
        priority=workload.priority,
        priority_class=workload.manifest.priority_class,
        created_at=workload.created_at,
        active=workload.active,
        reserved=workload.reserved,
        admitted_at=workload.admitted_at,
        finished=workload.finished,
        wait=Wait.QUOTA if workload.reserved else workload.wait,
        waiting_since=workload.waiting_since,
        evicted=workload.evicted,
        mark=workload.mark,
        version=str(workload.version),
        contract=workload.contract,
        suspendable=workload.suspendable,
        pod_facts=tuple(pod_facts(pod) for pod in workload.pods),
    )


def pod_facts(pod: Pod) -> PodFacts:
    """Say what the bank may know of a pod."""
    return PodFacts(
        uid=pod.uid,
        name=pod.name,
        gpus=bounded(pod.gpus),
        node=pod.node,
        running=pod.running,
        terminating=pod.terminating,
        ends_by=pod.ends_by,
        index=pod.index,
        ip=pod.ip,
        annotations={k: v for k, v in pod.annotations.items() if k.startswith(f"{CHECKPOINT_PREFIX}/")},
    )
