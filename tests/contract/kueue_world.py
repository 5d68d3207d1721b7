"""A pool on the lab's real Kueue as a `World`: namespaces, nodes and queues of its own, cleared away at the end."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError
from gpubank.adapters.kubernetes.kinds import (
    CLUSTER_QUEUE,
    COHORT,
    JOB,
    KUEUE_GROUP,
    KUEUE_VERSION,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Kind,
    Object,
)
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.domain.contract import (
    FAIL_SAFE_EPOCH_ANNOTATION,
    Side,
    borrow_queue,
    cohort_name,
    flavor_name,
    own_queue,
)
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.pool import DEFAULT_RESOURCE
from gpubank.lab import Lab
from gpubank.lab.names import COMPLETE_AFTER
from gpubank.ports import ObjectStore, QuotaBackend
from tests.contract.world import DeploymentRequest, JobRequest, priority_class, story

LOOK = 0.05
"""Seconds between two looks at the facts."""

_UNCONFIGURED = 60.0
"""Longest time that somebody goes on submitting what an API server refuses because it has just started, in seconds."""

DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
PRIORITY_CLASS = Kind(KUEUE_GROUP, KUEUE_VERSION, "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False)

_numbers = itertools.count(1)


class KueueWorld:
    """One pool on a real cluster."""

    def __init__(self, lab: Lab, connection: Connection, backend: KueueBackend, objects: ObjectStore) -> None:
        self.backend: QuotaBackend = backend
        self.objects = objects
        self.cluster = "lab"
        # Names are used once: Kueue's names derive from them, and what is left of an earlier one reads as admitted.
        self.pool = f"pool{next(_numbers)}"
        self.kueue = backend
        self.connection = connection
        self._lab = lab
        self._namespaces: set[str] = set()
        self._nodes: list[str] = []

    def namespace(self, group: str) -> str:
        return f"{self.pool}-{group}"

    async def submit_job(self, job: JobRequest) -> None:
        await self._submit(JOB, job.manifest(self), job.priority)

    async def submit_deployment(self, deployment: DeploymentRequest) -> None:
        await self._submit(DEPLOYMENT, deployment.manifest(self), deployment.priority)

    async def scale_deployment(self, group: str, name: str, replicas: int) -> None:
        await self.connection.patch(DEPLOYMENT, name, self.namespace(group), {"spec": {"replicas": replicas}})

    async def delete_job(self, group: str, name: str) -> None:
        namespace = self.namespace(group)
        workloads, _, _ = await self.connection.page(WORKLOAD, selectors={})
        assert await self.connection.delete(JOB, name, namespace)
        # The garbage collector of a lab that has just started does not know Workloads for half a minute.
        for body in workloads:
            owners = [(each["kind"], each["name"]) for each in body["metadata"].get("ownerReferences") or ()]
            if body["metadata"]["namespace"] == namespace and ("Job", name) in owners:
                await self.connection.delete(WORKLOAD, body["metadata"]["name"], namespace)

    async def finish_job(self, group: str, name: str) -> None:
        selectors = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
        pods, _, _ = await self.connection.page(POD, selectors=selectors)
        change = {"metadata": {"annotations": {COMPLETE_AFTER: "10ms"}}}
        for pod in pods:
            if pod["metadata"]["namespace"] == self.namespace(group):
                await self.connection.patch(POD, pod["metadata"]["name"], self.namespace(group), change)

    async def add_nodes(self, *gpus: int) -> None:
        for size, equals in itertools.groupby(gpus):
            count = len(list(equals))
            self._nodes += await asyncio.to_thread(self._lab.add_nodes, self.pool, count, size)

    async def lose_node(self, name: str) -> None:
        assert await self.connection.delete(NODE, name)
        self._nodes.remove(name)
        # As the garbage collector of pods does, which looks every 20 s.
        pods, _, _ = await self.connection.page(POD, selectors={"fieldSelector": f"spec.nodeName={name}"})
        for pod in pods:
            path = POD.path(pod["metadata"]["name"], pod["metadata"]["namespace"])
            await self.connection.call("DELETE", path, params={"gracePeriodSeconds": "0"})

    async def add_foreign_queue(self, group: str, side: Side) -> None:
        spec = {
            "namespaceSelector": {},
            "resourceGroups": queues.resource_groups(self.pool, DEFAULT_RESOURCE, 3),
        }
        await self.connection.create(CLUSTER_QUEUE, _body(CLUSTER_QUEUE, self._queue(group, side), spec))

    async def quota(self, group: str, side: Side) -> int | None:
        body = await self.connection.get(CLUSTER_QUEUE, self._queue(group, side))
        return None if body is None else queues.nominal(body)

    async def set_fail_safe(self, epoch: int) -> None:
        name, annotation = cohort_name(self.pool), {FAIL_SAFE_EPOCH_ANNOTATION: str(epoch) if epoch else None}
        if await self.connection.get(COHORT, name) is None:
            await self.connection.create(COHORT, _body(COHORT, name, {}))
        await self.connection.patch(COHORT, name, None, {"metadata": {"annotations": annotation}})

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait_until(
        self, holds: Callable[[PoolFacts], object], *, timeout: float = 10.0, what: str = ""
    ) -> PoolFacts:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            facts = await self.backend.observe(self.pool)
            if holds(facts):
                return facts
            if loop.time() >= end:
                raise AssertionError(f"not within {timeout} s: {what or holds}\n{story(facts)}")
            await asyncio.sleep(LOOK)

    async def add_namespace(self, name: str) -> None:
        """Create a namespace, once."""
        if name not in self._namespaces:
            self._namespaces.add(name)
            await self.connection.create(NAMESPACE, _body(NAMESPACE, name, {}))

    async def clear(self) -> None:
        """Remove everything of this world; what stays behind would slow the next one down."""
        for namespace in self._namespaces:
            for kind in (DEPLOYMENT, JOB, LOCAL_QUEUE):
                path = kind.path("", namespace)
                await self.connection.call("DELETE", path, params={"propagationPolicy": "Background"})
            await self.connection.delete(NAMESPACE, namespace)
        bodies, _, _ = await self.connection.page(CLUSTER_QUEUE, selectors={})
        for name in (body["metadata"]["name"] for body in bodies):
            if f".{self.pool}." in name:
                await self.connection.delete(CLUSTER_QUEUE, name)
        await self.connection.delete(RESOURCE_FLAVOR, flavor_name(self.pool))
        await self.connection.delete(COHORT, cohort_name(self.pool))
        for node in self._nodes:
            await self.connection.delete(NODE, node)

    async def _submit(self, kind: Kind, manifest: Object, priority: int) -> None:
        if priority:
            await self._priority_class(priority)
        end = time.monotonic() + _UNCONFIGURED
        while True:
            try:
                await self.connection.create(kind, manifest, strict=True)
            except ApiError as error:
                # An API server that was killed reads its policies anew, and knows our kinds some seconds later.
                if "failed to configure policy" not in str(error) or time.monotonic() > end:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    async def _priority_class(self, value: int) -> None:
        body = _body(PRIORITY_CLASS, priority_class(value), None) | {"value": value}
        try:
            await self.connection.create(PRIORITY_CLASS, body)
        except ConflictError:
            return

    def _queue(self, group: str, side: Side) -> str:
        return own_queue(group, self.pool) if side is Side.OWN else borrow_queue(group, self.pool)


@asynccontextmanager
async def kueue_world(lab: Lab, *groups: str) -> AsyncIterator[KueueWorld]:
    """Make a world with a namespace for each of these groups; it ends with the block."""
    async with (
        Connection.open(lab.kubeconfig) as connection,
        KueueBackend(connection, cluster="lab") as backend,
    ):
        world = KueueWorld(lab, connection, backend, KubernetesObjectStore(connection))
        try:
            for group in groups:
                await world.add_namespace(world.namespace(group))
            yield world
        finally:
            await world.clear()


def _body(kind: Kind, name: str, spec: Any) -> Object:
    body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}}
    return body if spec is None else body | {"spec": spec}
