"""What must hold after a crash: everything that can be counted is as if nobody had died.

Each source is asked for itself, for one that is wrong must not vouch for itself: the books, Kueue's quotas and its own
count of evictions, Temporal's runs, the API server's audit log, and the diary of the job that was stopped.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpubank.adapters.kubernetes.kinds import WORKLOAD
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.recall import loan_id, reclaim_id
from tests.contract.kueue_world import KueueWorld
from tests.matrix.trainee import DIARY
from tests.support.audit import drift, unbacked
from tests.support.bank import Bank
from workflows import attributes

MULTIPLE_CHOICES: Final = 300
"""The first HTTP status that is no success."""


class Recall(NamedTuple):
    """One recall that has ended, the borrower's return included."""

    bank: Bank
    owner: str
    borrower: str
    train: str
    batch: str
    gpus: int
    since: datetime
    """When the borrower ran and nobody wanted anything back yet: what the ledger ended before is not of the recall."""

    @property
    def pool(self) -> str:
        return self.bank.world.pool


async def judge(recall: Recall, patience: float) -> list[str]:
    """Return every violation, for people."""
    bank = recall.bank

    async def rests() -> bool:
        books, facts = await bank.books(), await bank.facts()
        return not books.lines and not books.demands and not drift(books, facts)

    try:
        await bank.until(rests, "no line or demand is open, and every quota is what the books say", patience)
    except AssertionError as error:
        return [str(error)]
    train, batch = await bank.workload(recall.train), await bank.workload(recall.batch)
    found = [*await _books(recall, train), *await _quotas(recall)]
    found += [*await _demand(recall, batch), *await _stops(recall, train, batch)]
    found += [*await _runs(recall, train), *await _checkpoint(recall, train)]
    return found


async def _books(recall: Recall, train: WorkloadFacts) -> list[str]:
    lines = [line for line in await recall.bank.lines(job=recall.train) if not _ended(line, recall.since)]
    states = [(line.term, line.gpus, line.state) for line in lines]
    wanted = [(1, recall.gpus, LineState.RETURNED), (2, recall.gpus, LineState.RETURNED)]
    # What is lent to a job that returns lapses while Kueue is dead, and is lent again: the last one is what it runs on.
    settled = states[:1] + states[-1:] if {term for term, *_ in states[1:]} == {2} else states
    found = [] if settled == wanted else [f"lines of {recall.train}: {states}, not {wanted}"]
    uses = await recall.bank.ledger.uses(cluster=recall.bank.world.cluster, pool=recall.pool)
    mine = sorted((use.term, use.gone_at is not None) for use in uses if use.workload.uid == train.key.uid)
    return found if mine == [(1, True), (2, True)] else [*found, f"uses of {recall.train}: {mine}"]


def _ended(line: Line, by: datetime) -> bool:
    return line.ended_at is not None and line.ended_at <= by


async def _quotas(recall: Recall) -> list[str]:
    bank = recall.bank
    books, facts = await bank.books(), await bank.facts()
    total = sum(queue.nominal for queue in facts.queues)
    promised = books.guarantee(bank.name(recall.owner)).in_force
    found = [] if total <= bank.capacity else [f"quotas of {total} in a pool of {bank.capacity}"]
    if promised != recall.gpus:
        found.append(f"{recall.owner} is guaranteed {promised}, not {recall.gpus}")
    if left := unbacked(books, facts):
        found.append(f"borrowers that no loan backs: {left}")
    return [*found, *bank.violations]


async def _demand(recall: Recall, batch: WorkloadFacts) -> list[str]:
    """The owner's demand was opened once, raised once and met once."""
    events = await recall.bank.ledger.audit(subject=f"{recall.bank.world.cluster}/{recall.pool}", limit=200)
    notes = [str(event.detail.get("note")) for event in events if batch.key.uid in str(event.detail.get("note"))]
    ends = Counter(
        state for note in notes for state in ("Raised", "Met", "Partial", "Cancelled") if f" is {state}" in note
    )
    return [] if ends == {"Raised": 1, "Met": 1} else [f"the demand of {recall.batch} went through {dict(ends)}"]


async def _stops(recall: Recall, train: WorkloadFacts, batch: WorkloadFacts) -> list[str]:
    """Kueue counts itself how often it evicted whom, and why."""
    found = []
    for workload, wanted in ((train, {"Deactivated": 1}), (batch, {})):
        world = recall.bank.world
        assert isinstance(world, KueueWorld)
        body = await world.connection.get(WORKLOAD, workload.key.name, workload.key.namespace)
        stats = ((body or {}).get("status", {}).get("schedulingStats") or {}).get("evictions") or []
        counts = {each["reason"]: each["count"] for each in stats}
        if body is None or counts != wanted:
            found.append(f"evictions of {workload.key.job}: {counts}, not {wanted}")
    return found


async def _runs(recall: Recall, train: WorkloadFacts) -> list[str]:
    """Loan and Reclaim have completed, and nothing of the pool failed."""
    bank = recall.bank
    temporal, cluster = bank.client.temporal, bank.world.cluster
    ids = loan_id(cluster, train.key.uid), reclaim_id(cluster, recall.pool, bank.name(recall.owner))

    async def completed() -> bool:
        states = [(await temporal.get_workflow_handle(each).describe()).status for each in ids]
        return all(state is not None and state.name == "COMPLETED" for state in states)

    try:
        await bank.until(completed, f"{' and '.join(ids)} have completed")
    except AssertionError as error:
        return [str(error)]
    ill = f"{attributes.POOL.name} = '{recall.pool}' AND ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')"
    failed = [f"{each.id} {each.status}" async for each in temporal.list_workflows(ill)]
    return [f"workflows that did not end well: {', '.join(failed)}"] if failed else []


async def _checkpoint(recall: Recall, train: WorkloadFacts) -> list[str]:
    """The job itself was stopped once, after a checkpoint that the bank had verified, and went on from it."""
    loan = await recall.bank.loan(recall.train)
    terms = [term.term for term in loan.history]
    saved = loan.history[0].checkpoint if loan.history else None
    diary = list(_diary(recall.bank.folder / recall.train / DIARY))
    events = [entry["event"] for entry in diary if entry["event"] != "saved"]
    if terms != [1, 2] or events != ["started", "stopped", "started", "finished"]:
        return [f"{recall.train} had the terms {terms} and wrote {events}"]
    stopped = next(entry for entry in diary if entry["event"] == "stopped")
    again = [entry for entry in diary if entry["event"] == "started"][1]
    before = [entry["step"] for entry in diary if entry["event"] == "saved" and entry["at"] <= stopped["at"]]
    found = []
    if saved is None or saved.step not in before:
        found.append(f"the checkpoint is {saved}, and {recall.train} had saved {before} when it was stopped")
    elif saved.verified_at > datetime.fromtimestamp(stopped["at"], UTC):
        found.append(f"the checkpoint was verified at {saved.verified_at}, after the stop")
    if not before or again["step"] != before[-1]:
        found.append(f"{recall.train} had saved {before} and went on from {again['step']}")
    return found


def _diary(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def writes(log: Path, offset: int) -> Counter[str]:
    """Count, by `namespace/name`, what the worker changed at Workloads; by the audit log from `offset` on."""
    counts: Counter[str] = Counter()
    with log.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            event = _event(line)
            about = event.get("objectRef") or {}
            if (
                event.get("user", {}).get("username", "").endswith(":gpubank-worker")
                and about.get("resource") == "workloads"
                and event["verb"] in ("patch", "update")
                and (event.get("responseStatus") or {}).get("code", 0) < MULTIPLE_CHOICES
            ):
                counts[f"{about['namespace']}/{about['name']}"] += 1
    return counts


def _event(line: bytes) -> dict[str, Any]:
    """Read one line; a server that is killed may leave half of one, which its successor's first is written behind."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return event
