"""The controller process of cluster mode: `python -m gpubank.controller.main`.

The only module that wires it. Replicas compete for a Lease; the one that leads reconciles.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.events import KubernetesNotifier
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.leadership import Leadership
from gpubank.adapters.kubernetes.leases import KubernetesLeases
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.controller.controller import Controller
from gpubank.controller.metrics import ControllerMetrics
from gpubank.cycles import watching_cycles
from gpubank.domain.errors import BackendError, BankError, PolicyError
from gpubank.domain.pool import Backend
from gpubank.exit import clean_exit
from gpubank.logs import configure
from gpubank.ports import Processes
from gpubank.probes import Probes, serving
from gpubank.settings import Mode, Settings

if TYPE_CHECKING:
    from gpubank.controller.metadata import NodeMetadataServer  # gRPC, which not every controller has

log = logging.getLogger(__name__)

LEASE_NAME: Final = "gpubank-controller"

COLLECTOR: Final = (50_000, 20, 100)
"""When Python's collector runs. Books and facts of a large pool are hundreds of thousands of small objects that live
long: with its defaults it walked them in every turn (worst step 886 ms, 322 ms with these)."""

BALANCE_EVERY: Final = 300.0
"""Seconds between two sums over all postings."""


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until `stop` is set or something that cannot be mended here fails."""
    cluster = settings.cluster
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(await SqlLedger.open(settings.database_url))
        connection = await stack.enter_async_context(Connection.open(cluster.kubeconfig, cluster.context))
        backend, objects = KueueBackend(connection, cluster=cluster.name), KubernetesObjectStore(connection)
        metadata = _metadata(settings, connection, backend, objects, ledger)
        await stack.enter_async_context(backend)
        await stack.enter_async_context(objects)
        client = await BankClient.connect(settings.temporal)
        await client.register_search_attributes()
        leadership = Leadership(
            connection,
            name=LEASE_NAME,
            namespace=settings.controller.namespace,
            identity=f"{socket.gethostname()}_{os.getpid()}",
            duration=timedelta(seconds=settings.controller.lease_seconds),
        )
        metrics = ControllerMetrics(_now, leads=lambda: leadership.leads)
        controller = Controller(
            cluster.name,
            objects=objects,
            backends={Backend.KUEUE: backend},
            ledger=ledger,
            processes=_processes(client, settings.faults.folder),
            notifier=KubernetesNotifier(connection),
            heartbeats=client,
            leases=KubernetesLeases(connection, settings.controller.namespace),
            now=_now,
            observer=metrics,
            resync=timedelta(seconds=settings.controller.resync_seconds),
            reader=objects.kept,
        )
        await stack.enter_async_context(watching_cycles(settings.kueue, backend.measured, metrics.registry))
        probes = Probes(metrics.registry, live=(metrics.signs.check,), ready=(metrics.ready,))
        await stack.enter_async_context(serving(settings.observability, probes))
        if metadata is not None:
            await stack.enter_async_context(metadata.serving())
        balancing = asyncio.create_task(_balance(ledger, metrics))
        stack.callback(balancing.cancel)

        async def lead() -> None:
            try:
                await controller.run()
            finally:
                metrics.deposed()

        work = asyncio.create_task(leadership.run(lead))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if work.done():
            await work
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def _metadata(
    settings: Settings,
    connection: Connection,
    backend: KueueBackend,
    objects: KubernetesObjectStore,
    ledger: SqlLedger,
) -> "NodeMetadataServer | None":
    """Return what tells nodes whose pods they run, where that is asked for; it shares the others' watches."""
    if not settings.metadata.address:
        return None
    try:
        from gpubank.controller.metadata import NodeMetadataServer
    except ImportError as error:
        fact = f"metadata.address is set and {error.name} is not installed"
        raise PolicyError(f"{fact}; install gpubank with its extra `nodeagent`") from error
    groups = objects.watched("BusinessGroup")
    return NodeMetadataServer(settings.metadata, connection, pods=backend.pods, groups=groups, org=ledger.units)


def _processes(client: BankClient, faults: Path | None) -> Processes:
    """Return whom the controller talks to; behind gates where a crash test asks for them, and only there."""
    if faults is None:
        return client
    from gpubank.controller.faults import GatedProcesses
    from gpubank.faultgate import FaultGate

    log.warning("fault points are open to %s: this is for crash tests", faults)
    return GatedProcesses(client, FaultGate(faults))


async def _balance(ledger: SqlLedger, metrics: ControllerMetrics) -> None:
    """Sum up what is posted, now and then."""
    while True:
        try:
            balances = await ledger.balances()
        except BackendError as error:
            log.warning("balance of the ledger: %s", error)
        else:
            of_pools = Counter[tuple[str, str]]()
            for each in balances:
                of_pools[each.cluster, each.pool] += each.borrowed_gpu_ms - each.lent_gpu_ms
            metrics.balanced(sum(map(abs, of_pools.values())))  # what one pool has too much is not another's lack
        await asyncio.sleep(BALANCE_EVERY)


def _now() -> datetime:
    return datetime.now(UTC)


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
        gc.set_threshold(*COLLECTOR)
        asyncio.run(_main(settings))
    except BankError as error:
        sys.stderr.write(f"gpubank controller: {error}\n")
        clean_exit(1)
    clean_exit(0)


if __name__ == "__main__":
    main()
