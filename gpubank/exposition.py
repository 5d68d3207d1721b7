"""From the bank's list of metrics to the client library's objects."""

import platform
from datetime import datetime
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from gpubank.domain.demand import Demand, DemandState
from gpubank.metrics import BUILD_INFO, OUTCOMES, RECALL, RECALLS, Metric, Process

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more per series, which no rule of ours needs


def gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    """Return the gauge of that name."""
    return Gauge(metric.name, metric.meaning, metric.labels, registry=registry)


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """Return the counter of that name."""
    return Counter(metric.name, metric.meaning, metric.labels, registry=registry)


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """Return the histogram of that name."""
    return Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)


def registry_of(process: Process) -> CollectorRegistry:
    """Return a registry that says what runs, and what it takes of its machine."""
    registry = CollectorRegistry()
    gauge(BUILD_INFO, registry).labels(process, metadata.version("gpubank"), platform.python_version()).set(1)
    ProcessCollector(registry=registry)
    return registry


class RecallMetrics:
    """Counts demands that come to an outcome, in whichever process ends them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._recalls = counter(RECALLS, registry)
        self._recall = histogram(RECALL, registry)

    def ended(self, demand: Demand, state: DemandState, at: datetime) -> None:
        """Count the demand, which stood as given and is now `state`; most states are no outcome."""
        outcome = OUTCOMES.get(state)
        if outcome is None or state is demand.state:
            return
        self._recalls.labels(demand.pool, outcome).inc()
        self._recall.labels(demand.pool, outcome).observe(age(demand, at))


def age(demand: Demand, now: datetime) -> float:
    """Seconds since the demand was opened."""
    return max((now - demand.opened_at).total_seconds(), 0.0)
