"""Nodes taken out of service: one suite, on the simulation and on a real API server with its evictions."""

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import NAMESPACE, NODE, POD, Kind
from gpubank.adapters.kubernetes.nodes import KubernetesNodes
from gpubank.domain.servicing import INCIDENTS_ANNOTATION
from gpubank.lab import Lab
from gpubank.simulation.clock import SystemClock, Timing
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.simulation.servicing import Budget
from gpubank.simulation.workloads import Pod
from tests.contract.nodes_suite import PATIENCE, NodesSuite, Site, cordon, mark, uncordon
from tests.support.waiting import seen

pytestmark = pytest.mark.timeout(300)

BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets")
GPU = "nvidia.com/gpu"
_numbers = itertools.count(1)


class SimulatedSite:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._servicing = self.nodes = cluster.servicing
        self.pool = "h100"
        self.names = ["n1", "n2"]
        for name in self.names:
            cluster.add_node(name, 8, pool=self.pool)

    async def run(self, node: str, name: str, *, gpus: int = 1, kept: bool = False) -> None:
        pod = Pod(str(uuid.uuid4()), name, "team", gpus, 0, 0, next(_numbers), {}, 1.0)
        self._servicing.run_pod(pod, node, stays=kept)

    async def budget(self, names: str, min_available: int) -> None:
        self._servicing.set_budget(names, Budget("team", names, min_available))

    async def close(self, node: str) -> None:
        self._servicing.close(node)

    async def open(self, node: str) -> None:
        self._servicing.open(node)


class TestSimulation(NodesSuite):
    @pytest.fixture
    async def site(self) -> AsyncIterator[Site]:
        cluster = SimulatedCluster(SystemClock(), timing=Timing(termination=0.1))
        async with cluster.running():
            yield SimulatedSite(cluster)


class RealSite:
    """Two fake nodes of a real cluster, and people with kubectl's name."""

    def __init__(self, lab: Lab, connection: Connection) -> None:
        self.connection, self._lab = connection, lab
        self.nodes = KubernetesNodes(connection)
        self.pool = f"servicing{next(_numbers)}"
        self.namespace = f"{self.pool}-team"
        self.names: list[str] = []

    async def begin(self) -> None:
        self.names = list(await asyncio.to_thread(self._lab.add_nodes, self.pool, 2, 8))
        await self.connection.create(NAMESPACE, _body(NAMESPACE, self.namespace, None))
        await self._there(ACCOUNT, "default", lambda body: True)

    async def end(self) -> None:
        await self.connection.delete(NAMESPACE, self.namespace)
        for name in self.names:
            await self.connection.delete(NODE, name)

    async def run(self, node: str, name: str, *, gpus: int = 1, kept: bool = False) -> None:
        amount = {GPU: str(gpus)}
        container = {"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}
        if kept:
            await self._daemon_set(node, name, container)
            return
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
        body = _body(POD, name, spec, self.namespace)
        body["metadata"]["labels"] = {"app": name.partition("-")[0]}
        await self.connection.create(POD, body)
        await self._there(POD, name, lambda body: (body.get("status") or {}).get("phase") == "Running")

    async def _daemon_set(self, node: str, name: str, container: dict[str, Any]) -> None:
        """Have the cluster keep one pod of a DaemonSet on a node, and see it there."""
        labels, term = {"app": name}, {"key": "metadata.name", "operator": "In", "values": [node]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [term]}]}}
        spec = {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"affinity": {"nodeAffinity": affinity}, "containers": [container]},
            },
        }
        await self.connection.create(DAEMON_SET, _body(DAEMON_SET, name, spec, self.namespace))

        async def runs() -> bool:
            return any(pod.name.startswith(f"{name}-") for pod in await self.nodes.pods(node))

        await seen(runs, f"a pod of DaemonSet {name} on {node}", PATIENCE)

    async def _there(self, kind: Kind, name: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        body: dict[str, Any] | None = None

        async def there() -> bool:
            nonlocal body
            body = await self.connection.get(kind, name, self.namespace)
            return bool(body and holds(body))

        await seen(there, f"{kind} {name} as it should be", PATIENCE, say=lambda: body)

    async def budget(self, names: str, min_available: int) -> None:
        spec = {"minAvailable": min_available, "selector": {"matchLabels": {"app": names}}}
        if await self.connection.get(BUDGET, names, self.namespace) is None:
            await self.connection.create(BUDGET, _body(BUDGET, names, spec, self.namespace))
        else:
            await self.connection.patch(BUDGET, names, self.namespace, {"spec": spec})

    async def close(self, node: str) -> None:
        await self._by_hand(node, True)

    async def open(self, node: str) -> None:
        await self._by_hand(node, None)

    async def _by_hand(self, node: str, unschedulable: bool | None) -> None:
        await self.connection.call(
            "PATCH",
            NODE.path(node),
            body={"spec": {"unschedulable": unschedulable}},
            params={"fieldManager": "kubectl-cordon"},
            content_type="application/merge-patch+json",
        )


def _body(kind: Kind, name: str, spec: Any, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    body: dict[str, Any] = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
    return body if spec is None else body | {"spec": spec}


@pytest.fixture
async def real_site(lab: Lab) -> AsyncIterator[RealSite]:
    async with Connection.open(lab.kubeconfig) as connection:
        site = RealSite(lab, connection)
        await site.begin()
        try:
            yield site
        finally:
            await site.end()


class TestKubernetes(NodesSuite):
    @pytest.fixture
    def site(self, real_site: RealSite) -> Site:
        return real_site

    @pytest.mark.parametrize("text", ["no json", "[1]", '{"x": 1}', '{"x": {"scope": "Moon"}}', "null"])
    async def test_marks_that_nobody_of_the_bank_wrote_are_none(self, real_site: RealSite, text: str) -> None:
        name = real_site.names[0]
        change = {"metadata": {"annotations": {INCIDENTS_ANNOTATION: text}}}
        await real_site.connection.patch(NODE, name, None, change)
        node = await real_site.nodes.view(name)
        assert node is not None
        assert node.marks == ()
        await cordon(real_site, name, mark())
        assert (await uncordon(real_site, name, mark().incident)).opened

    async def test_a_mark_that_cannot_be_read_hides_no_other(self, real_site: RealSite) -> None:
        name = real_site.names[0]
        await cordon(real_site, name, mark())
        node = await real_site.connection.get(NODE, name)
        assert node is not None
        marks = json.loads(node["metadata"]["annotations"][INCIDENTS_ANNOTATION])
        change = {"metadata": {"annotations": {INCIDENTS_ANNOTATION: json.dumps({"a": 1, **marks, "z": {"x": 1}})}}}
        await real_site.connection.patch(NODE, name, None, change)
        seen = await real_site.nodes.view(name)
        assert seen is not None
        assert seen.marks == (mark(),)

    async def test_a_pod_whose_budgets_are_two_is_blocked_and_says_why(self, real_site: RealSite) -> None:
        await real_site.run(real_site.names[0], "serve-0")
        await real_site.budget("serve", 0)
        other = {"minAvailable": 0, "selector": {"matchLabels": {"app": "serve"}}}
        await real_site.connection.create(BUDGET, _body(BUDGET, "second", other, real_site.namespace))
        (pod,) = await real_site.nodes.pods(real_site.names[0])
        found = await real_site.nodes.evict(pod)
        assert found.outcome == "Blocked"
        assert "more than one" in found.message
