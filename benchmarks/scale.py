"""The scale proof: many groups and standing Workloads in one pool, new work at a rate, and how soon demands are heard.

    python -m benchmarks.scale [--groups 50] [--standing 500] [--rates 5] [--seconds 20] [--json FILE]
    python -m benchmarks.scale --groups 1000 --standing 10000 --rates 20 --seconds 120
    python -m benchmarks.scale --groups 1000 --standing 10000 --rates 10 20 30 40 50 --seconds 60

The lab (etcd, API server, controllers, scheduler, Kueue, kwok), PostgreSQL, Temporal's dev server, and the bank's
worker and controller as processes of their own with the rights of the manifests: all on this machine, which submits
too. Who borrows and who demands is a Job with a pod on a kwok node. Own work that only has to be there is a Workload
without a Job: what stands has a pod that is bound from the start, what is short has none. To the bank they are what
others are; but Jobs cost the Job controller, the scheduler and the API server some 80 ms of processor time each, and
two cores would be busy with that alone.

Of each demand of an owner whose GPUs are lent: when its Workload was created and when Kueue first said a word about it,
as a watch tells, and when its Reclaim began, as Temporal tells. What lies between the last two is the bank's.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, arguments, percentile, positive
from benchmarks.scale_meters import Audit, Meter, Turns
from benchmarks.scale_pool import CLUSTER, NODE, POOL, Plan, agreements, create_all, namespaces, standing_work, until
from benchmarks.scale_traffic import Demanded, Ledgered, Mix, Outcome, Sent, Sight, Traffic, outcome
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, CLUSTER_QUEUE
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.domain.recall import reclaim_id
from gpubank.lab import Lab
from gpubank.lab.postgres import Postgres
from tests.support.restricted import port
from tests.support.running import RunningBank, running_bank

PATIENCE: Final = 1800.0
DRAIN: Final = 90.0
"""Longest wait for the demands of one rate to end before the next begins."""

AIM: Final = 1.0
"""Seconds beyond Kueue's own reaction within which 95 of 100 Reclaims are to begin."""

KEPT_UP: Final = 0.95
"""Share of a rate that must have been submitted for it to count as kept up with."""

SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


@dataclass
class Bench:
    """Everything that runs."""

    lab: Lab
    running: RunningBank
    connection: Connection
    plan: Plan
    sight: Sight
    books: Ledgered
    traffic: Traffic
    pids: dict[str, int]
    audit: Audit
    turns: Turns
    setup: dict[str, Any] = field(default_factory=dict)


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
        kept = self.reached >= KEPT_UP * self.mix.rate and not self.outcome.forgotten
        return kept and bool(beyond) and percentile(beyond, 0.95) <= AIM


# ---- the run


@asynccontextmanager
async def bench(folder: Path, plan: Plan) -> AsyncIterator[Bench]:
    """Start everything; the pool is empty yet."""
    async with AsyncExitStack() as stack:
        lab = Lab(f"scale-{uuid.uuid4().hex[:8]}", nodes=0)
        stack.push_async_callback(asyncio.to_thread, lab.clean)
        await asyncio.to_thread(lab.up)
        postgres = Postgres()
        stack.push_async_callback(asyncio.to_thread, postgres.close)
        await asyncio.to_thread(postgres.start)
        running = await stack.enter_async_context(
            running_bank(lab, postgres.create_database(), folder / "bank", gated=False)
        )
        connection = await stack.enter_async_context(Connection.open(lab.kubeconfig))
        state = lab.state
        assert state is not None
        pids = {record.component: record.pid for record in state.processes}
        for name, pid in (
            ("worker", running.processes.worker.pid),
            ("controller", running.processes.controller.pid),
            ("temporal", running.server.pid),
        ):
            assert pid is not None
            pids[name] = pid
        pids["postgresql"] = int((postgres.data / "postmaster.pid").read_text().split()[0])
        sight, books = Sight(connection), Ledgered(running.ledger)
        audit, turns = Audit(lab.log("audit")), Turns(port(running.processes, "controller"))
        yield Bench(lab, running, connection, plan, sight, books, Traffic(connection, plan, books), pids, audit, turns)


async def fill(at: Bench, mix: Mix) -> None:
    """Make nodes, groups and what stands, and take down how long each takes."""
    plan, took = at.plan, at.setup
    begun = time.monotonic()
    nodes = await _since(took, "nodes_s", begun, asyncio.to_thread(at.lab.add_nodes, POOL, plan.nodes, NODE))
    await _since(took, "nodes_and_namespaces_s", begun, create_all(at.connection, namespaces(plan)))
    at.audit.skip()
    meter, begun = Meter(at.pids), time.monotonic()
    await _since(took, "agreements_written_s", begun, create_all(at.connection, agreements(plan)))
    promised = await _since(took, "guarantees_in_force_s", begun, _promised(at))
    await _since(took, "queues_raised_s", begun, _raised(at, promised))
    await _since(took, "policies_ready_s", begun, _ready(at))
    cores, _, _ = meter.since(1)
    took["controller_cpu_s"], took["requests"] = cores["controller"], at.audit.read().total()
    begun, meter = time.monotonic(), Meter(at.pids)
    await create_all(at.connection, standing_work(plan, nodes))
    await _since(took, "own_work_s", begun, _holding(at, "own", plan.own_jobs))
    begun = time.monotonic()
    await create_all(at.connection, at.traffic.standing(mix))
    await _since(took, "loans_s", begun, _holding(at, "standing", plan.standing_loans))


async def _since(took: dict[str, Any], name: str, begun: float, work: Any) -> Any:
    found = await work
    took[name] = time.monotonic() - begun
    return found


async def _promised(at: Bench) -> int:
    async def all_in_force() -> int:
        books = await at.running.ledger.books(CLUSTER, POOL)
        return books.promised if books.promised >= at.plan.capacity else 0

    return await until(all_in_force, "every guarantee in force", PATIENCE)


async def _raised(at: Bench, gpus: int) -> None:
    async def raised() -> bool:
        return sum(queues.nominal(body) for body in await at.connection.all(CLUSTER_QUEUE)) >= gpus

    await until(raised, "the quotas of all queues", PATIENCE, 2)


async def _ready(at: Bench) -> None:
    async def ready() -> bool:
        policies = await at.connection.all(BANK_KINDS["GPUQuotaPolicy"])
        conditions = [(body.get("status") or {}).get("conditions") or () for body in policies]
        return sum(any(each["status"] == "True" for each in said) for said in conditions) >= at.plan.groups

    await until(ready, "the condition Ready of every policy", PATIENCE, 2)


async def _holding(at: Bench, kind: str, count: int) -> None:
    async def held() -> bool:
        return at.sight.holding.get(kind, 0) >= count

    await until(held, f"quota for {count} jobs ({kind})", PATIENCE)


async def run_rate(at: Bench, mix: Mix, seconds: float, warm: float) -> Result:
    """Submit at a rate, after a while of the same to warm up, and wait until its demands have ended."""
    if warm:
        await at.traffic.run(mix, warm)
    since = datetime.now(UTC)
    begun, meter = time.monotonic(), Meter(at.pids)
    at.audit.skip()
    at.turns.since()
    sent = await at.traffic.run(mix, seconds)
    took = time.monotonic() - begun
    cores, mib, busy = meter.since(took)
    calls, (turns, turn_seconds) = at.audit.read(), at.turns.since()
    loans = sum(since.timestamp() <= (seen.reserved or 0) for seen in _borrowing(at.sight))

    async def ended() -> bool:
        await at.books.read()
        return not at.books.live

    with contextlib.suppress(TimeoutError):  # what has no Reclaim by then is told of
        await until(ended, "the end of every demand", DRAIN, 2)
    at.running.processes.check()
    became = outcome(sent, at.sight, at.books, await reclaims(at.running, since))
    return Result(mix, took, sent, became, loans, cores, mib, busy, calls, turns, turn_seconds)


def _borrowing(sight: Sight) -> list[Any]:
    return [seen for name, seen in sight.by_job.items() if name.startswith(("borrow-", "churning-"))]


async def reclaims(running: RunningBank, since: datetime) -> dict[str, list[float]]:
    """Return when Reclaims began since then, by lender."""
    await asyncio.sleep(2)  # until the server's lists have caught up
    prefix, found = reclaim_id(CLUSTER, POOL, ""), defaultdict[str, list[float]](list)
    query = f"WorkflowType = 'Reclaim' AND StartTime >= '{since.isoformat()}'"
    async for workflow in running.client.temporal.list_workflows(query):
        if workflow.id.startswith(prefix):
            found[workflow.id.removeprefix(prefix)].append(workflow.start_time.timestamp())
    return found


async def measure(plan: Plan, mixes: Sequence[Mix], seconds: float, warm: float, logs: Path | None = None) -> Report:
    """Fill a pool and measure one rate after the other."""
    report = Report(f"{plan.groups:,} groups, {plan.standing:,} standing Workloads", ("what", *_titles(mixes)))
    with tempfile.TemporaryDirectory() as name:
        async with bench(logs or Path(name), plan) as at, asyncio.TaskGroup() as watching:
            tasks = [watching.create_task(each) for each in (at.sight.run(), at.books.run())]
            await fill(at, mixes[0])
            results = [await run_rate(at, mix, seconds, warm) for mix in mixes]
            for task in tasks:
                task.cancel()
            await at.running.ledger.post(until=datetime.now(UTC))
            balances = await at.running.ledger.balances()
            verified = await at.running.ledger.verify()
            report.figures["setup"] = at.setup
    report.figures["ledger"] = {
        "imbalance_gpu_ms": sum(each.borrowed_gpu_ms - each.lent_gpu_ms for each in balances),
        "postings": verified.postings,
        "lines": verified.lines,
        "audit_events": verified.audit_events,
        "ok": verified.ok,
    }
    _tell(report, plan, results)
    return report


# ---- results


def _titles(mixes: Sequence[Mix]) -> list[str]:
    return [f"{mix.rate:g}/s" for mix in mixes]


def _tell(report: Report, plan: Plan, results: Sequence[Result]) -> None:
    rows: dict[str, list[object]] = defaultdict(list)
    for result in results:
        for name, value in _rows(result).items():
            rows[name].append(value)
    for name, values in rows.items():
        report.row(name, *values)
    report.figures |= {"groups": plan.groups, "standing": plan.standing, "loans": plan.loans, "gpus": plan.capacity}
    report.figures["rates"] = [_figures(result) for result in results]
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
        "demands: with a Reclaim / came in / forgotten": f"{len(became.met)} / {became.spared} / {became.forgotten}",
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


def _figures(result: Result) -> dict[str, Any]:
    calls = {" ".join(key): count / result.seconds for key, count in sorted(result.calls.items())}
    return {
        "rate": result.mix.rate,
        "reached": result.reached,
        "seconds": result.seconds,
        "refused": result.sent.refused,
        "loans_per_second": result.loans / result.seconds,
        "demands": len(result.outcome.met),
        "came_in_without": result.outcome.spared,
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


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 1")
    return value


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("How soon demands are acted on in a large pool under traffic.")
    parser.add_argument("--groups", type=positive, default=50, help="business groups of the pool, at least 4")
    parser.add_argument("--standing", type=positive, default=500, help="Workloads that run all the time")
    parser.add_argument("--loans", type=positive, help="loans that fit the pool; half as many as groups if not given")
    parser.add_argument("--rates", type=positive, nargs="+", default=[5], help="new Workloads a second, in turn")
    parser.add_argument("--seconds", type=positive, default=20, help="how long each rate lasts")
    parser.add_argument("--warm", type=int, default=10, help="seconds of the same before each is measured")
    parser.add_argument("--loan-share", type=_share, default=0.25, help="share of new work that borrows")
    parser.add_argument("--recall-share", type=_share, default=0.1, help="share of new work that needs a recall")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep settings and logs of the bank here")
    given = parser.parse_args(arguments_)
    plan = Plan(given.groups, given.standing, given.loans or given.groups // 2)
    if plan.groups < plan.loans + 2:
        parser.error("there must be two groups more than loans: one that borrows and one that does not lend")
    mixes = [Mix(rate, given.loan_share, given.recall_share) for rate in given.rates]
    asyncio.run(measure(plan, mixes, given.seconds, given.warm, given.logs)).finish(given.json)


if __name__ == "__main__":
    main()
