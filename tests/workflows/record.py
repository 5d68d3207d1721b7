"""Records histories, fingerprints and messages: `python -m tests.workflows.record [WHAT ...] [--unreleased]`.

WHAT is `histories` (Loans and Reclaims), `upkeep` (heartbeats and sweeps), `fingerprints` or `messages`; all of it by
default. The name of a scene records its histories alone, and leaves those of an older build as they are.
Fingerprints are written only when a new `workflow.patched` guards what has changed; `--unreleased` says that no
workflow of a released version runs anywhere.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from activities.interfaces import BANK_QUEUE
from gpubank.client import BankClient
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.failsafe import heartbeat_id
from gpubank.domain.policy import Approval, OnCheckpointFailure, WithinGroup
from gpubank.domain.recall import Decision, Extension, LoanPhase, ReclaimPhase
from gpubank.domain.sweep import SweepInput
from gpubank.embedded.devserver import DevServer
from gpubank.exit import clean_exit
from tests.fakes.bank import FakeBank, fake_bank
from tests.fakes.trainer import Mood
from tests.workflows import fingerprints, messages
from tests.workflows.conftest import connected
from workflows import attributes
from workflows.sweep import SweepWorkflow

HISTORIES: Final = Path(__file__).parent / "histories"

DROPPED: Final = frozenset({"stackTrace", "identity", "binaryChecksum", "workerVersion", "requestId"})
"""Fields that a replay does not need and that tell of the machine that recorded."""


async def _recalled(bank: FakeBank) -> WorkloadFacts:
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    return train


async def returned_and_resumed(bank: FakeBank) -> WorkloadFacts:
    train = await _recalled(bank)
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    await bank.world.finish_job("serving", "serve")
    await bank.placed("train")
    await bank.loan_in(train, LoanPhase.ACTIVE)
    await bank.world.finish_job("research", "train")
    await bank.loan_in(train, LoanPhase.CLOSED)
    return train


async def retryable(bank: FakeBank) -> WorkloadFacts:
    batch = await bank.borrow("research", "train", 16, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(batch, LoanPhase.PARKED)
    return batch


async def protected(bank: FakeBank) -> WorkloadFacts:
    bank.trainers.mood = Mood.FAILS
    train = await _recalled(bank)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    return train


async def evicted(bank: FakeBank) -> WorkloadFacts:
    bank.trainers.mood = Mood.SILENT
    bank.terms.set_group("research", grace_period=timedelta(seconds=1), on_checkpoint_failure=OnCheckpointFailure.EVICT)
    train = await _recalled(bank)
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    return train


async def cancelled(bank: FakeBank) -> WorkloadFacts:
    bank.trainers.mood = Mood.SILENT
    train = await _recalled(bank)
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.world.delete_job("serving", "serve")
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.CANCELLED)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    return train


async def approved_and_extended(bank: FakeBank) -> WorkloadFacts:
    bank.trainers.mood = Mood.SILENT
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await _recalled(bank)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.AWAITING_APPROVAL)
    await bank.client.approve(bank.reclaim("serving"), Decision(identity="ann"))
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.client.extend(bank.loan(train), Extension(by=timedelta(seconds=30), identity="bob"))
    bank.trainers.mood = Mood.SAVES
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    return train


async def denied(bank: FakeBank) -> WorkloadFacts:
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await _recalled(bank)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.AWAITING_APPROVAL)
    await bank.client.deny(bank.reclaim("serving"), Decision(identity="ann", reason="tonight"))
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    return train


async def given_back(bank: FakeBank) -> WorkloadFacts:
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    bank.terms.set(resume_after=timedelta(hours=1))
    await bank.client.return_now(bank.loan(train), Decision(identity="cho"))
    await bank.loan_in(train, LoanPhase.PARKED)
    return train


async def _made_room(bank: FakeBank) -> WorkloadFacts:
    bank.terms.set_group("serving", within_group=WithinGroup.LOWER_PRIORITY)
    await bank.own("serving", "low", hook=True)
    low = await bank.placed("low")
    await bank.own("serving", "high", priority=10)
    return low


async def own_side_returned_and_resumed(bank: FakeBank) -> WorkloadFacts:
    low = await _made_room(bank)
    await bank.placed("high")
    await bank.loan_in(low, LoanPhase.PARKED)
    await bank.world.finish_job("serving", "high")
    await bank.placed("low")
    await bank.loan_in(low, LoanPhase.CLOSED)
    return low


async def own_side_ended(bank: FakeBank) -> WorkloadFacts:
    low = await _made_room(bank)
    await bank.loan_in(low, LoanPhase.PARKED)
    await bank.world.delete_job("serving", "low")
    await bank.loan_in(low, LoanPhase.CLOSED)
    return low


async def own_side_released(bank: FakeBank) -> WorkloadFacts:
    bank.trainers.mood = Mood.SILENT
    low = await _made_room(bank)
    await bank.loan_in(low, LoanPhase.CHECKPOINTING)
    await bank.world.delete_job("serving", "high")
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.CANCELLED)
    await bank.loan_in(low, LoanPhase.CLOSED)
    return low


async def own_side_protected(bank: FakeBank) -> WorkloadFacts:
    bank.trainers.mood = Mood.FAILS
    low = await _made_room(bank)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.PARTIAL)
    await bank.loan_in(low, LoanPhase.CLOSED)
    return low


SCENES: Final[tuple[Callable[[FakeBank], Awaitable[WorkloadFacts]], ...]] = (
    returned_and_resumed,
    retryable,
    protected,
    evicted,
    cancelled,
    approved_and_extended,
    denied,
    given_back,
    own_side_returned_and_resumed,
    own_side_ended,
    own_side_released,
    own_side_protected,
)


@asynccontextmanager
async def bank_of_its_own() -> AsyncIterator[FakeBank]:
    """Run a bank of two groups on a Temporal server that nobody else uses."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            DevServer(Path(folder), search_attributes=attributes.KINDS, persistent=False) as server,
            fake_bank(await connected(server.address), {"research": 8, "serving": 8}) as bank,
        ):
            yield bank


async def record_histories(names: Collection[str] = ()) -> None:
    """Play the scenes, each on a server of its own, and keep the histories of its Loan and its Reclaim."""
    for scene in SCENES:
        if names and scene.__name__ not in names:
            continue
        async with bank_of_its_own() as bank:
            workload = await scene(bank)
            await asyncio.sleep(0.3)
            await keep(bank.client, f"loan-{scene.__name__}", bank.loan(workload))
            if scene is not given_back:
                await keep(bank.client, f"reclaim-{scene.__name__}", bank.reclaim("serving"))


async def record_upkeep() -> None:
    """Keep the history of a heartbeat that was ended, and of a sweep that found its work undone."""
    async with bank_of_its_own() as bank:
        client = bank.client
        await client.start_heartbeat(bank.cluster, bank.pool, every=timedelta(milliseconds=300))
        await asyncio.sleep(3)
        await client.end_heartbeat(bank.cluster, bank.pool)
        name = heartbeat_id(bank.cluster, bank.pool)
        await client.temporal.get_workflow_handle(name).result()
        await keep(client, "heartbeat-ended", name)
        sweep = SweepInput(cluster=bank.cluster, settle=timedelta(milliseconds=100))
        await client.temporal.execute_workflow(SweepWorkflow.run, sweep, id="sweep/local-1", task_queue=BANK_QUEUE)
        await keep(client, "sweep-heartbeat_missing", "sweep/local-1")


async def keep(client: BankClient, name: str, workflow_id: str) -> None:
    """Write the history of a workflow among those that are replayed."""
    history = await client.temporal.get_workflow_handle(workflow_id).fetch_history()
    events = [json.dumps(_redacted(event)) for event in history.to_json_dict()["events"]]
    path = HISTORIES / f"{name}.json"
    path.write_text('{"events": [\n' + ",\n".join(events) + "\n]}\n")
    sys.stdout.write(f"{path.name}: {len(events)} events\n")


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
            return {**value, "name": "sticky"}
        return {name: _redacted(inner) for name, inner in value.items() if name not in DROPPED}
    if isinstance(value, list):
        return [_redacted(inner) for inner in value]
    return value


def record_fingerprints(*, unreleased: bool) -> int:
    """Write the baseline anew, unless a change is guarded by nothing."""
    now = fingerprints.current()
    open_changes = fingerprints.unversioned(fingerprints.baseline(), now)
    if open_changes and not unreleased:
        sys.stderr.write(f"not guarded by a new workflow.patched: {', '.join(open_changes)}\n")
        return 1
    fingerprints.write(now)
    return 0


def main(arguments: list[str]) -> None:
    """Record what is asked for; everything where nothing is named."""
    what = {argument for argument in arguments if not argument.startswith("-")} or {
        "histories",
        "upkeep",
        "fingerprints",
        "messages",
    }
    code = 0
    scenes = what & {scene.__name__ for scene in SCENES}
    if "histories" in what or scenes:
        asyncio.run(record_histories(() if "histories" in what else scenes))
    if "upkeep" in what:
        asyncio.run(record_upkeep())
    if "fingerprints" in what:
        code = record_fingerprints(unreleased="--unreleased" in arguments)
    if "messages" in what:
        messages.write()
    clean_exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
