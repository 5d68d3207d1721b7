"""The worker's metrics and probes: its own, and those of Temporal's client library, at one address.

    scrape ─▶ observability.port ─┬─ the bank's registry
                                  └─ loopback ─▶ the library's own endpoint: temporal_*, and the poller gauge

A worker is alive while it polls: that gauge is looked at, and never when it last had a task, for a bank at rest has
none for hours. One of a build that is not current polls too, and is given nothing: it is alive, and not ready, so
that a rollout keeps the workers of the build before until the new one is made current.
"""

import asyncio
import logging
import re
import socket
import time
from collections import Counter as Count
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from temporalio.common import WorkerDeploymentVersion
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from gpubank.client import BankClient
from gpubank.domain.demand import Demand, DemandState
from gpubank.domain.errors import BackendError
from gpubank.exposition import RecallMetrics, gauge, registry_of
from gpubank.metrics import STUCK, Process
from gpubank.probes import Check, Probes

log = logging.getLogger(__name__)

POLLERS: Final = "temporal_num_pollers"
"""Gauge of the library: polls in flight, by task queue."""

SILENT_AFTER: Final = 120.0
"""Seconds without a poll in flight after which only a restart is left."""

COUNT_EVERY: Final = 60.0
"""Seconds between two counts of stuck workflows."""

FOLLOW_EVERY: Final = 5.0
"""Seconds between two looks at which build is current."""

_LOOPBACK: Final = "127.0.0.1"
_TRIES: Final = 5


class Telemetry:
    """Metrics of one worker process; make it before the first client, whose runtime it is."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start the library's endpoint at a free port of loopback; raise `BackendError` where there is none."""
        self._monotonic = monotonic
        self.runtime, self._url = _runtime()
        self._http = httpx2.AsyncClient(trust_env=False, timeout=3)
        self.registry: Final = registry_of(Process.WORKER)
        self._recalls = RecallMetrics(self.registry)
        self._stuck = gauge(STUCK, self.registry)
        self._stuck.set(float("nan"))  # not known yet
        self._queues: dict[str, float] = {}
        self._waits = ""

    async def close(self) -> None:
        """Close every socket of this side."""
        await self._http.aclose()

    def probes(self, queues: Sequence[str], version: WorkerDeploymentVersion | None = None) -> Probes:
        """Return what the process shows, as a worker of these task queues and of this version."""
        self._queues = dict.fromkeys(queues, self._monotonic())
        ready: tuple[Check, ...] = (self._polls,)
        if version is not None:
            self._waits = f"it is not known yet whether {_named(version)} is current"
            ready = (self._polls, self._is_current)
        return Probes(self.registry, live=(self._alive,), ready=ready, further=self.library)

    def ended(self, demand: Demand, state: DemandState, at: datetime) -> None:
        """Count a demand that a Reclaim ended."""
        self._recalls.ended(demand, state, at)

    async def library(self) -> str:
        """Return the library's metrics; nothing where it does not answer, which its own probe tells."""
        try:
            answer = await self._http.get(self._url)
        except httpx2.HTTPError as error:
            log.warning("metrics of Temporal's client library: %s", error)
            return ""
        return answer.text

    async def pollers(self) -> Count[str]:
        """Return the polls in flight, by task queue."""
        found: Count[str] = Count()
        for family in text_string_to_metric_families(await self.library()):
            if family.name == POLLERS:
                for sample in family.samples:
                    found[sample.labels["task_queue"]] += int(sample.value)
        return found

    async def watch(self, client: BankClient) -> None:
        """Count stuck workflows now and then, until cancelled."""
        while True:
            try:
                self._stuck.set(await client.stuck())
            except BackendError as error:
                self._stuck.set(float("nan"))
                log.warning("%s", error)
            await asyncio.sleep(COUNT_EVERY)

    async def follow(self, client: BankClient, version: WorkerDeploymentVersion | None) -> None:
        """Look whether this version is current, until cancelled; not at all where there is none.

        One that is ramping is not: it works, and the workers of the build before are still needed. While Temporal does
        not answer, what was seen last holds on.
        """
        while version is not None:
            try:
                current = await client.current_build(version.deployment_name)
            except BackendError as error:
                log.warning("%s", error)
            else:
                waits = "" if version.build_id == current else f"{_named(version)} is not current"
                if waits != self._waits:
                    log.info("%s", waits or f"{_named(version)} is current")
                self._waits = waits
            await asyncio.sleep(FOLLOW_EVERY)

    async def _is_current(self) -> str:
        return self._waits

    async def _polls(self) -> str:
        found = await self._look()
        idle = [queue for queue in self._queues if not found[queue]]
        return f"nothing polls task queue {', '.join(idle)}" if idle else ""

    async def _alive(self) -> str:
        await self._look()
        now = self._monotonic()
        silent = [queue for queue, at in self._queues.items() if now - at > SILENT_AFTER]
        return f"nothing has polled task queue {', '.join(silent)} for {SILENT_AFTER:.0f} s" if silent else ""

    async def _look(self) -> Count[str]:
        found = await self.pollers()
        self._queues |= {queue: self._monotonic() for queue in self._queues if found[queue]}
        return found


def _named(version: WorkerDeploymentVersion) -> str:
    return f"build {version.build_id} of worker deployment {version.deployment_name}"


def _runtime() -> tuple[Runtime, str]:
    for attempt in range(1, _TRIES + 1):
        address = f"{_LOOPBACK}:{_free_port()}"
        config = PrometheusConfig(
            bind_address=address, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
        )
        try:
            runtime = Runtime(telemetry=TelemetryConfig(metrics=config, attach_service_name=False))
        except ValueError as error:  # somebody took the port meanwhile
            if attempt == _TRIES or not re.search("address already in use", str(error), re.IGNORECASE):
                raise BackendError(f"metrics of Temporal's client library cannot be served: {error}") from error
        else:
            return runtime, f"http://{address}/metrics"
    raise AssertionError("unreachable: the last attempt returns or raises")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((_LOOPBACK, 0))
        return int(taken.getsockname()[1])
