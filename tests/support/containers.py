"""A bank's pool on the lab's real node: its GPUs are of a class, its jobs are containers, and none is forgotten."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import NODE, POD, Object
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.contract import NODE_POOL_LABEL
from gpubank.lab import Lab
from gpubank.lab.access import Api, Manifest
from gpubank.lab.errors import LabError
from gpubank.lab.names import NODE_ADDRESS, REAL_NODE, REAL_POOL
from gpubank.lab.runtime import PAUSE_IMAGE
from tests.contract.kueue_world import KueueWorld
from tests.contract.world import JobRequest, World
from tests.support.bank import Bank
from tests.support.running import RunningBank


@dataclass(frozen=True)
class ContainerJob(JobRequest):
    """A job whose one pod is a container."""

    template: Manifest = field(default_factory=dict)
    """Pod template: `spec`, and `metadata` with annotations."""

    def manifest(self, world: World) -> dict[str, Any]:
        body = super().manifest(world)
        body["spec"]["template"]["metadata"]["annotations"] = self.template.get("metadata", {}).get("annotations", {})
        body["spec"]["template"]["spec"] = self.template["spec"]
        return body


class RealWorld(KueueWorld):
    """A pool of which the real node is the one node."""

    async def add_nodes(self, *gpus: int) -> None:
        """Take the real node into the pool; what GPUs it has, its device plugin says."""
        await self._label(self.pool)

    async def clear(self) -> None:
        await super().clear()
        await self._label(REAL_POOL)

    async def _label(self, pool: str) -> None:
        await self.connection.patch(NODE, REAL_NODE, None, {"metadata": {"labels": {NODE_POOL_LABEL: pool}}})


class RealBank(Bank):
    """A pool of a bank that runs, with containers as its work."""

    def __init__(
        self, world: RealWorld, client: BankClient, ledger: SqlLedger, folder: Path, pods: "Pods", resource: str
    ) -> None:
        super().__init__(world, client, ledger, folder, world.add_namespace)
        self.pods = pods
        self.connection = world.connection
        self.resource = resource
        """What a pod asks for to get one GPU."""

    async def submit(self, job: ContainerJob, group: str) -> None:
        """Submit a job of a group, which it is named by here."""
        self._jobs.append((group, job.name))
        await self.world.submit_job(job)

    async def _write_pool(self, more: Mapping[str, Any] | None = None) -> None:
        await super()._write_pool({"resourceName": self.resource, **(more or {})})


class Pods:
    """The last that was seen of every pod, also of those that are gone, and what their containers print."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._last: dict[str, Object] = {}
        self._deadlines: dict[str, datetime] = {}

    def of(self, job: str) -> list[Object]:
        """Return the pods that a job has had, oldest first."""
        mine = [pod for pod in self._last.values() if pod["metadata"].get("labels", {}).get("job-name") == job]
        return sorted(mine, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def now(self, pod: Object) -> Object:
        """Return what is known of a pod now."""
        return self._last[pod["metadata"]["uid"]]

    def deadline(self, pod: Object) -> datetime:
        """Return when the grace of a pod that was told to end is over."""
        return self._deadlines[pod["metadata"]["uid"]]

    async def log(self, pod: Object, container: str) -> str:
        """Return what a container has printed so far; empty before it runs."""
        with contextlib.suppress(LabError):
            return await asyncio.to_thread(self._api.text, _log(pod, container))
        return ""

    async def whole_log(self, pod: Object, container: str) -> str:
        """Return everything that a container prints up to its end, which is waited for."""
        return await asyncio.to_thread(self._api.text, _log(pod, container) + "&follow=true")

    async def watch(self, connection: Connection) -> None:
        """Keep looking."""
        pods, version, _ = await connection.page(POD, selectors={})
        for pod in pods:
            self._see(pod)
        while True:
            async for kind, pod in connection.watch(POD, version=version, selectors={}):
                version = pod["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self._see(pod)

    def _see(self, pod: Object) -> None:
        about = pod["metadata"]
        self._last[about["uid"]] = pod
        # The kubelet's own deletion, when all is over, writes a later one in its place.
        if "deletionTimestamp" in about:
            self._deadlines.setdefault(about["uid"], datetime.fromisoformat(about["deletionTimestamp"]))


def _log(pod: Object, container: str) -> str:
    about = pod["metadata"]
    return f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/log?container={container}"


@asynccontextmanager
async def real_pool(running: RunningBank, folder: Path, resource: str) -> AsyncIterator[RealBank]:
    """Open the one pool that the real node is in; all of it is gone when the block ends."""
    lab = running.lab
    async with Connection.open(lab.kubeconfig) as connection, KueueBackend(connection, cluster="lab") as backend:
        world = RealWorld(lab, connection, backend, KubernetesObjectStore(connection))
        with lab.api() as api:
            pods = Pods(api)
            watching = asyncio.create_task(pods.watch(connection))
            bank = RealBank(world, running.client, running.ledger, folder, pods, resource)
            try:
                yield bank
            finally:
                await bank.stop_auditing()
                await bank.leave()
                await world.clear()
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
    running.processes.check()


@asynccontextmanager
async def api_server_for_pods(lab: Lab) -> AsyncIterator[dict[str, str]]:
    """Let pods reach the API server, which listens on loopback; yields the environment that says where."""
    host, _, port = lab.url("kube-apiserver").partition(":")

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pour(reader, back), _pour(onward, writer), return_exceptions=True)

    async with await asyncio.start_server(join, NODE_ADDRESS, 0) as server:
        own = server.sockets[0].getsockname()[1]
        yield {"KUBERNETES_SERVICE_HOST": NODE_ADDRESS, "KUBERNETES_SERVICE_PORT": str(own)}


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while content := await source.read(65536):
            sink.write(content)
            await sink.drain()
    finally:
        sink.close()


# ---- the manifests of a page, on this machine


def documented(page: Path, transport: str, replaced: Mapping[str, str]) -> Manifest:
    """Return the pod template that a page shows for a checkpoint transport, with other names for things in it."""
    text = page.read_text()
    for name, other in replaced.items():
        assert name in text, f"{page.name} does not say {name!r}"
        text = text.replace(name, other)
    found = [each for each in yaml_blocks(text) if _transport(each) == transport]
    assert len(found) == 1, f"{page.name} has {len(found)} pod templates for {transport}"
    template: Manifest = found[0]
    return template


def yaml_blocks(text: str) -> list[Any]:
    """Return the documents in the YAML blocks of a page."""
    blocks = text.split("```yaml\n")[1:]
    return [found for block in blocks for found in yaml.safe_load_all(block.partition("\n```")[0])]


def _transport(document: Any) -> str | None:
    annotations = document.get("metadata", {}).get("annotations", {})
    found: str | None = annotations.get("checkpoint.platform.aik8s.run/transport")
    return found if "spec" in document else None


def on_this_machine(template: Manifest, own: Manifest, claims: Mapping[str, Path]) -> Manifest:
    """Return a template as the lab's node can run it.

    `own` is a spec of `gpubank.lab.podspec`: its image, its mounts and its environment go into every container, and its
    command into the first. `claims` are the folders of this machine behind the volumes' claims.
    """
    spec = dict(template["spec"])
    (base,) = own["containers"]
    containers = [_container(each, base) for each in spec["containers"]]
    containers[0] |= {"command": base["command"], "workingDir": base["workingDir"]}
    volumes = [_volume(each, claims) for each in spec.get("volumes", ())]
    spec |= {
        "containers": containers,
        "initContainers": [_container(each, base) for each in spec.get("initContainers", ())],
        "volumes": [*volumes, *own["volumes"]],
        "enableServiceLinks": False,
    }
    return {**template, "spec": spec}


def _container(shown: Manifest, base: Manifest) -> Manifest:
    named = {each["name"] for each in shown.get("env", ())}
    return {
        **shown,
        "image": PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "env": [*shown.get("env", ()), *(each for each in base["env"] if each["name"] not in named)],
        "volumeMounts": [*shown.get("volumeMounts", ()), *base["volumeMounts"]],
    }


def _volume(shown: Manifest, claims: Mapping[str, Path]) -> Manifest:
    if claim := shown.get("persistentVolumeClaim"):
        return {"name": shown["name"], "hostPath": {"path": str(claims[claim["claimName"]])}}
    return shown
