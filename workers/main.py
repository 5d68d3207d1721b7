"""The worker process of cluster mode: `python -m workers.main`.

    kubeconfig ─ Kueue, objects, Events, pods ┐
    PostgreSQL ─ ledger                       ├─ Ports ─ two workers ─ Temporal
    fsspec     ─ checkpoints                  ┘

Several may run: Temporal hands every task to one of them, and what they do is safe to repeat.
"""

import asyncio
import logging
import signal
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib import metadata

from lightkube import AsyncClient, KubeConfig
from temporalio.common import WorkerDeploymentVersion

from activities.interfaces import BANK_QUEUE, cluster_queue
from gpubank.adapters.checkpoint import AddressRules, AnnotationHook, CheckpointHooks, ExecHook, FsspecStorage, HttpHook
from gpubank.adapters.checkpoint.pods import LightkubePods
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.events import KubernetesNotifier
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.leases import KubernetesLeases
from gpubank.adapters.kubernetes.nodes import KubernetesNodes
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.adapters.ledger import SqlLedger
from gpubank.adapters.webhook import NoTickets, Webhook
from gpubank.agreements import Agreements
from gpubank.client import BankClient
from gpubank.cycles import watching_cycles
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.contract import Transport
from gpubank.domain.errors import BankError
from gpubank.exit import clean_exit
from gpubank.faultgate import FaultGate
from gpubank.logs import configure
from gpubank.ports import CheckpointHook
from gpubank.probes import serving
from gpubank.settings import CheckpointSettings, ClusterSettings, Mode, Settings, WebhookSettings, WorkerSettings
from workers.telemetry import Telemetry
from workers.wiring import Ports, make_workers, run_workers

log = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until `stop` is set or something that cannot be mended here fails."""
    cluster = settings.cluster
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(await SqlLedger.open(settings.database_url))
        connection = await stack.enter_async_context(Connection.open(cluster.kubeconfig, cluster.context))
        backend = await stack.enter_async_context(KueueBackend(connection, cluster=cluster.name))
        objects = await stack.enter_async_context(KubernetesObjectStore(connection))
        pods = _pods_client(cluster)
        stack.push_async_callback(pods.close)
        storage = FsspecStorage()
        stack.callback(storage.close)
        telemetry = Telemetry()
        stack.push_async_callback(telemetry.close)
        client = await BankClient.connect(settings.temporal, telemetry.runtime)
        await client.register_search_attributes()
        tickets = _tickets(settings.incidents.webhook)
        if isinstance(tickets, Webhook):
            stack.push_async_callback(tickets.close)
        ports = Ports(
            quota=backend,
            ledger=ledger,
            terms=Agreements(cluster.name, objects.kept),
            notifier=KubernetesNotifier(connection),
            hook=_hooks(settings.checkpoint, LightkubePods(pods)),
            storage=storage,
            leases=KubernetesLeases(connection, settings.controller.namespace),
            nodes=KubernetesNodes(connection),
            tickets=tickets,
            incidents=settings.incidents.policy,
            attest=AttestPolicy(check_hashes=settings.checkpoint.hash_files),
            ended=telemetry.ended,
            faults=_gate(settings),
        )
        await stack.enter_async_context(watching_cycles(settings.kueue, backend.measured, telemetry.registry))
        version = version_of(settings.worker)
        probes = telemetry.probes((BANK_QUEUE, cluster_queue(cluster.name)), version)
        await stack.enter_async_context(serving(settings.observability, probes))
        counting = asyncio.create_task(telemetry.watch(client))
        stack.callback(counting.cancel)
        following = asyncio.create_task(telemetry.follow(client, version))
        stack.callback(following.cancel)
        workers = make_workers(
            client.temporal, cluster.name, ports, client, version, cached_workflows=settings.worker.cached_workflows
        )
        await run_workers(workers, stop)


def version_of(settings: WorkerSettings) -> WorkerDeploymentVersion | None:
    """Return the version that the worker is deployed as; None where it is unversioned."""
    if not settings.deployment:
        return None
    return WorkerDeploymentVersion(settings.deployment, settings.build_id or metadata.version("gpubank"))


def _gate(settings: Settings) -> FaultGate | None:
    """Return the gates of a crash test; production has none."""
    if settings.faults.folder is None:
        return None
    log.warning("fault points are open to %s: this is for crash tests", settings.faults.folder)
    return FaultGate(settings.faults.folder)


def _pods_client(cluster: ClusterSettings) -> AsyncClient:
    """Return a client for pods: exec needs a web socket, which the bank's own connection does not speak."""
    found = KubeConfig.from_file(cluster.kubeconfig) if cluster.kubeconfig else KubeConfig.from_env()
    return AsyncClient(config=found.get(cluster.context))


def _hooks(settings: CheckpointSettings, pods: LightkubePods) -> CheckpointHook:
    timeout = timedelta(seconds=settings.request_timeout_seconds)
    rules = AddressRules(networks=settings.allowed_networks)
    return CheckpointHooks(
        {
            Transport.HTTP: HttpHook(rules=rules, timeout=timeout),
            Transport.ANNOTATION: AnnotationHook(pods),
            Transport.EXEC: ExecHook(pods),
        }
    )


def _tickets(settings: WebhookSettings) -> Webhook | NoTickets:
    if not settings.url:
        return NoTickets()
    return Webhook(
        settings.url,
        secret=settings.secret.get_secret_value() if settings.secret is not None else "",
        networks=settings.allowed_networks,
        timeout=timedelta(seconds=settings.timeout_seconds),
    )


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop)


def main() -> None:
    """Run the process; exit code 1 says why on stderr, and whoever supervises it starts it again."""
    try:
        settings = Settings.load({"mode": Mode.CLUSTER})
        configure(settings.log_level, settings.log_format)
        asyncio.run(_main(settings))
    except BankError as error:
        sys.stderr.write(f"gpubank worker: {error}\n")
        clean_exit(1)
    clean_exit(0)


if __name__ == "__main__":
    main()
