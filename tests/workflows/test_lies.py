"""The bank is not fooled: every lie of `tests.workflows.lies`, through a whole recall.

Each row has a pool of its own. Two trainers of a kind run on the owner's GPUs: one whose policy protects, and an older
one whose policy evicts. The owner wants one of them back:

    lie       the first is never stopped; the second is stopped when its notice ends, and the lost GPU time is booked
    truth     the first is stopped, on its checkpoint; the second is not touched

Real: Temporal, both workflows, transports, storage. Simulated: the cluster. Some rows run at the same time.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpubank.adapters.checkpoint import AddressRules, AnnotationHook, CheckpointHooks, ExecHook, FsspecStorage, HttpHook
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.contract import (
    CHECKPOINT_ENDPOINT_ANNOTATION,
    CHECKPOINT_STORAGE_ANNOTATION,
    CHECKPOINT_TRANSPORT_ANNOTATION,
    RETRYABLE_LABEL,
    Side,
    Transport,
)
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import LineState
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanOutcome, LoanPhase, ReclaimPhase
from gpubank.simulation.cluster import SimulatedCluster
from tests.contract.world import JobRequest, job_of
from tests.fakes.bank import FakeBank
from tests.fakes.branches import ManyBanks
from tests.fakes.liar import HttpPod, Liar, Pods
from tests.fakes.plays import Server, status
from tests.workflows.conftest import in_own_namespace
from tests.workflows.lies import ROWS, Row

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

NOTICE = timedelta(seconds=6)
PATIENCE = 150.0
"""Longest wait for one thing, on a machine that does much else."""

LOOK = 0.25
"""Seconds between two looks of a row: each query is work for everybody."""

AT_ONCE = 8
"""Rows that run at the same time: more would only be slower, and nobody's notice be long enough."""


class Stage:
    """What all rows share."""

    def __init__(self, banks: ManyBanks, pods: Pods, clusters: dict[str, SimulatedCluster], folder: Path) -> None:
        self.banks, self.pods, self.clusters, self.folder = banks, pods, clusters, folder
        self.places = asyncio.Semaphore(AT_ONCE)


class Plays:
    """Rows that run: what is asked for, and what will be asked for next, unless another test process has begun it."""

    def __init__(self, stage: Stage, wanted: Sequence[Row], begun: Path) -> None:
        self._stage, self._wanted, self._begun = stage, wanted, begun
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def outcome(self, row: Row) -> None:
        """See how a row ends."""
        place = self._wanted.index(row)
        for each in self._wanted[place : place + AT_ONCE]:
            if each.name not in self._tasks and (self._first(each) or each is row):
                self._tasks[each.name] = asyncio.create_task(play(self._stage, ROWS.index(each), each))
        await self._tasks[row.name]

    def _first(self, row: Row) -> bool:
        """Whether no test process has begun it, which from now on this one has."""
        try:
            (self._begun / str(ROWS.index(row))).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    async def close(self) -> None:
        """End what was begun in vain."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plays(
    request: pytest.FixtureRequest, temporal_address: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Plays]:
    """A stage for the rows that were asked for."""
    asked = {item.callspec.params["row"].name for item in request.session.items if item.module is request.module}  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("lies")
    # Processes of one test run have their folders in a common one; a process that is alone has none to share.
    begun = tmp_path_factory.getbasetemp().parent / "lies-begun" if "PYTEST_XDIST_WORKER" in os.environ else folder
    begun.mkdir(exist_ok=True)
    client = await in_own_namespace(temporal_address)
    branches: dict[str, SimulatedCluster] = {}
    pods = Pods(lambda namespace: branches[namespace])
    brief = timedelta(seconds=2)
    http = HttpHook(rules=AddressRules(loopback=True), timeout=brief)
    hooks = CheckpointHooks(
        {
            Transport.HTTP: http,
            Transport.ANNOTATION: AnnotationHook(pods),
            Transport.EXEC: ExecHook(pods, timeout=brief),
        }
    )
    storage = FsspecStorage()
    banks = ManyBanks(client, hook=hooks, storage=storage, attest=AttestPolicy(check_hashes=True))
    async with banks.running():
        found = Plays(Stage(banks, pods, branches, folder), [row for row in ROWS if row.name in asked], begun)
        yield found
        await found.close()
    await http.close()
    storage.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_claim_counts_for_nothing_until_the_bank_has_seen_it(plays: Plays, row: Row) -> None:
    await plays.outcome(row)


async def play(stage: Stage, number: int, row: Row) -> None:
    """Let one row be recalled, and judge."""
    async with stage.places, AsyncExitStack() as stack:
        kept, given = f"kept{number}", f"given{number}"
        bank = await stage.banks.open(f"pool{number}", {"owner": 16, kept: 0, given: 0})
        bank.look = LOOK
        notice = timedelta(minutes=1) if row.believed else NOTICE
        bank.terms.set_group(kept, grace_period=notice)
        bank.terms.set_group(given, grace_period=notice, on_checkpoint_failure=OnCheckpointFailure.EVICT)
        for group in (kept, given):
            stage.clusters[bank.world.namespace(group)] = bank.world.simulated
        older = await trainer(stage, stack, bank, row, given)
        newer = await trainer(stage, stack, bank, row, kept)
        await bank.own("owner", "serve")
        if row.believed:
            await see_the_first_stopped(bank, newer, older)
        else:
            await see_the_second_stopped(bank, row, newer, older)


class Running:
    """A trainer that runs on borrowed GPUs."""

    def __init__(self, liar: Liar, workload: WorkloadFacts) -> None:
        self.liar, self.before = liar, workload
        self.name = workload.key.job.removeprefix("Job/")

    def untouched(self, facts: PoolFacts) -> bool:
        """Whether it runs as it ran before: nobody stopped it, not even for a moment."""
        now = job_of(facts, self.name)
        same = now is not None and [pod.uid for pod in now.pod_facts] == [pod.uid for pod in self.before.pod_facts]
        return same and now is not None and now.active and now.mark is None and now.placed


async def trainer(stage: Stage, stack: AsyncExitStack, bank: FakeBank, row: Row, group: str) -> Running:
    """Start one trainer of the row and see it run."""
    folder = stage.folder / group / "storage"
    folder.mkdir(parents=True)

    async def uid() -> str:
        workload = await bank.workload(group)
        assert workload is not None
        return workload.pod_facts[0].uid

    liar = Liar(folder, uid, lie=row.lie, say=row.say, late=row.late)
    endpoint = row.endpoint
    if row.transport is not Transport.HTTP:
        namespace = bank.world.namespace(group)
        stage.pods.liars[namespace], stage.pods.shown[namespace] = liar, row.shown
        stage.pods.runs[namespace] = row.run
        endpoint = "python -m gpubank.hook ask"
    elif not endpoint:
        play = row.play
        if row.elsewhere:
            honest = HttpPod(liar)
            away = await stack.enter_async_context(honest)
            play = status("307 Go", b"", f"Location: {away}{row.elsewhere}")
            stack.callback(lambda: _never(honest))
        endpoint = await stack.enter_async_context(HttpPod(liar) if play is None else Server(play))
    await bank.world.submit_job(
        JobRequest(
            group=group,
            name=group,
            side=Side.BORROW,
            labels={RETRYABLE_LABEL: "false"},
            annotations={
                CHECKPOINT_TRANSPORT_ANNOTATION: row.transport,
                CHECKPOINT_ENDPOINT_ANNOTATION: endpoint,
                CHECKPOINT_STORAGE_ANNOTATION: row.storage or folder.as_uri(),
            },
        )
    )
    return Running(liar, await bank.placed(group, PATIENCE))


def _never(server: Server) -> None:
    assert server.calls == 0, "a redirect was followed"


async def see_the_first_stopped(bank: FakeBank, newer: Running, older: Running) -> None:
    """The truth: nobody waits longer than for the checkpoint."""
    parked = await bank.loan_in(newer.before, LoanPhase.PARKED, timeout=PATIENCE)
    await bank.placed("serve", PATIENCE)
    assert parked.checkpoint is not None
    assert parked.checkpoint.step == 7
    stopped = parked.history[-1].ended_at
    assert newer.liar.written_at is not None
    assert stopped is not None
    assert newer.liar.written_at <= parked.checkpoint.verified_at <= stopped
    assert older.untouched(await bank.world.backend.observe(bank.pool))
    assert losses(bank, newer) == []
    assert newer.liar.asked
    assert not older.liar.asked


async def see_the_second_stopped(bank: FakeBank, row: Row, newer: Running, older: Running) -> None:
    """A lie: it is not stopped whom its policy protects, and a loss is a loss."""
    watch = asyncio.create_task(keep_watch(bank, newer))
    try:
        await bank.placed("serve", PATIENCE)
        reclaim = await bank.reclaim_where("owner", lambda state: state.phase is ReclaimPhase.MET, PATIENCE)
        assert newer.untouched(await bank.world.backend.observe(bank.pool)), await bank.story()
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch  # what it saw is an error here
    assert [line.state for line in bank.ledger.rows.values() if line.workload.uid == newer.before.key.uid] == [
        LineState.GRANTED
    ]
    (demand,) = reclaim.demands
    victims = {victim.workload.uid: victim for victim in demand.victims}
    assert {uid: victim.answer for uid, victim in victims.items()} == {
        newer.before.key.uid: LoanOutcome.PROTECTED,
        older.before.key.uid: LoanOutcome.RETURNED,
    }
    assert row.says in victims[newer.before.key.uid].reason
    kept = await bank.loan_in(newer.before, LoanPhase.ACTIVE, timeout=PATIENCE)
    assert (kept.checkpoint, losses(bank, newer)) == (None, [])
    told = [event for event in bank.world.simulated.events.on() if event.reason == "CheckpointFailed"]
    assert [row.says in event.message for event in told] == [True]

    parked = await bank.loan_in(older.before, LoanPhase.PARKED, timeout=PATIENCE)
    assert parked.checkpoint is None
    ((at, loss),) = losses(bank, older)
    assert row.says in str(loss["reason"])
    since, until = datetime.fromisoformat(str(loss["since"])), datetime.fromisoformat(str(loss["until"]))
    assert (since, until) == (older.before.admitted_at, at)
    assert loss["gpu_ms"] == math.floor((until - since) / timedelta(milliseconds=1)) * 8
    assert loss["gpu_hours"] == round(loss["gpu_ms"] / 3_600_000, 4)
    (line,) = [line for line in bank.ledger.rows.values() if line.workload.uid == older.before.key.uid]
    planned = [tx.at for tx in bank.ledger.history for pledge in tx.pledges if pledge.line_id == line.line_id]
    assert until >= planned[0] + NOTICE, "it was stopped before its notice ended"


async def keep_watch(bank: FakeBank, protected: Running) -> None:
    """Fail as soon as somebody touches it."""
    async for _ in bank.world.backend.changes(bank.pool):
        assert protected.untouched(await bank.world.backend.observe(bank.pool)), "a protected job was stopped"


def losses(bank: FakeBank, of: Running) -> list[tuple[datetime, dict[str, Any]]]:
    """Lost GPU time of one trainer in the ledger."""
    return [
        (note.at, dict(note.detail))
        for note in bank.ledger.notes.values()
        if note.action == "work lost" and note.subject == bank.loan(of.before)
    ]
