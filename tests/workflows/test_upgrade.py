"""Builds of the worker that follow each other while loans are recalled, on a real Temporal server.

Every shift happens in the middle of a recall: the borrower has been asked for its checkpoint and has not answered.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowHistory
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Replayer, Worker
from temporalio.workflow import NondeterminismError

from gpubank.adapters.ledger import SqlLedger
from gpubank.cli.checks.temporal import check_temporal
from gpubank.converter import DATA_CONVERTER
from gpubank.domain.base import Message
from gpubank.domain.contract import Side
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.ledger import imbalance
from gpubank.domain.loan import LineState
from gpubank.domain.recall import Ended, LoanPhase, ReclaimPhase
from gpubank.embedded.devserver import find_binary
from gpubank.settings import Settings, TemporalSettings
from tests.fakes.bank import FakeBank
from tests.fakes.trainer import Mood
from tests.workflows import messages
from tests.workflows.conftest import settings_of
from tests.workflows.next_loan import REASON, HastyLoan, NextLoan
from tests.workflows.test_replay import history
from workers import wiring
from workers.telemetry import Telemetry
from workers.wiring import WORKFLOWS, make_workers, sandbox
from workflows.loan import LoanWorkflow

DEPLOYMENT: Final = "gpubank"
UNVERSIONED: Final = ""


def version(build: str) -> WorkerDeploymentVersion | None:
    return WorkerDeploymentVersion(DEPLOYMENT, build) if build else None


@dataclass
class Builds:
    """Workers of several builds for one bank."""

    bank: FakeBank
    running: dict[str, tuple[tuple[Worker, ...], list[asyncio.Task[None]]]] = field(default_factory=dict)

    @property
    def temporal(self) -> TemporalSettings:
        return settings_of(self.bank.client)

    async def start(self, build: str, workflows: tuple[type, ...] = WORKFLOWS) -> None:
        """Start workers of a build."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wiring, "WORKFLOWS", workflows)
            bank = self.bank
            workers = make_workers(bank.client.temporal, bank.cluster, bank.ports, bank.client, version(build))
        self.running[build] = workers, [asyncio.create_task(worker.run()) for worker in workers]

    async def stop(self, build: str) -> None:
        """End a build's workers as a rollout does: what is in hand is let finish."""
        workers, runs = self.running.pop(build)
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        await asyncio.gather(*runs)

    async def make_current(self, build: str) -> None:
        """Give a build the work, by the command that the how-to names; the server first has to have seen it poll."""
        target = ["--build-id", build] if build else ["--unversioned"]
        command = ["set-current-version", "--deployment-name", DEPLOYMENT, *target]
        await self.bank.until(lambda: self._told(command), f"build {build or 'none'} is current")

    async def _told(self, command: list[str]) -> bool:
        """Whether Temporal takes a command about worker deployments."""
        process = await asyncio.create_subprocess_exec(
            find_binary(), "worker", "deployment", *command, "--yes",
            "--address", self.temporal.address, "--namespace", self.temporal.namespace,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await process.wait() == 0

    async def ramp(self, build: str, percent: int) -> None:
        """Give a build a part of the work, or none of it any more, as the how-to says."""
        target = ["--build-id", build, "--percentage", str(percent)] if percent else ["--build-id", build, "--delete"]
        command = ["set-ramping-version", "--deployment-name", DEPLOYMENT, *target]
        await self.bank.until(lambda: self._told(command), f"{percent} % goes to build {build}")

    async def shift(self, before: str, after: str, workflows: tuple[type, ...] = WORKFLOWS) -> None:
        """Have one build follow another."""
        await self.start(after, workflows)
        await self.make_current(after)
        await self.stop(before)

    async def end(self) -> None:
        for build in list(self.running):
            await self.stop(build)


@asynccontextmanager
async def builds_of(bank: FakeBank, first: str, workflows: tuple[type, ...] = WORKFLOWS) -> AsyncIterator[Builds]:
    """Replace the bank's workers by those of a build."""
    await bank.stop_workers()
    builds = Builds(bank)
    await builds.start(first, workflows)
    if first:
        await builds.make_current(first)
    try:
        yield builds
    finally:
        await builds.end()


async def mid_recall(bank: FakeBank, train: WorkloadFacts, own: str) -> None:
    """Have the lender want its GPUs back, and the borrower say nothing yet."""
    bank.trainers.mood = Mood.SILENT
    await bank.own("serving", own)
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)


async def recall_ends(bank: FakeBank, train: WorkloadFacts, own: str) -> None:
    """See the recall through to its end, and the borrower back."""
    bank.trainers.mood = Mood.SAVES
    await bank.placed(own)
    await bank.loan_in(train, LoanPhase.PARKED)
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.MET)
    await bank.world.finish_job("serving", own)
    await bank.placed("train")
    await bank.loan_in(train, LoanPhase.ACTIVE)


async def all_returned(bank: FakeBank, train: WorkloadFacts, folder: Path) -> None:
    """See the loan end, everything given back, and the books hold when a real ledger is told all of it."""
    await bank.world.finish_job("research", "train")
    await bank.loan_in(train, LoanPhase.CLOSED)
    await bank.until(bank.nothing_open, "no line is open")
    assert {line.state for line in bank.ledger.rows.values()} <= {LineState.RETURNED, LineState.WITHDRAWN}

    async def as_guaranteed() -> bool:
        facts = await bank.world.backend.observe(bank.pool)
        own = {queue.group: queue.nominal for queue in facts.queues if queue.kind is Side.OWN}
        return own == {"research": 8, "serving": 8}

    await bank.until(as_guaranteed, "every guarantee is back in its own queue")
    async with await SqlLedger.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        for transaction in bank.ledger.history:
            await ledger.commit(transaction)
        await ledger.post(until=datetime.now(UTC))
        report = await ledger.verify()
        assert report.ok, report.findings
        postings = await ledger.postings()
        assert postings
        assert imbalance(postings) == 0


async def last_build(bank: FakeBank, workflow_id: str) -> tuple[str, str]:
    """Return the version that a workflow last ran on."""
    described = await bank.client.temporal.get_workflow_handle(workflow_id).describe()
    info = described.raw_description.workflow_execution_info.versioning_info
    return info.deployment_version.deployment_name, info.deployment_version.build_id


async def history_of(bank: FakeBank, train: WorkloadFacts) -> WorkflowHistory:
    return await bank.client.temporal.get_workflow_handle(bank.loan(train)).fetch_history()


async def trouble(bank: FakeBank) -> int:
    """How many workflow tasks have failed for other reasons than a worker that went away."""
    failed = 0
    async for found in bank.client.temporal.list_workflows():
        handle = bank.client.temporal.get_workflow_handle(found.id, run_id=found.run_id)
        events = (await handle.fetch_history()).events
        failed += sum(event.HasField("workflow_task_failed_event_attributes") for event in events)
    return failed


@pytest.mark.timeout(300)
async def test_recalls_whose_worker_is_replaced_in_their_middle_end_as_if_nothing_had_happened(
    bank: FakeBank, tmp_path: Path
) -> None:
    """From unversioned to versioned, forward, back again, and out of versions: four recalls of one loan."""
    async with builds_of(bank, UNVERSIONED) as builds:
        train = await bank.borrow("research", "train", 16, hook=True, pods=2)
        for number, (before, after) in enumerate(pairwise([UNVERSIONED, "a", "b", "a", UNVERSIONED])):
            own = f"serve-{number}"
            await mid_recall(bank, train, own)
            await builds.shift(before, after)
            await recall_ends(bank, train, own)
            where = (DEPLOYMENT, after) if after else ("", "")
            assert await last_build(bank, bank.loan(train)) == where
            assert await last_build(bank, bank.reclaim("serving")) == where
        state = await bank.client.loan_state(bank.loan(train))
        assert [(term.term, term.gpus) for term in state.history] == [(1, 16), (2, 16), (3, 16), (4, 16), (5, 16)]
        assert len(bank.trainers.asked) == 4  # once per recall, whoever asked
        assert await trouble(bank) == 0
        await all_returned(bank, train, tmp_path)


def next_build(loan: type) -> tuple[type, ...]:
    """Return the workflows of a build with another Loan."""
    return tuple(loan if each is LoanWorkflow else each for each in WORKFLOWS)


def replayer(loan: type) -> Replayer:
    return Replayer(workflows=next_build(loan), data_converter=DATA_CONVERTER, workflow_runner=sandbox())


@pytest.mark.timeout(300)
async def test_a_guarded_change_reaches_a_loan_that_runs_and_one_that_used_it_waits_out_a_rollback(
    bank: FakeBank, tmp_path: Path
) -> None:
    async with builds_of(bank, "old") as builds:
        train = await bank.borrow("research", "train", 16, hook=True, pods=2)
        await mid_recall(bank, train, "serve")
        await builds.shift("old", "new", next_build(NextLoan))
        unused = await history_of(bank, train)
        await recall_ends(bank, train, "serve")
        assert REASON in bank.reasons("train")
        used = await history_of(bank, train)
        assert await trouble(bank) == 0
        await builds.shift("new", "old")
        await bank.client.temporal.get_workflow_handle(bank.loan(train)).signal("ended", Ended())

        async def waits() -> bool:
            return await trouble(bank) == 1

        await bank.until(waits, "the build before cannot go on with it")
        assert {line.state for line in await bank.lines()} == {LineState.GRANTED}  # and nothing is lost by it
        await builds.shift("old", "new", next_build(NextLoan))
        await all_returned(bank, train, tmp_path)
    for loan in (NextLoan, LoanWorkflow):
        await replayer(loan).replay_workflow(unused)  # nothing of the change is in it yet: either build goes on
    await replayer(NextLoan).replay_workflow(used)
    with pytest.raises(NondeterminismError):
        await replayer(LoanWorkflow).replay_workflow(used)


async def test_a_loan_that_was_resumed_before_a_guarded_change_goes_on_as_it_was_and_an_unguarded_one_breaks_it() -> (
    None
):
    before = history("loan-returned_and_resumed")
    await replayer(NextLoan).replay_workflow(before)
    with pytest.raises(NondeterminismError):
        await replayer(HastyLoan).replay_workflow(before)


@pytest.mark.timeout(120)
async def test_a_versioned_worker_is_ready_and_well_in_the_doctors_eyes_only_while_its_build_is_current(
    bank: FakeBank,
) -> None:
    async with builds_of(bank, "a") as builds:
        telemetry = Telemetry()
        _, is_current = telemetry.probes((), version("b")).ready
        assert "not known yet" in await is_current()
        following = asyncio.create_task(telemetry.follow(bank.client, version("b")))
        reached = {f"temporal.{name}": getattr(builds.temporal, name) for name in ("address", "namespace")}
        settings = Settings.load({**reached, "cluster.name": bank.cluster})

        async def ill() -> str:
            checks = await check_temporal(settings)
            return " ".join(check.message for check in checks if check.level != "ok")

        try:
            await builds.start("b")

            async def waits() -> bool:
                return await is_current() == "build b of worker deployment gpubank is not current"

            async def seen() -> bool:
                return (await ill()).count("workers of gpubank, build b are given nothing") == 2

            await bank.until(waits, "b is not ready")
            await builds.ramp("b", 50)
            assert await waits()  # a part of the work is not all of it: a is still needed

            async def well() -> bool:  # queues hear of it later; the bank's own workers, which have ended, stay listed
                return "build" not in await ill()

            await bank.until(well, "the doctor sees that b is given a part")
            await builds.ramp("b", 0)
            await bank.until(seen, "the doctor sees that b is given nothing")
            await builds.make_current("b")

            async def ready() -> bool:
                return await is_current() == ""

            await bank.until(ready, "b is ready")
            await builds.stop("b")  # a, which is still there, is given nothing: work waits for b
            assert await bank.client.current_build(DEPLOYMENT) == "b"
            assert await bank.client.current_build("nobody") == ""
        finally:
            following.cancel()
            await telemetry.close()


# ---- messages


async def test_a_message_of_another_build_is_taken_by_a_loan_that_runs(bank: FakeBank) -> None:
    """One with a field that nobody here knows, and one without a field that has been added since."""
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    before = await bank.loan_in(train, LoanPhase.ACTIVE)
    handle = bank.client.temporal.get_workflow_handle(bank.loan(train))
    grant: dict[str, Any] = {"term": 2, "gpus": 16, "lenders": ["serving"], "color": "green"}
    await handle.signal("granted", {**grant, "at": datetime.now(UTC).isoformat()})

    async def newer() -> bool:
        return (await bank.client.loan_state(bank.loan(train))).term == 2

    await bank.until(newer, "the message of a newer build is taken")
    await handle.signal("granted", {name: grant[name] for name in ("gpus", "lenders")} | {"term": 3})

    async def older() -> bool:
        return (await bank.client.loan_state(bank.loan(train))).term == 3

    await bank.until(older, "the message of an older build is taken")
    assert before.term == 1
    assert await trouble(bank) == 0


def test_every_message_ignores_what_it_does_not_know() -> None:
    strict = {messages.name(each) for each in messages.ALL if each.model_config.get("extra") != "ignore"}
    assert strict == set(), "a model of the API, which refuses what it does not know, does not travel"
    assert {"recall.RecallOrder", "recall.Granted", "steps.LoanStep", "loan.WorkloadKey"} <= messages.required().keys()


def test_no_message_asks_for_a_field_that_older_builds_do_not_send() -> None:
    baseline: dict[str, list[str]] = json.loads(messages.BASELINE.read_text())
    now = messages.required()
    asked = {name: sorted(set(now[name]) - set(baseline[name])) for name in now.keys() & baseline.keys()}
    more = {name: fields for name, fields in asked.items() if fields}
    assert not more, (
        f"{more} must have defaults, for builds before this one do not send them; where no build of a released version"
        " runs anywhere, record anew with `python -m tests.workflows.record messages`"
    )
    assert baseline.keys() == now.keys(), "messages came or went: `python -m tests.workflows.record messages`"


def test_a_message_from_an_older_build_has_defaults_for_what_came_since() -> None:
    class Old(Message):
        gpus: int

    class New(Old):
        reason: str = ""

    convert = DATA_CONVERTER.payload_converter
    (from_old,) = convert.from_payloads(convert.to_payloads([Old(gpus=8)]), [New])
    assert from_old == New(gpus=8, reason="")
    (from_new,) = convert.from_payloads(convert.to_payloads([New(gpus=8, reason="x")]), [Old])
    assert from_new == Old(gpus=8)
