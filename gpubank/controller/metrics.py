"""The controller's metrics and signs of life, from what it tells its observer.

Gauges are made at the scrape from the books and facts of each pool's last turn, so that ages grow between turns and a
pool that is gone leaves nothing behind. Counters and histograms grow as things happen.
"""

import time
from collections import Counter as Count
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpubank import metrics
from gpubank.decide.lease import protected_now
from gpubank.domain.books import Books
from gpubank.domain.facts import PoolFacts, Wait
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction
from gpubank.exposition import RecallMetrics, age, counter, histogram, registry_of
from gpubank.metrics import Metric, Process
from gpubank.probes import Signs

RECONCILE: Final = "the look at the agreements"
SILENT_AFTER: Final = 120.0
"""Seconds without a turn, failed ones included, after which a loop counts as stuck; every call has a time limit."""


class _Turn(NamedTuple):
    """What a pool's last turn saw."""

    facts: PoolFacts | None
    books: Books | None
    terms: PoolTerms | None
    ended_at: float


@dataclass
class _Samples:
    """Values of one scrape."""

    rows: dict[Metric, list[tuple[tuple[str, ...], float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        self.rows[metric].append((labels, value))


class ControllerMetrics(Collector):
    """Implements `Observer`; register it and scrape its registry."""

    def __init__(
        self,
        now: Callable[[], datetime],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.registry: Final = registry_of(Process.CONTROLLER)
        self.signs: Final = Signs(monotonic)
        self._now, self._monotonic, self._leads = now, monotonic, leads
        self._turns: dict[str, _Turn] = {}
        self._failing: set[str] = set()
        self._problem = ""
        self._turn = histogram(metrics.TURN, self.registry)
        self._turn_failures = counter(metrics.TURN_FAILURES, self.registry)
        self._recalls = RecallMetrics(self.registry)
        self._posting_failures = counter(metrics.POSTING_FAILURES, self.registry)
        self._imbalance: int | None = None
        self.registry.register(self)

    # ---- the observer

    def reconciled(self, problem: str) -> None:
        """Take note of a look at the agreements."""
        self.signs.give(RECONCILE, within=SILENT_AFTER)
        self._problem = problem

    def turned(
        self, pool: str, seconds: float, facts: PoolFacts | None, books: Books | None, terms: PoolTerms | None
    ) -> None:
        """Take note of a turn."""
        self.signs.give(_loop(pool), within=SILENT_AFTER)
        self._failing.discard(pool)
        self._turns[pool] = _Turn(facts, books, terms, self._monotonic())
        self._turn.labels(pool).observe(seconds)
        self._turn_failures.labels(pool)  # so that it stands at 0 before it first grows

    def failed(self, pool: str, seconds: float) -> None:
        """Take note of a turn that failed."""
        self.signs.give(_loop(pool), within=SILENT_AFTER)
        self._failing.add(pool)
        self._turn_failures.labels(pool).inc()

    def committed(self, books: Books, transaction: Transaction) -> None:
        """Count demands that came to an outcome."""
        for change in transaction.demands:
            demand = books.demand(change.demand_id)
            if demand is not None:
                self._recalls.ended(demand, change.state, transaction.at)

    def gone(self, pool: str) -> None:
        """Forget a pool."""
        self.signs.forget(_loop(pool))
        self._turns.pop(pool, None)
        self._failing.discard(pool)
        for family in (self._turn, self._turn_failures):
            with suppress(KeyError):  # it may have had no turn
                family.remove(pool)

    def posting_failed(self) -> None:
        """Count it."""
        self._posting_failures.inc()

    # ---- what is measured elsewhere

    def balanced(self, imbalance: int) -> None:
        """Take note of the sum of all postings in GPU-milliseconds."""
        self._imbalance = imbalance

    def deposed(self) -> None:
        """Expect nothing any more: another replica leads."""
        self.signs.forget(RECONCILE)
        self._problem = ""

    async def ready(self) -> str:
        """Say why the bank does not do its work here; a replica that waits for its turn to lead is ready."""
        if self._problem:
            return f"the agreements cannot be read: {self._problem}"
        return f"turns fail: {', '.join(sorted(self._failing))}" if self._failing else ""

    # ---- the scrape

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield every gauge."""
        samples = _Samples()
        samples.add(metrics.LEADING, float(self._leads()))
        if self._imbalance is not None:
            samples.add(metrics.IMBALANCE, self._imbalance)
        for pool, turn in sorted(self._turns.items()):
            samples.add(metrics.LAST_TURN, self._monotonic() - turn.ended_at, pool)
            if turn.books is not None:
                _add_books(samples, pool, turn.books, self._now())
            if turn.facts is not None:
                _add_facts(samples, pool, turn.facts)
            if turn.terms is not None and turn.facts is not None and turn.books is not None:
                _add_leases(samples, turn.facts, turn.books, turn.terms, self._now())
            if turn.terms is not None:
                samples.add(metrics.FROZEN, float(turn.terms.frozen(self._now())), pool)
        for metric, rows in samples.rows.items():
            family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in rows:
                family.add_metric(labels, value)
            yield family


def _add_books(samples: _Samples, pool: str, books: Books, now: datetime) -> None:
    samples.add(metrics.CAPACITY, books.capacity, pool)
    samples.add(metrics.SURPLUS, books.surplus, pool)
    for guarantee in books.guarantees:
        samples.add(metrics.GUARANTEED, guarantee.in_force, pool, guarantee.group)
    lent: Count[tuple[str, str]] = Count()
    for line in books.lines:
        if line.is_own:
            continue  # nobody lends anything
        lent[line.lender, line.borrower] += line.gpus
    for (lender, borrower), gpus in sorted(lent.items()):
        samples.add(metrics.LENT, gpus, pool, lender, borrower)
    for lender in sorted({*books.groups, *(demand.lender for demand in books.demands)}):
        demands = books.demands_of(lender)
        samples.add(metrics.OPEN_DEMANDS, len(demands), pool, lender)
        samples.add(metrics.DEMAND_AGE, max((age(demand, now) for demand in demands), default=0), pool, lender)
    samples.add(metrics.OVERDUE, sum(demand.due_at < now for demand in books.demands), pool)


def _add_leases(samples: _Samples, facts: PoolFacts, books: Books, terms: PoolTerms, now: datetime) -> None:
    leased: Count[str] = Count()
    for uid in protected_now(facts, books, terms, now):
        if (workload := facts.workload(uid)) is not None:
            leased[workload.group] += workload.gpus
    for group in terms.groups:
        samples.add(metrics.LEASED, leased[group.group], terms.pool, group.group)


def _add_facts(samples: _Samples, pool: str, facts: PoolFacts) -> None:
    samples.add(metrics.ALLOCATABLE, sum(node.gpus for node in facts.nodes if node.ready), pool)
    samples.add(metrics.FAIL_SAFE, float(facts.in_fail_safe), pool)
    pending: Count[tuple[str, str]] = Count()
    parked: Count[str] = Count()
    for workload in facts.workloads:
        if workload.parked:
            parked[workload.group] += workload.gpus
        elif workload.active and not workload.reserved and not workload.finished and workload.wait is Wait.QUOTA:
            pending[workload.group, workload.kind] += workload.gpus
    for queue in facts.queues:
        samples.add(metrics.RESERVED, queue.reserved, pool, queue.group, queue.kind)
        samples.add(metrics.PENDING, pending[queue.group, queue.kind], pool, queue.group, queue.kind)
    for group in sorted({queue.group for queue in facts.queues}):
        samples.add(metrics.PARKED, parked[group], pool, group)


def _loop(pool: str) -> str:
    return f"the loop of pool {pool!r}"
