"""From an owner's demand to its admission and its pods on nodes: the bank over Kueue's own preemption.

    python -m benchmarks.reclaim [--pairs 30] [--json FILE]

One lab, one run, pairs in turn. In both a borrower's training run of 8 GPUs is on the owner's node, answers a
checkpoint request at once, and ends when it is told to; then the owner submits its job. Kueue preempts it within a
Cohort (`reclaimWithinCohort: Any`) without asking; the bank asks for the checkpoint, verifies it, stops the run and
gives the GPUs back. Seconds from the submission, seen by the same eyes.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, arguments, percentile, positive, ratio, spread
from benchmarks.stage import bank_on_a_lab
from benchmarks.timeline import Moment, timeline
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, POD, RESOURCE_FLAVOR, WORKLOAD, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.domain.contract import (
    CHECKPOINT_ENDPOINT_ANNOTATION,
    CHECKPOINT_STORAGE_ANNOTATION,
    CHECKPOINT_TRANSPORT_ANNOTATION,
    RETRYABLE_LABEL,
    WORKLOAD_TYPE_LABEL,
    Side,
    local_borrow_queue,
    local_own_queue,
)
from gpubank.domain.pool import DEFAULT_RESOURCE
from gpubank.domain.recall import loan_id, reclaim_id
from gpubank.lab.names import POOL_LABEL
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.world import JobRequest
from tests.support.bank import TRAINEE, Bank

GPUS: Final = 8
LOOK: Final = 0.02
"""Seconds between two looks at the owner's Workload and pods."""

PATIENCE: Final = 60.0


@dataclass(frozen=True)
class Reclaimed:
    """How long one owner waited, in seconds."""

    admitted: float
    placed: float


async def see(connection: Connection, namespace: str, job: str) -> Reclaimed:
    """Watch an owner's job from now until its pod is on a node."""
    begun, admitted = time.monotonic(), 0.0
    while (now := time.monotonic()) - begun < PATIENCE:
        if not admitted and await _admitted(connection, namespace, job):
            admitted = time.monotonic() - begun
        if admitted and await _placed(connection, namespace, job):
            return Reclaimed(admitted, time.monotonic() - begun)
        await asyncio.sleep(max(now + LOOK - time.monotonic(), 0))
    raise TimeoutError(f"job {namespace}/{job} is not on a node after {PATIENCE:.0f} s; see the lab's logs")


async def _admitted(connection: Connection, namespace: str, job: str) -> bool:
    for body in await _items(connection, WORKLOAD, namespace):
        if any(owner["name"] == job for owner in body["metadata"].get("ownerReferences") or ()):
            conditions = (body.get("status") or {}).get("conditions") or ()
            return any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions)
    return False


async def _placed(connection: Connection, namespace: str, job: str) -> bool:
    pods = [pod for pod in await _items(connection, POD, namespace) if pod["metadata"]["labels"].get("app") == job]
    return bool(pods) and all(pod["spec"].get("nodeName") for pod in pods)


async def _items(connection: Connection, kind: Kind, namespace: str) -> Sequence[Object]:
    answer = await connection.call("GET", kind.path("", namespace))
    return list((answer or {}).get("items") or ())


# ---- the two sides


class BankSide:
    """Owner and borrower as two groups of the bank."""

    name = "bank"

    def __init__(self, bank: Bank, world: KueueWorld) -> None:
        self._bank, self._world = bank, world
        self._gate = bank.gate(opened=True)
        self._loans: list[str] = []
        self.workflows: dict[str, str] = {}
        """Ids of the last pair's workflows."""

    async def begin(self) -> None:
        """Make the pool and its groups."""
        await self._bank.agree((GPUS,), vision=GPUS, search=0)

    async def borrow(self, number: int) -> None:
        """Have the borrower train on the owner's GPUs."""
        await self._bank.borrow("search", f"train-{number}", GPUS, trains=self._gate)

    async def reclaim(self, number: int) -> Reclaimed:
        """Submit the owner's job and see it on a node."""
        await self._bank.own("vision", f"batch-{number}", GPUS)
        return await see(self._world.connection, self._world.namespace(self._bank.name("vision")), f"batch-{number}")

    async def end(self, number: int) -> None:
        """Delete both jobs and see the books empty."""
        await self._bank.demand_met("vision")

        async def empty() -> bool:
            facts = await self._bank.facts()
            books = await self._bank.books()
            return not facts.workloads and not books.lines and not books.demands

        loan = loan_id(self._world.cluster, (await self._bank.workload(f"train-{number}")).key.uid)
        await self._bank.drop("search", f"train-{number}")
        await self._bank.drop("vision", f"batch-{number}")
        await self._bank.until(empty, "the pool is empty")
        self.workflows = {
            "loan": loan,
            "reclaim": reclaim_id(self._world.cluster, self._world.pool, self._bank.name("vision")),
        }
        self._loans.append(loan)

    async def events(self) -> list[int]:
        """Return the events in the history of each Loan: granted, recalled, saved, stopped, ended.

        A parked Loan learns within half a minute that its job is gone; all are waited for together.
        """
        handles = [self._bank.client.temporal.get_workflow_handle(loan) for loan in self._loans]
        await asyncio.gather(*(handle.result() for handle in handles))
        return [(await handle.describe()).history_length for handle in handles]

    async def moments(self, since: datetime) -> list[Moment]:
        """Return what the last pair's workflows did since, in order."""
        client = self._bank.client.temporal
        found = [
            moment
            for name, workflow in self.workflows.items()
            async for moment in timeline(client, name, workflow, since)
        ]
        return sorted(found, key=lambda moment: moment.scheduled)

    async def steps(self, number: int, since: datetime) -> dict[str, float]:
        """Return seconds from `since` to each of the bank's steps, as the audit trail has them."""
        found: dict[str, float] = {}
        for event in reversed(await self._bank.ledger.audit(limit=200)):
            if event.at >= since and self._world.pool in event.subject and event.action != "Committed":
                found.setdefault(event.action, (event.at - since).total_seconds())
        return found


class KueueSide:
    """Owner and borrower as two ClusterQueues of one Cohort, without the bank."""

    name = "Kueue"

    def __init__(self, world: KueueWorld, folder: Path) -> None:
        self._world, self._folder = world, folder
        self._gate = folder / "gate"

    async def begin(self) -> None:
        """Make node, flavor, Cohort and queues."""
        world, pool = self._world, self._world.pool
        self._gate.touch()
        await world.add_nodes(GPUS)
        flavor = {"metadata": {"name": pool}, "spec": {"nodeLabels": {POOL_LABEL: pool}}}
        await world.connection.create(RESOURCE_FLAVOR, _typed(RESOURCE_FLAVOR, flavor))
        for group, nominal in (("owner", GPUS), ("borrower", 0)):
            await world.add_namespace(world.namespace(group))
            spec: dict[str, Any] = {
                "cohortName": pool,
                "namespaceSelector": {},
                "queueingStrategy": "BestEffortFIFO",
                "preemption": {"reclaimWithinCohort": "Any"},
                "resourceGroups": queues.resource_groups(pool, DEFAULT_RESOURCE, nominal),
            }
            queue = {"metadata": {"name": f"{group}.{pool}.peer"}, "spec": spec}
            await world.connection.create(CLUSTER_QUEUE, _typed(CLUSTER_QUEUE, queue))
            name = local_own_queue(pool) if group == "owner" else local_borrow_queue(pool)
            local = {
                "metadata": {"name": name, "namespace": world.namespace(group)},
                "spec": {"clusterQueue": queue["metadata"]["name"]},
            }
            await world.connection.create(LOCAL_QUEUE, _typed(LOCAL_QUEUE, local))

    async def borrow(self, number: int) -> None:
        """Have the borrower train on the owner's GPUs."""
        storage = self._folder / f"train-{number}"
        storage.mkdir()
        annotations = {CHECKPOINT_TRANSPORT_ANNOTATION: "http", CHECKPOINT_STORAGE_ANNOTATION: storage.as_uri()}
        await self._world.submit_job(
            JobRequest(
                "borrower",
                f"train-{number}",
                side=Side.BORROW,
                gpus_per_pod=GPUS,
                labels={WORKLOAD_TYPE_LABEL: "training", RETRYABLE_LABEL: "false"},
                annotations=annotations,
                command=[sys.executable, str(TRAINEE), str(storage), str(self._gate)],
            )
        )
        await self._until_answers(f"train-{number}")

    async def _until_answers(self, job: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                for pod in await _items(self._world.connection, POD, self._world.namespace("borrower")):
                    if CHECKPOINT_ENDPOINT_ANNOTATION in (pod["metadata"].get("annotations") or {}):
                        return
                await asyncio.sleep(0.1)

    async def reclaim(self, number: int) -> Reclaimed:
        """Submit the owner's job and see it on a node."""
        await self._world.submit_job(JobRequest("owner", f"batch-{number}", gpus_per_pod=GPUS))
        return await see(self._world.connection, self._world.namespace("owner"), f"batch-{number}")

    async def end(self, number: int) -> None:
        """Delete both jobs and see them gone."""
        await self._world.delete_job("borrower", f"train-{number}")
        await self._world.delete_job("owner", f"batch-{number}")
        async with asyncio.timeout(PATIENCE):
            for group in ("borrower", "owner"):
                for kind in (WORKLOAD, POD):
                    await self._until_none(kind, self._world.namespace(group))

    async def _until_none(self, kind: Kind, namespace: str) -> None:
        while True:
            if not await _items(self._world.connection, kind, namespace):
                return
            await asyncio.sleep(0.1)


def _typed(kind: Kind, body: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


# ---- the run


@asynccontextmanager
async def sides(folder: Path) -> AsyncIterator[tuple[BankSide, KueueSide]]:
    """Start lab, PostgreSQL, Temporal and the bank, and make a pool for each side."""
    async with AsyncExitStack() as stack:
        lab, _, running = await stack.enter_async_context(bank_on_a_lab(folder))
        bank = await stack.enter_async_context(running.pool(folder))
        assert isinstance(bank.world, KueueWorld)
        peer = await stack.enter_async_context(kueue_world(lab))
        (folder / "peer").mkdir()
        yield BankSide(bank, bank.world), KueueSide(peer, folder / "peer")


async def measure(pairs: int, *, moments: bool = False) -> Report:
    """Measure pair after pair, the first to go first in turn."""
    report = Report("from demand to admitted", ("side", "what", "p50 s", "p95 s", "max s"))
    times: dict[str, list[Reclaimed]] = {}
    steps: dict[str, list[float]] = {}
    stories: list[tuple[float, list[Moment]]] = []
    with tempfile.TemporaryDirectory() as name:
        async with sides(Path(name)) as (bank, kueue):
            for side in (bank, kueue):
                await side.begin()
            for number in range(pairs + 1):
                for side in (bank, kueue) if number % 2 else (kueue, bank):
                    await side.borrow(number)
                    since = datetime.now().astimezone()
                    found = await side.reclaim(number)
                    if number:  # the first pair warms both up
                        times.setdefault(side.name, []).append(found)
                    await side.end(number)
                    if number and isinstance(side, BankSide):
                        for step, seconds in (await side.steps(number, since)).items():
                            steps.setdefault(step, []).append(seconds)
                        stories.append((found.admitted, await side.moments(since) if moments else []))
            events = spread([float(each) for each in await bank.events()])
    _tell(report, times, steps)
    report.row("bank", "events per loan's life (not s)", events["p50"], events["p95"], events["max"])
    report.figures["loan_life_events"] = events
    if moments:
        stories.sort(key=lambda story: story[0])
        for admitted, story in (stories[len(stories) // 2], stories[-1]):
            sys.stdout.write(f"admitted after {admitted:.3f} s; seconds: scheduled, until started, until ended\n")
            sys.stdout.writelines(f"{moment}\n" for moment in story)
    return report


def _tell(report: Report, times: dict[str, list[Reclaimed]], steps: dict[str, list[float]]) -> None:
    report.figures["pairs"] = len(times[BankSide.name])
    for what in ("admitted", "placed"):
        by_side = {side: [getattr(each, what) for each in found] for side, found in times.items()}
        for side, values in by_side.items():
            of = spread(values)
            report.row(side, what, of["p50"], of["p95"], of["max"])
            report.figures[f"{side.lower()}_{what}_s"] = of | {"all": [round(each, 3) for each in values]}
        ours, theirs = by_side[BankSide.name], by_side[KueueSide.name]
        for share in (0.5, 0.95):
            name = f"{what}_p{share * 100:.0f}_ratio"
            report.figures[name] = ratio(percentile(ours, share), percentile(theirs, share))
    for step, values in sorted(steps.items(), key=lambda item: percentile(item[1], 0.5)):
        of = spread(values)
        report.row("bank", f"first {step}", of["p50"], of["p95"], of["max"])
        report.figures[f"bank_first_{step.lower().replace(' ', '_')}_s"] = of


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("From an owner's demand to its admission: the bank over Kueue's own preemption.")
    parser.add_argument("--pairs", type=positive, default=30, help="measurements of each side, after one to warm up")
    parser.add_argument("--moments", action="store_true", help="print every step of the median and the slowest reclaim")
    given = parser.parse_args(arguments_)
    asyncio.run(measure(given.pairs, moments=given.moments)).finish(given.json)


if __name__ == "__main__":
    main()
