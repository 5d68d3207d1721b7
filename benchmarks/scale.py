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
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, arguments, positive
from benchmarks.scale_meters import Audit, Meter, Turns
from benchmarks.scale_pool import CLUSTER, NODE, POOL, Plan, agreements, create_all, namespaces, standing_work, until
from benchmarks.scale_results import Result, figures_of, tell, titles
from benchmarks.scale_traffic import Ledgered, Mix, Sight, Span, Traffic, outcome
from benchmarks.stage import bank_on_a_lab
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, CLUSTER_QUEUE
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.domain.errors import BankError
from gpubank.domain.recall import reclaim_id
from gpubank.lab import Lab
from gpubank.lab.errors import LabError
from tests.support.restricted import port
from tests.support.running import RunningBank

PATIENCE: Final = 1800.0
DRAIN: Final = 90.0
"""Longest wait for the demands of one rate to end before the next begins."""


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


# ---- the run


@asynccontextmanager
async def bench(folder: Path, plan: Plan) -> AsyncIterator[Bench]:
    """Start everything; the pool is empty yet."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(bank_on_a_lab(folder, "scale"))
        lab, _, running = stage
        connection = await stack.enter_async_context(Connection.open(lab.kubeconfig))
        pids = stage.pids()
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
    became = outcome(sent, at.sight, at.books, await reclaims(at.running))
    return Result(mix, took, sent, became, loans, cores, mib, busy, calls, turns, turn_seconds)


def _borrowing(sight: Sight) -> list[Any]:
    return [seen for name, seen in sight.by_job.items() if name.startswith(("borrow-", "churning-"))]


async def reclaims(running: RunningBank) -> dict[str, list[Span]]:
    """Return when Reclaims have run, by lender."""
    await asyncio.sleep(2)  # until the server's lists have caught up
    prefix, found = reclaim_id(CLUSTER, POOL, ""), defaultdict[str, list[Span]](list)
    async for workflow in running.client.temporal.list_workflows("WorkflowType = 'Reclaim'"):
        if workflow.id.startswith(prefix):
            end = workflow.close_time.timestamp() if workflow.close_time is not None else math.inf
            found[workflow.id.removeprefix(prefix)].append(Span(workflow.start_time.timestamp(), end))
    return found


async def _run_rates(report: Report, at: Bench, mixes: Sequence[Mix], seconds: float, warm: float) -> list[Result]:
    """Measure in turn; what one rate breaks takes nothing away from those before it."""
    results: list[Result] = []
    for mix in mixes:
        try:
            results.append(await run_rate(at, mix, seconds, warm))
        except (BankError, LabError, TimeoutError, OSError) as error:
            if not results:
                raise
            report.figures["ended_early"] = f"{mix.rate:g}/s: {error}"
            break
        _say(f"{mix.rate:g}/s: {json.dumps(figures_of(results[-1]))}")
    return results


def _say(what: str) -> None:
    """Tell how far it is: large sizes take long."""
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {what}\n")


async def measure(plan: Plan, mixes: Sequence[Mix], seconds: float, warm: float, logs: Path | None = None) -> Report:
    """Fill a pool and measure one rate after the other."""
    report = Report(f"{plan.groups:,} groups, {plan.standing:,} standing Workloads", ("what", *titles(mixes)))
    with tempfile.TemporaryDirectory() as name:
        async with bench(logs or Path(name), plan) as at, asyncio.TaskGroup() as watching:
            tasks = [watching.create_task(each) for each in (at.sight.run(), at.books.run())]
            await fill(at, mixes[0])
            _say(f"filled: {at.setup}")
            results = await _run_rates(report, at, mixes, seconds, warm)
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
    tell(report, plan, results)
    return report


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
