"""An API server on paper, with a Kueue that admits at once: what one turn of a pool's loop costs the bank alone.

It answers lists, watches, reads and patches from memory, so that what is measured is the bank's own work: reading
events into its caches, facts, books, decisions, the ledger's transactions, and the quotas that it writes.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime

from benchmarks.worlds import NODE, POOL, World
from gpubank.adapters.kubernetes.kinds import (
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    POD,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Kind,
    Object,
)
from gpubank.adapters.kubernetes.kinds import (
    NODE as NODE_KIND,
)
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.domain.contract import MANAGED_BY, MANAGED_BY_LABEL, POOL_LABEL, RETRYABLE_LABEL, REVISION_ANNOTATION, Side
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import QueueFacts, WorkloadFacts
from gpubank.domain.layout import GroupLayout, PoolLayout

RESOURCE = "nvidia.com/gpu"
LABEL = "accelerator.aik8s.run/pool"


class PaperCluster:
    """Every object by kind and name, and the events that follow."""

    def __init__(self, world: World) -> None:
        self._versions = itertools.count(1)
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = {}
        self._events: dict[Kind, asyncio.Queue[tuple[str, Object]]] = {}
        self.requests = 0
        """Reads and writes of single objects so far."""

        groups = tuple(
            GroupLayout(group=terms.group, namespaces=(f"team-{terms.group}",)) for terms in world.terms.groups
        )
        layout = PoolLayout(
            cluster=world.terms.cluster, pool=POOL, resource_name=RESOURCE, node_labels={LABEL: POOL}, groups=groups
        )
        self._put(RESOURCE_FLAVOR, queues.flavor(layout))
        facts = {(queue.group, queue.kind): queue for queue in world.facts.queues}
        for group in groups:
            for side in Side:
                self._put(CLUSTER_QUEUE, _queue(layout, group, side, facts[group.group, side]))
                self._put(LOCAL_QUEUE, queues.local_queue(layout, group, side, group.namespaces[0]))
        for node in world.facts.nodes:
            self._put(NODE_KIND, _node(node.name))
        for workload in world.facts.workloads:
            self.add(workload)

    # ---- the connection's part

    async def page(self, kind: Kind, *, selectors: Mapping[str, str], token: str = "") -> tuple[list[Object], str, str]:
        """List everything at once."""
        items = [_copy(body) for body in self._objects.get(kind, {}).values()]
        return items, str(next(self._versions)), ""

    async def all(self, kind: Kind, *, selectors: Mapping[str, str] | None = None) -> list[Object]:
        """List everything."""
        self.requests += 1
        return (await self.page(kind, selectors=selectors or {}))[0]

    async def watch(
        self, kind: Kind, *, version: str, selectors: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield what changes from now on."""
        events = self._events.setdefault(kind, asyncio.Queue())
        while True:
            yield await events.get()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Read one object."""
        self.requests += 1
        found = self._objects.get(kind, {}).get((namespace or "", name))
        return _copy(found) if found else None

    async def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Object, *, version: str = "", subresource: str = ""
    ) -> Object:
        """Merge a change; Kueue acknowledges it at once."""
        self.requests += 1
        body = _copy(self._objects[kind][namespace or "", name])
        if version and body["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"{kind} {name!r} has changed; read it again")
        metadata = change.get("metadata", {})
        body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), **metadata.get("annotations", {})}
        body["spec"] = {**body["spec"], **change.get("spec", {})}
        body["status"] = {**body["status"], **change.get("status", {})}
        body["metadata"]["generation"] = body["metadata"].get("generation", 1) + 1
        if kind == CLUSTER_QUEUE:
            body["status"]["conditions"] = _active(body["metadata"]["generation"])
        return _copy(self._put(kind, body))

    # ---- what happens on the cluster

    def add(self, workload: WorkloadFacts) -> None:
        """Submit a Workload; with its pods, where it runs."""
        self._put(WORKLOAD, _workload(workload))
        for pod in workload.pod_facts:
            self._put(POD, _pod(workload, pod.node))

    def admit(self, workload: WorkloadFacts, node: str, at: datetime) -> None:
        """Have Kueue admit a Workload, and its pod run on a node."""
        running = workload.model_copy(update={"reserved": True, "admitted_at": at})
        self._put(WORKLOAD, _workload(running))
        self._put(POD, _pod(running, node))
        side = Side.OWN if workload.kind is Side.OWN else Side.BORROW
        name = queues.QUEUE_NAMES[side](workload.group, POOL)
        body = _copy(self._objects[CLUSTER_QUEUE]["", name])
        body["status"]["flavorsReservation"] = _reservation(queues.reserved(body) + workload.gpus)
        self._put(CLUSTER_QUEUE, body)

    def nominal(self, group: str, side: Side) -> int:
        """Quota of a queue."""
        return queues.nominal(self._objects[CLUSTER_QUEUE]["", queues.QUEUE_NAMES[side](group, POOL)])

    def _put(self, kind: Kind, body: Object) -> Object:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        key = body["metadata"].get("namespace", ""), body["metadata"]["name"]
        change = "MODIFIED" if key in self._objects.setdefault(kind, {}) else "ADDED"
        self._objects[kind][key] = body
        if kind in self._events:
            self._events[kind].put_nowait((change, _copy(body)))
        return body


def _copy(body: Object) -> Object:
    """Return what a reader may keep: the bank drops parts of metadata only."""
    return {**body, "metadata": dict(body["metadata"]), "status": dict(body.get("status") or {})}


def _active(generation: int) -> list[Object]:
    return [{"type": "Active", "status": "True", "observedGeneration": generation}]


def _reservation(gpus: int) -> list[Object]:
    return [{"name": POOL, "resources": [{"name": RESOURCE, "total": str(gpus)}]}]


def _queue(layout: PoolLayout, group: GroupLayout, side: Side, facts: QueueFacts) -> Object:
    body = queues.cluster_queue(layout, group, side)
    body["metadata"] |= {"generation": 1, "annotations": {REVISION_ANNOTATION: str(facts.stamp)}}
    body["spec"]["resourceGroups"] = queues.resource_groups(POOL, RESOURCE, facts.nominal)
    body["status"] = {"conditions": _active(1), "flavorsReservation": _reservation(facts.reserved)}
    return body


def _node(name: str) -> Object:
    status = {"allocatable": {RESOURCE: str(NODE)}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {LABEL: POOL, MANAGED_BY_LABEL: MANAGED_BY, POOL_LABEL: POOL}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def _workload(facts: WorkloadFacts) -> Object:
    since = facts.waiting_since.isoformat()
    conditions: list[Object] = []
    status: Object = {"conditions": conditions}
    if facts.reserved:
        at = (facts.admitted_at or facts.waiting_since).isoformat()
        conditions += [
            {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at}
            for kind in ("QuotaReserved", "Admitted")
        ]
        status["admission"] = {
            "clusterQueue": queues.QUEUE_NAMES[facts.kind](facts.group, POOL),
            "podSetAssignments": [{"name": "main", "count": facts.pods}],
        }
    container = {"name": "main", "resources": {"requests": {RESOURCE: str(facts.gpus // facts.pods)}}}
    labels = {RETRYABLE_LABEL: "true"} if facts.contract.retryable else {}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "metadata": {
            "uid": facts.key.uid,
            "namespace": facts.key.namespace,
            "name": facts.key.name,
            "creationTimestamp": since,
            "ownerReferences": [{"kind": "Job", "name": facts.key.name, "uid": f"job-{facts.key.uid}"}],
        },
        "spec": {
            "queueName": queues.LOCAL_NAMES[facts.kind](POOL),
            "priority": facts.priority,
            "podSets": [{"name": "main", "count": facts.pods, "template": template}],
        },
        "status": status,
    }


def _pod(facts: WorkloadFacts, node: str) -> Object:
    container = {"name": "main", "resources": {"requests": {RESOURCE: str(facts.gpus)}}}
    owner = {"kind": "Job", "name": facts.key.name, "uid": f"job-{facts.key.uid}", "controller": True}
    return {
        "metadata": {
            "uid": f"{facts.key.uid}-0",
            "namespace": facts.key.namespace,
            "name": f"{facts.key.name}-0",
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }
