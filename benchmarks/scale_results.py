"""What one rate of the scale proof came to, as rows for people and figures for programs."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.report import Report, percentile
from benchmarks.scale_pool import Plan
from benchmarks.scale_traffic import Demanded, Mix, Outcome, Sent

AIM: Final = 1.0
"""Seconds beyond Kueue's own reaction within which 95 of 100 Reclaims are to begin."""

KEPT_UP: Final = 0.95
"""Share of a rate that must have been submitted for it to count as kept up with."""

SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True)
class Result:
    """What one rate came to."""

    mix: Mix
    seconds: float
    sent: Sent
    outcome: Outcome
    loans: int
    """Loans that were admitted meanwhile."""

    cores: dict[str, float]
    mib: dict[str, float]
    busy: float
    calls: Counter[tuple[str, str, str]]
    turns: int
    turn_seconds: float

    @property
    def reached(self) -> float:
        """New Workloads a second that the API server took."""
        sent = self.sent
        return (len(sent.demands) + len(sent.borrowing) + len(sent.own) - sent.refused) / self.seconds

    def beyond(self) -> list[float]:
        """Seconds between Kueue's first word and the Reclaim."""
        return [each.started - each.word for each in self.outcome.met]

    @property
    def holds(self) -> bool:
        """Whether this rate was kept up with, within the aim."""
        beyond = self.beyond()
        kept = self.reached >= KEPT_UP * self.mix.rate and not (self.outcome.unheard or self.outcome.forgotten)
        return kept and bool(beyond) and percentile(beyond, 0.95) <= AIM


def titles(mixes: Sequence[Mix]) -> list[str]:
    """Return the heading of every rate's column."""
    return [f"{mix.rate:g}/s" for mix in mixes]


def tell(report: Report, plan: Plan, results: Sequence[Result]) -> None:
    """Put everything into the report; its figures hold set-up and ledger already."""
    rows: dict[str, list[object]] = defaultdict(list)
    for result in results:
        for name, value in _rows(result).items():
            rows[name].append(value)
    for name, values in rows.items():
        report.row(name, *values)
    report.figures |= {"groups": plan.groups, "standing": plan.standing, "loans": plan.loans, "gpus": plan.capacity}
    report.figures["rates"] = [figures_of(result) for result in results]
    holding = [result.mix.rate for result in results if result.holds]
    report.figures["highest_rate_within_aim"] = max(holding, default=None)
    for name, value in report.figures["setup"].items():
        report.row(f"setup: {name}", value, *[""] * (len(results) - 1))
    books = report.figures["ledger"]
    said = "balanced, no finding" if books["ok"] and not books["imbalance_gpu_ms"] else "NOT in order, see the figures"
    report.row("ledger", said, *[""] * (len(results) - 1))


def _rows(result: Result) -> dict[str, object]:
    sent, became = result.sent, result.outcome
    rows: dict[str, object] = {
        "new Workloads a second": result.reached,
        "loans admitted a second": result.loans / result.seconds,
        "demands: with a Reclaim / in one that ran / came in / unheard / forgotten": (
            f"{len(became.met)} / {became.joined} / {became.spared} / {became.unheard} / {became.forgotten}"
        ),
    }
    for name, value in _spreads(became.met).items():
        rows |= {f"{name}, {share}, s": seconds for share, seconds in value.items()}
    rows |= {f"cores: {name}": cores for name, cores in result.cores.items() if cores >= 0.01}
    rows["cores: whole machine"] = result.busy
    rows |= {f"MiB: {name}": mib for name, mib in result.mib.items()}
    for process in ("controller", "worker"):
        count = sum(n for (who, _, _), n in result.calls.items() if who == process)
        rows[f"API requests a second: {process}"] = count / result.seconds
    rows["lists"] = sum(n for (_, verb, _), n in result.calls.items() if verb == "list")
    rows["turns of the loop"] = result.turns
    rows["mean turn, s"] = result.turn_seconds
    rows["bench's own lag, p95, s"] = percentile(sent.late, 0.95)
    return rows


def _spreads(met: Sequence[Demanded]) -> dict[str, dict[str, float]]:
    values = {
        "Kueue's first word": [each.word for each in met],
        "Kueue's word to the demand in the books": [e.opened - e.word for e in met if e.opened is not None],
        "Kueue's word to the Reclaim": [each.started - each.word for each in met],
        "created to the Reclaim": [each.started for each in met],
        "created to admitted": [each.admitted for each in met if each.admitted is not None],
    }
    return {
        name: {title: percentile(found, share) for title, share in SHARES} for name, found in values.items() if found
    }


def figures_of(result: Result) -> dict[str, Any]:
    """Return what programs may want to know of one rate."""
    calls = {" ".join(key): count / result.seconds for key, count in sorted(result.calls.items())}
    return {
        "rate": result.mix.rate,
        "reached": result.reached,
        "seconds": result.seconds,
        "refused": result.sent.refused,
        "loans_per_second": result.loans / result.seconds,
        "demands": len(result.outcome.met),
        "came_in_without": result.outcome.spared,
        "joined_a_reclaim": result.outcome.joined,
        "unheard": result.outcome.unheard,
        "forgotten": result.outcome.forgotten,
        "seconds_of": _spreads(result.outcome.met),
        "all_beyond_s": [round(each, 3) for each in result.beyond()],
        "cores": result.cores | {"machine": result.busy},
        "resident_mib": result.mib,
        "requests_per_second": calls,
        "turns": result.turns,
        "mean_turn_s": result.turn_seconds,
        "lag_p95_s": percentile(result.sent.late, 0.95),
        "within_aim": result.holds,
    }
