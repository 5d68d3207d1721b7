"""Every metric of the bank's processes: name, type, labels and meaning, from which code and reference page are made.

    controller ─ books and facts of the pools it leads, turns, demands that it ends
    worker     ─ demands that Reclaims end, stuck workflows; beside them Temporal's own `temporal_*`
    watchdog   ─ signs of life and the fail-safe

Names are stable: one is only ever added, and one that goes is announced a release before. This module holds no
client library, so that whoever counts need not know how it is served.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpubank.domain.demand import DemandState


class MetricType(StrEnum):
    """Types of the exposition format."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Process(StrEnum):
    """Processes that are scraped."""

    CONTROLLER = "controller"
    WORKER = "worker"
    WATCHDOG = "watchdog"


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    """As scraped; a counter ends in `_total`, a time in `_seconds`."""

    type: MetricType
    meaning: str
    """One sentence; the help text of the exposition."""

    processes: tuple[Process, ...]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""


_ALL: Final = tuple(Process)
_BANK: Final = (Process.CONTROLLER,)
_WATCHDOG: Final = (Process.WATCHDOG,)
_ENDS: Final = (Process.CONTROLLER, Process.WORKER)
_GAUGE, _COUNTER, _HISTOGRAM = MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM

TURN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RECALL_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0)

BUILD_INFO: Final = Metric(
    "gpubank_build_info", _GAUGE, "1; the labels say what runs.", _ALL, ("process", "version", "python")
)
LEADING: Final = Metric("gpubank_leading", _GAUGE, "1 while this replica leads, else 0.", _BANK)
CAPACITY: Final = Metric("gpubank_capacity_gpus", _GAUGE, "GPUs that the platform vouches for.", _BANK, ("pool",))
ALLOCATABLE: Final = Metric(
    "gpubank_allocatable_gpus", _GAUGE, "GPUs of the pool's nodes that are ready.", _BANK, ("pool",)
)
SURPLUS: Final = Metric(
    "gpubank_surplus_gpus",
    _GAUGE,
    "GPUs that no group is guaranteed and that are not lent; negative while the pool is oversubscribed.",
    _BANK,
    ("pool",),
)
GUARANTEED: Final = Metric(
    "gpubank_guaranteed_gpus", _GAUGE, "GPUs of a group's guarantee in force.", _BANK, ("pool", "group")
)
LENT: Final = Metric(
    "gpubank_lent_gpus",
    _GAUGE,
    "GPUs that weigh on the lender, from the offer until they are returned; lender `pool` is the surplus.",
    _BANK,
    ("pool", "lender", "borrower"),
)
LEASED: Final = Metric(
    "gpubank_leased_gpus",
    _GAUGE,
    "GPUs of borrowed work of the group that an approved CapacityLease keeps from every recall now.",
    _BANK,
    ("pool", "group"),
)
RESERVED: Final = Metric(
    "gpubank_reserved_gpus",
    _GAUGE,
    "GPUs that work of a group holds, in its own queue or its borrow queue.",
    _BANK,
    ("pool", "group", "queue"),
)
PENDING: Final = Metric(
    "gpubank_pending_gpus",
    _GAUGE,
    "GPUs that a group's work waits for and that it lacks nothing for but quota.",
    _BANK,
    ("pool", "group", "queue"),
)
PARKED: Final = Metric(
    "gpubank_parked_gpus", _GAUGE, "GPUs of recalled work that waits to come back.", _BANK, ("pool", "group")
)
OPEN_DEMANDS: Final = Metric(
    "gpubank_open_demands", _GAUGE, "Demands of a lender that have not ended.", _BANK, ("pool", "lender")
)
DEMAND_AGE: Final = Metric(
    "gpubank_demand_seconds",
    _GAUGE,
    "Age of a lender's oldest demand that has not ended; 0 while there is none.",
    _BANK,
    ("pool", "lender"),
)
OVERDUE: Final = Metric(
    "gpubank_overdue_demands", _GAUGE, "Demands that are older than the pool's maxTimeToReturn.", _BANK, ("pool",)
)
FROZEN: Final = Metric("gpubank_frozen", _GAUGE, "1 while the pool is frozen, else 0.", _BANK, ("pool",))
FAIL_SAFE: Final = Metric(
    "gpubank_fail_safe",
    _GAUGE,
    "1 while the scheduler borrows by itself, else 0.",
    (Process.CONTROLLER, Process.WATCHDOG),
    ("pool",),
)
TURN: Final = Metric(
    "gpubank_turn_seconds",
    _HISTOGRAM,
    "Time of a pool's turn: look, decide, write.",
    _BANK,
    ("pool",),
    TURN_BUCKETS,
)
LAST_TURN: Final = Metric(
    "gpubank_last_turn_seconds", _GAUGE, "Time since a pool's turn last came to an end.", _BANK, ("pool",)
)
TURN_FAILURES: Final = Metric(
    "gpubank_pool_turn_failures_total", _COUNTER, "Turns of a pool that failed and were tried again.", _BANK, ("pool",)
)
RECALLS: Final = Metric(
    "gpubank_recalls_total",
    _COUNTER,
    "Demands that came to an outcome: met, partial or cancelled; a partial one is tried again.",
    _ENDS,
    ("pool", "outcome"),
)
RECALL: Final = Metric(
    "gpubank_recall_seconds",
    _HISTOGRAM,
    "Time from an owner's demand to its outcome; met means that the owner's pods are scheduled.",
    _ENDS,
    ("pool", "outcome"),
    RECALL_BUCKETS,
)
IMBALANCE: Final = Metric(
    "gpubank_ledger_imbalance_gpu_ms",
    _GAUGE,
    "What the postings of pools do not balance by, in GPU-milliseconds; anything but 0 is an error in the books.",
    _BANK,
)
POSTING_FAILURES: Final = Metric(
    "gpubank_posting_failures_total", _COUNTER, "Times that what is due could not be posted in the ledger.", _BANK
)
CYCLE: Final = Metric(
    "gpubank_admission_cycle_p99_seconds",
    _GAUGE,
    "99th percentile of the scheduler's admission cycles, as every change of a quota waits for it.",
    _ENDS,
)
CYCLE_AGE: Final = Metric(
    "gpubank_admission_cycle_age_seconds",
    _GAUGE,
    "Time since the admission cycles were last read; no series where no address is set, and they are assumed.",
    _ENDS,
)
STUCK: Final = Metric(
    "gpubank_stuck_workflows",
    _GAUGE,
    "Running workflows whose tasks fail again and again (TemporalReportedProblems).",
    (Process.WORKER,),
)
SILENCE: Final = Metric(
    "gpubank_heartbeat_silence_seconds",
    _GAUGE,
    "Time without a sign of life of the bank for the pool, as this watchdog saw it.",
    _WATCHDOG,
    ("pool",),
)
SILENCE_LIMIT: Final = Metric(
    "gpubank_heartbeat_limit_seconds",
    _GAUGE,
    "Silence after which the pool is handed to the scheduler (failSafeAfter).",
    _WATCHDOG,
    ("pool",),
)

METRICS: Final[tuple[Metric, ...]] = tuple(value for value in list(vars().values()) if isinstance(value, Metric))
"""All of them, in the order above."""


OUTCOMES: Final = {DemandState.MET: "met", DemandState.PARTIAL: "partial", DemandState.CANCELLED: "cancelled"}
"""Outcomes of a demand, as the label says them."""


_PAGE_HEAD: Final = """\
<!-- Written by `gpubank schema write`; edit gpubank/metrics.py instead. -->
# Metrics

Controller, worker and watchdog answer on `observability.port` (environment: `GPUBANK_OBSERVABILITY__PORT`; 0, the
default, serves nothing; the manifests set 9412) with

- `/metrics`: what is below, in the text format of Prometheus;
- `/healthz`: 200 while a restart would mend nothing, 503 with the reason otherwise;
- `/readyz`: 200 while the process does its work, 503 with the reason otherwise.

Names and labels are stable: they are only added to. All GPU counts are of whole GPUs. Gauges of pools are there on the
controller that leads alone, and of pools that exist. Sum counters and histograms over processes, for a demand is ended
by the controller or by a Reclaim: `sum by (pool, outcome) (rate(gpubank_recalls_total[1h]))`. The worker serves the
metrics of Temporal's client library too (`temporal_*`, times in seconds); the node agent has a page of its own.

| metric | type | labels | served by | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """Render the reference page."""
    rows = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        rows.append(
            f"| `{metric.name}` | {metric.type} | {labels} | {', '.join(metric.processes)} | {metric.meaning} |\n"
        )
    return _PAGE_HEAD + "".join(rows)
