"""The watchdog process of cluster mode: `python -m gpubank.watchdog.main`.

The only module that wires it. It needs the API server and nothing else: neither Temporal nor the ledger, and of the
cluster's objects the bank's agreements, its Leases, ClusterQueues and Cohorts.
"""

import asyncio
import contextlib
import signal
import sys
from contextlib import AsyncExitStack

from gpubank.adapters.kubernetes.agreements import PolledAgreements
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.events import EventWriter
from gpubank.adapters.kubernetes.kinds import BANK_KINDS
from gpubank.adapters.kubernetes.kueue.failsafe import KueueFailSafe
from gpubank.adapters.kubernetes.leases import KubernetesLeases
from gpubank.agreements import POOL, Agreements
from gpubank.domain.errors import BankError
from gpubank.exit import clean_exit
from gpubank.logs import configure
from gpubank.probes import serving
from gpubank.settings import Mode, Settings
from gpubank.watchdog.metrics import WatchdogMetrics
from gpubank.watchdog.watchdog import Tell, Watchdog


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until `stop` is set or something that cannot be mended here fails."""
    cluster = settings.cluster
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection.open(cluster.kubeconfig, cluster.context))
        metrics = WatchdogMetrics()
        watchdog = Watchdog(
            cluster.name,
            terms=metrics.terms(Agreements(cluster.name, PolledAgreements(connection)).all_terms),
            leases=KubernetesLeases(connection, settings.controller.namespace),
            backend=KueueFailSafe(connection),
            tell=teller(connection),
        )
        metrics.watch(watchdog)
        await stack.enter_async_context(serving(settings.observability, metrics.probes()))
        work = asyncio.create_task(watchdog.run(settings.watchdog.poll_seconds))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if work.done():
            await work
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def teller(connection: Connection) -> Tell:
    """Return what tells of a pool by Events on its object."""
    events = EventWriter(connection)

    async def tell(pool: str, reason: str, message: str) -> None:
        body = await connection.get(BANK_KINDS[POOL], pool)
        if body is not None:
            await events.record(body, reason=reason, message=message, warning=True)

    return tell


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
        sys.stderr.write(f"gpubank watchdog: {error}\n")
        clean_exit(1)
    clean_exit(0)


if __name__ == "__main__":
    main()
