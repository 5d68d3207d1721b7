"""The reporter of one node: `python -m nodeagent.reporter [--config FILE]`.

    device plugin ─▶ edges ─▶ spool on disk ─▶ Temporal: one GpuIncident per GPU, started or told
    device plugin ◀─ inspect, quarantine, release ◀─ Temporal: task queue `node-<cluster>-<node>`

The one process on a node that knows Temporal, and the one module that imports its SDK. Without Temporal it goes on
looking and keeps what it sees; everything else on the node does not notice.

Exits with 1 if the settings are refused, 4 if another reporter has the node, 0 when it was told to stop.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

from temporalio import activity
from temporalio.client import Client, TLSConfig
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from gpubank.decide.incident import mended
from gpubank.domain.attribution import is_object_name
from gpubank.domain.errors import BackendError, BankError, PolicyError
from gpubank.domain.incident import (
    EDGES_SIGNAL,
    QUEUE,
    WORKFLOW,
    Edges,
    GpuSight,
    IncidentInput,
    NodeOrder,
    Released,
    Wanted,
    incident_id,
    node_queue,
)
from gpubank.exit import clean_exit
from nodeagent.attribution.kubelet import PodResources
from nodeagent.plugin.instance import Instance
from nodeagent.process import run_process, until_told
from nodeagent.reporting.edges import Memory, look
from nodeagent.reporting.orders import NodeOrders, boot_id
from nodeagent.reporting.settings import ReporterSettings, load
from nodeagent.reporting.spool import Spool, Waiting

T = TypeVar("T")

CALL_TIMEOUT: Final = timedelta(seconds=10)
GRACEFUL: Final = timedelta(seconds=10)
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds between two tries while Temporal does not answer, or does and the work ends at once."""

MOST_AT_ONCE: Final = 100
"""Reports of one GPU that one signal carries: a signal of more than 2 MiB would never be taken."""

_REFUSALS: Final = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION})
"""Answers that are about what was sent; with every other one nobody's reports would be taken."""

REMEMBER_EVERY: Final = 30.0
"""Seconds after which what was seen is noted on disk although nothing is new."""

log = logging.getLogger(__name__)


class Reporter:
    """Looks, keeps, delivers, and carries orders out."""

    def __init__(self, settings: ReporterSettings, node: str) -> None:
        """Open the spool. Raises OSError where it cannot be written."""
        self._settings, self.node = settings, node
        self._spool = Spool(settings.spool_directory, most=settings.most_waiting)
        pods = PodResources(settings.pod_resources_socket)
        self._orders = NodeOrders(settings.plugin_directory, pods.list)
        self._memory: Memory = self._spool.memory()
        self._noted_at = time.monotonic()
        self._something_waits = asyncio.Event()
        self._complaint = ""

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._serve())

    # ---- looking

    async def _watch(self) -> None:
        while True:
            try:
                if await asyncio.to_thread(self._look):
                    self._something_waits.set()
                self._say("")
            except (BankError, OSError) as error:
                self._say(str(error))
            await asyncio.sleep(self._settings.look)

    def _look(self) -> bool:
        """Look once; True if something new was kept."""
        found = look(
            self._orders.inspected(), self._memory, node=self.node, boot_id=boot_id(), burst=self._settings.burst
        )
        same = {u: set(m) for u, m in found.memory.items()} == {u: set(m) for u, m in self._memory.items()}
        if found.edges or not same or time.monotonic() - self._noted_at > REMEMBER_EVERY:
            kept = self._spool.take(found)
            self._noted_at = time.monotonic()
        else:
            kept = 0
        self._memory = found.memory
        for uuid, edges in found.edges.items():
            log.warning("GPU %s: %s", uuid, ", ".join(f"{edge.cause} ({edge.fault})" for edge in edges))
        return kept > 0

    def _say(self, complaint: str) -> None:
        if complaint and complaint != self._complaint:
            log.error("%s; looking again", complaint)
        self._complaint = complaint

    # ---- Temporal

    async def _serve(self) -> None:
        """Keep a connection, an activity worker on it, and the deliveries; connect anew when one of them fails.

        A server that answers is no success yet: where the namespace is not there, a right is missing or the spool
        cannot be read, the work ends at once, and would again.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                client = await self._connect()
            except (RuntimeError, RPCError, OSError, BankError) as error:
                log.warning("Temporal at %s does not answer: %s", self._settings.temporal.address, error)
            else:
                log.info("Temporal at %s answers", self._settings.temporal.address)
                begun = time.monotonic()
                await self._work(client)
                if time.monotonic() - begun > LONGEST_PAUSE:
                    pause = FIRST_PAUSE
            await self._rest(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _connect(self) -> Client:
        settings = self._settings.temporal.settings()
        tls = settings.tls_parts()
        return await Client.connect(
            settings.address,
            namespace=settings.namespace,
            data_converter=pydantic_data_converter,
            api_key=settings.api_key.get_secret_value() if settings.api_key is not None else None,
            tls=TLSConfig(**tls) if tls is not None else False,
        )

    async def _work(self, client: Client) -> None:
        worker = Worker(
            client,
            task_queue=node_queue(self._settings.cluster, self.node),
            activities=[self.inspect, self.quarantine, self.release],
            max_concurrent_activities=8,
            graceful_shutdown_timeout=GRACEFUL,
        )
        serving = asyncio.create_task(worker.run())
        delivering = asyncio.create_task(self._deliver(client))
        try:
            await asyncio.wait({serving, delivering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            delivering.cancel()
            if not serving.done():  # it may not run yet, and would for ever with nobody who delivers
                await worker.shutdown()
            failed = await asyncio.gather(serving, delivering, return_exceptions=True)
        for error in failed:
            if isinstance(error, Exception):
                log.error("connecting to Temporal anew: %s: %s", type(error).__name__, error)

    async def _deliver(self, client: Client) -> None:
        """Deliver what waits, oldest first, again and again; an edge is forgotten only when it was taken."""
        pause = FIRST_PAUSE
        while True:
            self._something_waits.clear()
            waiting = await asyncio.to_thread(self._spool.waiting)
            refused = False
            try:
                for uuid, group in groupby(waiting, key=lambda each: each.uuid):
                    told = await self._tell(client, uuid, list(group))
                    refused = refused or not told
                    pause = FIRST_PAUSE if told else pause
            except RPCError as error:
                log.warning("%d reports wait: Temporal does not take them: %s", len(waiting), error)
                refused = True
            if not refused:
                await self._something_waits.wait()
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _tell(self, client: Client, uuid: str, waiting: list[Waiting]) -> bool:
        """Deliver reports of one GPU; False where Temporal refuses some of them, which must not hold up others'."""
        taken = True
        for start in range(0, len(waiting), MOST_AT_ONCE):
            part = waiting[start : start + MOST_AT_ONCE]
            try:
                await self._signal(client, uuid, part)
            except RPCError as error:
                if error.status not in _REFUSALS:
                    raise
                log.error("%d reports on GPU %s wait: Temporal refuses them: %s", len(part), uuid, error)
                taken = False
        return taken

    async def _signal(self, client: Client, uuid: str, waiting: list[Waiting]) -> None:
        cluster = self._settings.cluster
        await client.start_workflow(
            WORKFLOW,
            IncidentInput(cluster=cluster, node=self.node, uuid=uuid),
            id=incident_id(cluster, self.node, uuid),
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=EDGES_SIGNAL,
            start_signal_args=[Edges(edges=tuple(each.edge for each in waiting))],
            static_summary=f"GPU {uuid} of node {self.node}",
            rpc_timeout=CALL_TIMEOUT,
        )
        for each in waiting:
            await asyncio.to_thread(self._spool.delivered, each)

    # ---- orders

    @activity.defn(name="node.inspect")
    async def inspect(self, order: NodeOrder) -> GpuSight:
        """Return the GPU as the plugin sees it; "not yet" until it is as wanted."""
        sight = await _carried_out(lambda: self._orders.inspect(order))
        if order.wanted is Wanted.CLEAR and (sight.marks or not sight.found):
            causes = ", ".join(mark.cause for mark in sight.marks) or "the node has no such GPU now"
            raise _not_yet(f"held against it: {causes}")
        if order.wanted is Wanted.SOUND and not mended(sight):
            verdict = sight.verdict or "nothing, for it cannot tell"
            raise _not_yet(f"the driver asks for {verdict}; the last poll saw {sight.wrong or 'nothing wrong'}")
        return sight

    @activity.defn(name="node.quarantine")
    async def quarantine(self, order: NodeOrder) -> GpuSight:
        """Take the GPU out in the incident's name, unless a person has."""
        return await _carried_out(lambda: self._orders.quarantine(order))

    @activity.defn(name="node.release")
    async def release(self, order: NodeOrder) -> Released:
        """Put the GPU back, unless a person holds it or it still reports a fault."""
        return await _carried_out(lambda: self._orders.release(order))


async def _carried_out(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except BankError as error:
        raise ApplicationError(str(error)[:500], type=type(error).__name__) from error


def _not_yet(message: str) -> ApplicationError:
    return ApplicationError(message[:500], type="NotYet", category=ApplicationErrorCategory.BENIGN)


def node_name(settings: ReporterSettings) -> str:
    """Return the node's name. Raises PolicyError where none can be one."""
    name = settings.node or os.environ.get("NODE_NAME") or socket.gethostname().lower()
    if not is_object_name(name):
        raise PolicyError(f"node name {name!r} cannot be one; set `node`, or NODE_NAME, to the node's name")
    return name


async def start(config: Path | None) -> None:
    """Run as told by the settings, until SIGTERM or SIGINT. Raises BackendError where the spool cannot be written."""
    settings = load(config)
    with Instance(settings.spool_directory):
        try:
            reporter = Reporter(settings, node_name(settings))
        except OSError as error:
            raise BackendError(f"spool {str(settings.spool_directory)!r} cannot be used: {error.strerror}") from error
        await until_told(reporter.run())


if __name__ == "__main__":
    clean_exit(run_process("nodeagent.reporter", "The reporter of one node.", start))
