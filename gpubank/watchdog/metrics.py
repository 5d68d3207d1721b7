"""The watchdog's metrics and signs of life, read off it at the scrape."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpubank.domain.terms import PoolTerms
from gpubank.exposition import registry_of
from gpubank.metrics import FAIL_SAFE, SILENCE, SILENCE_LIMIT, Metric, Process
from gpubank.probes import Probes, Signs
from gpubank.watchdog.watchdog import Watchdog

LOOP: Final = "the watchdog's loop"
SILENT_AFTER: Final = 120.0
"""Seconds without a turn, failed ones included, after which only a restart is left; every call has a time limit."""

Terms = Callable[[], Awaitable[Mapping[str, PoolTerms]]]


class WatchdogMetrics(Collector):
    """What a watchdog shows of itself: `watch` gives it one to look at, `terms` and `pause` see what it does."""

    def __init__(self) -> None:
        self.registry: Final = registry_of(Process.WATCHDOG)
        self.signs: Final = Signs()
        self._watchdog: Watchdog | None = None
        self._limits: dict[str, timedelta] = {}
        self._blind = "the pools' agreements were not read yet"
        self.registry.register(self)

    def watch(self, watchdog: Watchdog) -> None:
        """Look at this watchdog."""
        self._watchdog = watchdog

    def terms(self, read: Terms) -> Terms:
        """Return `read`, seen: it begins every turn."""

        async def seen() -> Mapping[str, PoolTerms]:
            self.signs.give(LOOP, within=SILENT_AFTER)
            self._blind = "the pools' agreements cannot be read"
            found = await read()
            self._blind = ""
            self._limits = {pool: terms.fail_safe_after for pool, terms in found.items()}
            return found

        return seen

    def probes(self) -> Probes:
        """Return what the process shows."""
        self.signs.give(LOOP, within=SILENT_AFTER)
        return Probes(self.registry, live=(self.signs.check,), ready=(self._ready,))

    async def _ready(self) -> str:
        return self._blind

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield every gauge."""
        pulses = self._watchdog.pulses if self._watchdog is not None else {}
        epochs = self._watchdog.epochs if self._watchdog is not None else {}
        yield _family(SILENCE, {pool: pulse.silence() for pool, pulse in pulses.items()})
        yield _family(SILENCE_LIMIT, {pool: limit.total_seconds() for pool, limit in self._limits.items()})
        yield _family(FAIL_SAFE, {pool: float(bool(epochs.get(pool))) for pool in pulses})


def _family(metric: Metric, by_pool: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for pool, value in sorted(by_pool.items()):
        family.add_metric([pool], value)
    return family
