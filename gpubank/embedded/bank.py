"""The whole bank in one process: where the embedded mode's ports, worker and controller meet.

    Temporal's dev server (child process)
    worker ── controller ── simulated cluster ── SQLite
    Unix socket ◀── gpubank quota, loan, reclaim, freeze, apply, ...

The simulated cluster lives as long as the process, so every start begins with empty books; what the run before left
stays beside them as `*.previous`.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from aiohttp import web

from gpubank.adapters.checkpoint import AddressRules, CheckpointHooks, FsspecStorage, HttpHook
from gpubank.adapters.ledger import SqlLedger
from gpubank.agreements import Agreements
from gpubank.api.server import EmbeddedApi
from gpubank.client import BankClient
from gpubank.controller.controller import Controller
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.contract import Transport
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.pool import Backend
from gpubank.embedded.devserver import DevServer
from gpubank.settings import Settings
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.simulation.workloads import JobView
from workers.wiring import Ports, make_workers, run_workers
from workflows import attributes

log = logging.getLogger(__name__)

KEPT = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "temporal.db", "temporal.db-wal", "temporal.db-shm")


class EmbeddedBank:
    """A running embedded bank."""

    def __init__(
        self,
        settings: Settings,
        cluster: SimulatedCluster,
        ledger: SqlLedger,
        client: BankClient,
        controller: Controller,
        server: DevServer,
    ) -> None:
        self.settings, self.cluster, self.ledger = settings, cluster, ledger
        self.client, self.controller, self.server = client, controller, server

    def status(self) -> Mapping[str, Any]:
        """What `GET /v1/status` answers."""
        return {
            "version": metadata.version("gpubank"),
            "pid": os.getpid(),
            "cluster": self.settings.cluster.name,
            "temporal": self.server.address,
            "ui": self.server.ui_url,
            "database": self.settings.database_url,
        }

    async def add_nodes(self, pool: str, count: int, gpus: int) -> None:
        """Add `count` nodes with `gpus` GPUs each to the pool's nodes."""
        have = sum(node.name.startswith(f"{pool}-") for node in (await self._nodes(pool)))
        for index in range(have, have + count):
            self.cluster.add_node(f"{pool}-{index}", gpus, pool=pool)

    async def _nodes(self, pool: str) -> Sequence[Any]:
        try:
            return (await self.cluster.observe(pool)).nodes
        except BackendError:
            return ()  # the pool is not laid out yet


class Jobs:
    """`JobDoor` on the simulated cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    async def submit(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create a Job or Deployment; a Deployment that is there is scaled."""
        meta = manifest.get("metadata", {})
        name, namespace = str(meta.get("name", "")), str(meta.get("namespace", "default"))
        if manifest.get("kind") == "Deployment":
            replicas = manifest.get("spec", {}).get("replicas", 1)
            if self._cluster.scale_deployment(name, replicas, namespace):
                return dict(manifest)
        self._cluster.submit(manifest)
        return dict(manifest)

    async def jobs(self) -> Sequence[dict[str, Any]]:
        """Every Job and Deployment, with its state."""
        return [_job_body(job) for job in self._cluster.list_jobs()]

    async def delete_job(self, kind: str, namespace: str, name: str) -> bool:
        """Delete one; False when there was none."""
        return self._cluster.delete_job(name, namespace, kind=kind)


def _job_body(job: JobView) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "metadata": {"name": job.name, "namespace": job.namespace},
        "status": {"state": job.state.value},
    }


@asynccontextmanager
async def embedded_bank(settings: Settings, *, quiet_seconds: float = 0.0) -> AsyncIterator[EmbeddedBank]:
    """Run everything until the block ends; `quiet_seconds` lets the controller take its first look before."""
    folder = settings.state_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if await _answers(settings.socket):
        raise PolicyError(
            f"a bank already answers on {str(settings.socket)!r}; use it, end it, or give another --state-dir"
        )
    _set_aside(folder)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer(folder, search_attributes=attributes.KINDS))
        ledger = await stack.enter_async_context(await SqlLedger.open(settings.database_url))
        cluster = SimulatedCluster(name=settings.cluster.name, home=folder / "pods")
        await stack.enter_async_context(cluster.running())
        temporal = settings.temporal.model_copy(update={"address": server.address, "namespace": "default"})
        client = await BankClient.connect(temporal)
        storage = FsspecStorage()
        stack.callback(storage.close)
        controller = Controller(
            settings.cluster.name,
            objects=cluster.objects,
            backends={Backend.KUEUE: cluster},
            ledger=ledger,
            processes=client,
            notifier=cluster.notices,
            heartbeats=client,
            leases=cluster.leases,
            now=_now,
            resync=timedelta(seconds=settings.controller.resync_seconds),
        )
        ports = Ports(
            quota=cluster,
            ledger=ledger,
            terms=Agreements(settings.cluster.name, cluster.objects),
            notifier=cluster.notices,
            hook=_hooks(settings),
            storage=storage,
            leases=cluster.leases,
            nodes=cluster.servicing,
            incidents=settings.incidents.policy,
            attest=AttestPolicy(check_hashes=settings.checkpoint.hash_files),
        )
        stop = asyncio.Event()
        workers = make_workers(
            client.temporal, settings.cluster.name, ports, client, cached_workflows=settings.worker.cached_workflows
        )
        worker_task = asyncio.create_task(run_workers(workers, stop), name="workers")
        stack.push_async_callback(_finish, worker_task, stop)
        controller_task = asyncio.create_task(controller.run(), name="controller")
        stack.push_async_callback(_cancel, controller_task)
        bank = EmbeddedBank(settings, cluster, ledger, client, controller, server)
        await stack.enter_async_context(_socket(bank))
        await asyncio.sleep(quiet_seconds)
        yield bank


def _hooks(settings: Settings) -> CheckpointHooks:
    """Ask over HTTP, on loopback too: the pods of the simulation are processes of this machine."""
    rules = AddressRules(loopback=True, networks=settings.checkpoint.allowed_networks)
    timeout = timedelta(seconds=settings.checkpoint.request_timeout_seconds)
    return CheckpointHooks({Transport.HTTP: HttpHook(rules=rules, timeout=timeout)})


@asynccontextmanager
async def _socket(bank: EmbeddedBank) -> AsyncIterator[None]:
    """Answer on the Unix socket; only this user can connect."""
    path = bank.settings.socket
    path.unlink(missing_ok=True)
    api = EmbeddedApi(objects=bank.cluster.objects, backend=bank.cluster, jobs=Jobs(bank.cluster), status=bank.status)
    runner = web.AppRunner(api.app(), access_log=None)
    await runner.setup()
    before = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(path)).start()
    finally:
        os.umask(before)
    try:
        yield
    finally:
        await runner.cleanup()
        path.unlink(missing_ok=True)


async def _answers(socket: Path) -> bool:
    """Whether a process listens on the socket; a file that a crash left behind does not count."""
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _set_aside(folder: Path) -> None:
    """Keep the files of the run before as `*.previous`."""
    for name in KEPT:
        (folder / f"{name}.previous").unlink(missing_ok=True)
        if (folder / name).exists():
            (folder / name).rename(folder / f"{name}.previous")


async def _finish(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    await asyncio.gather(task, return_exceptions=True)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _now() -> datetime:
    return datetime.now(UTC)
