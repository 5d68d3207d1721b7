"""Feeds the fence: reads now and then how long the scheduler's admission cycles last.

    Kueue, or Prometheus ─▶ CycleWatch ─▶ decide.cycles ─▶ the backend's fence
                                └─▶ gpubank_admission_cycle_*: the value in force, and how old it is

Where nothing can be read the last value holds on, and before the first the assumed one; a log line, the age and an
alert say so.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from prometheus_client import CollectorRegistry

from gpubank.adapters.kubernetes.kueue.cycles import CycleSource, KueueEndpoint, PrometheusServer
from gpubank.decide.cycles import Cycles
from gpubank.domain.errors import BackendError
from gpubank.exposition import gauge
from gpubank.metrics import CYCLE, CYCLE_AGE
from gpubank.settings import KueueSettings

log = logging.getLogger(__name__)

REST: Final = 20
"""A look's rest, as a multiple of what the look took: Kueue writes its whole page for each."""

Measured = Callable[[float], None]
"""Takes note of the 99th percentile in seconds."""


class CycleWatch:
    """Reads a source again and again and tells what it found."""

    def __init__(
        self,
        source: CycleSource,
        measured: Measured,
        *,
        every: float,
        assumed: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`every`: seconds between two readings; `assumed`: the 99th percentile in seconds until the first."""
        self._source, self._measured, self._every, self._monotonic = source, measured, every, monotonic
        self._cycles = Cycles(assumed)
        self._read_at = monotonic()
        self._problem = ""

    @property
    def p99(self) -> float:
        """The value in force, in seconds."""
        return self._cycles.p99

    @property
    def age(self) -> float:
        """Seconds since the source last answered; since the start while it has not."""
        return self._monotonic() - self._read_at

    async def look(self) -> str:
        """Read once and tell; return what was the matter, or nothing."""
        try:
            counts = await self._source.read()
        except BackendError as error:
            problem = str(error)
            if problem != self._problem:
                log.warning("admission cycles: %s; the fence goes on with a p99 of %.3f s", problem, self.p99)
        else:
            if self._problem:
                log.info("admission cycles: %s answers again", self._source.where)
            problem, self._read_at = "", self._monotonic()
            self._measured(self._cycles.read(counts, self._read_at))
        self._problem = problem
        return problem

    async def run(self) -> None:
        """Look until cancelled; a source that takes long to answer, for it has much to tell, is asked less often."""
        while True:
            began = self._monotonic()
            await self.look()
            await asyncio.sleep(max(self._every, REST * (self._monotonic() - began)))


def source_of(settings: KueueSettings) -> KueueEndpoint | PrometheusServer | None:
    """Return whom the settings name; raise `PolicyError` where the address cannot be used."""
    kind = KueueEndpoint if settings.metrics_url else PrometheusServer
    where = settings.metrics_url or settings.prometheus_url
    return kind(where, authorities=settings.authorities, token=settings.token) if where else None


@asynccontextmanager
async def watching_cycles(
    settings: KueueSettings, measured: Measured, registry: CollectorRegistry
) -> AsyncIterator[CycleWatch | None]:
    """Feed `measured` as long as the block runs, and show in `registry` with what."""
    measured(settings.assumed_cycle_seconds)
    in_force = gauge(CYCLE, registry)
    source = source_of(settings)
    if source is None:
        in_force.set(settings.assumed_cycle_seconds)
        log.warning(
            "admission cycles are not measured: the fence assumes a p99 of %.3f s;"
            " set kueue.metrics_url or kueue.prometheus_url",
            settings.assumed_cycle_seconds,
        )
        yield None
        return
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(source)
        watch = CycleWatch(source, measured, every=settings.read_seconds, assumed=settings.assumed_cycle_seconds)
        in_force.set_function(lambda: watch.p99)
        gauge(CYCLE_AGE, registry).set_function(lambda: watch.age)
        reading = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
