"""Sweeps through Temporal: what is missing is started, what is strange is reported, and people are told once."""

import asyncio
from datetime import timedelta

from temporalio.client import ScheduleActionExecutionStartWorkflow, ScheduleOverlapPolicy, WorkflowExecutionStatus

from activities.interfaces import BANK_QUEUE
from gpubank.domain.contract import Side
from gpubank.domain.facts import Mark, WorkloadFacts
from gpubank.domain.recall import LoanPhase, ReclaimPhase
from gpubank.domain.sweep import SweepInput, SweepKind, SweepReport, sweep_schedule
from tests.contract.world import JobRequest
from tests.fakes.bank import POOL, FakeBank
from tests.fakes.trainer import Mood
from workflows.sweep import SweepWorkflow

SETTLE = timedelta(milliseconds=300)


async def swept(bank: FakeBank, *, old: bool = True) -> dict[SweepKind, str]:
    """Sweep as if half an hour had passed, and return what was found."""
    if old:
        await age(bank, timedelta(minutes=30))
    number = len(bank.ledger.notes) + sum(1 for _ in bank.ledger.history)
    report: SweepReport = await bank.client.temporal.execute_workflow(
        SweepWorkflow.run,
        SweepInput(cluster="local", settle=SETTLE),
        id=f"sweep/local-{number}-{asyncio.get_running_loop().time()}",
        task_queue=BANK_QUEUE,
    )
    assert (report.pools, report.unswept) == (1, ())
    return {finding.kind: finding.subject for finding in report.findings if finding.kind is not HEART}


HEART = SweepKind.HEARTBEAT_MISSING


async def age(bank: FakeBank, by: timedelta) -> None:
    """Make everything in the books so much older."""
    books = await bank.ledger.books("local", POOL)
    lines = tuple(line.model_copy(update={"moved_at": line.moved_at - by}) for line in books.lines)
    demands = tuple(
        demand.model_copy(
            update={"opened_at": demand.opened_at - by, "moved_at": (demand.moved_at or demand.opened_at) - by}
        )
        for demand in books.demands
    )
    bank.ledger._books["local", POOL] = books.model_copy(update={"lines": lines, "demands": demands})


async def quiet(bank: FakeBank) -> None:
    """Have the controller do nothing any more, so that only the sweep can mend."""
    bank.loop.turn = _nothing  # type: ignore[method-assign]
    await asyncio.sleep(0.3)


async def _nothing() -> timedelta:
    return timedelta(seconds=1)


async def test_a_healthy_pool_has_no_findings(bank: FakeBank) -> None:
    await bank.borrow("research", "train", 16, pods=2)
    await bank.client.start_heartbeat("local", POOL)
    assert await swept(bank) == {}


async def test_a_terminated_loan_is_started_and_finds_out_where_it_stood(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 16, pods=2)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    await quiet(bank)
    handle = bank.client.temporal.get_workflow_handle(bank.loan(train))
    await handle.terminate("somebody was careless")
    await asyncio.sleep(1.5)  # lists lag behind
    assert await swept(bank) == {SweepKind.LOAN_MISSING: train.key.uid}

    async def knows() -> bool:
        state = await bank.client.loan_state(bank.loan(train))
        return state.phase is LoanPhase.ACTIVE and [term.term for term in state.history] == [1]

    await bank.until(knows, "the new run knows its term")
    assert await swept(bank) == {}


async def parked(bank: FakeBank) -> WorkloadFacts:
    """Have a job recalled and stopped for an owner."""
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    await bank.loan_in(train, LoanPhase.PARKED)
    return train


async def test_an_orphan_is_given_a_loan_that_brings_it_back(bank: FakeBank) -> None:
    train = await parked(bank)
    handle = bank.client.temporal.get_workflow_handle(bank.loan(train))
    await handle.terminate("its history had expired")
    await asyncio.sleep(1.5)
    simulated = bank.world.simulated._jobs.workload(train.key.uid)
    assert simulated is not None
    simulated.waiting_since -= timedelta(minutes=30)
    assert await swept(bank) == {SweepKind.ORPHAN_PARKED: train.key.uid}
    await bank.loan_in(train, LoanPhase.PARKED)
    await bank.world.finish_job("serving", "serve")
    await bank.placed("train")


async def test_an_orphan_of_another_bank_is_reported_to_its_owner_once(bank: FakeBank) -> None:
    await quiet(bank)
    await bank.world.submit_job(JobRequest("research", "theirs", side=Side.BORROW))
    theirs = await bank.until(lambda: bank.workload("theirs"), "it is there")
    mark = Mark(loan="loan/elsewhere/1", term=1, step="stop")
    await bank.world.backend.stop(POOL, theirs.key, mark, seen=theirs.version)
    simulated = bank.world.simulated._jobs.workload(theirs.key.uid)
    assert simulated is not None
    simulated.waiting_since -= timedelta(minutes=30)
    for _ in range(2):
        assert await swept(bank) == {SweepKind.ORPHAN_PARKED: theirs.key.uid}
    events = [e for e in bank.world.simulated.events.on() if e.reason == SweepKind.ORPHAN_PARKED]
    assert len(events) == 1
    assert bank.ledger.actions().count(SweepKind.ORPHAN_PARKED) == 1


async def test_a_terminated_reclaim_is_started_and_serves_its_demand(bank: FakeBank) -> None:
    bank.trainers.mood = Mood.SILENT
    await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.RECALLING)
    await quiet(bank)
    await bank.client.temporal.get_workflow_handle(bank.reclaim("serving")).terminate("somebody was careless")
    assert await swept(bank) == {SweepKind.RECLAIM_MISSING: "serving"}
    bank.trainers.mood = Mood.SAVES
    await bank.placed("serve")


async def test_a_loan_whose_job_is_gone_is_told(bank: FakeBank) -> None:
    train = await bank.borrow("research", "train", 8)
    await bank.loan_in(train, LoanPhase.ACTIVE)
    await quiet(bank)
    await bank.world.delete_job("research", "train")
    bank.ledger._books["local", POOL] = (await bank.ledger.books("local", POOL)).model_copy(update={"lines": ()})

    async def gone() -> bool:
        return await bank.workload("train") is None

    await bank.until(gone, "it is gone")
    assert (await swept(bank))[SweepKind.LOAN_LEFT_OVER] == bank.loan(train)
    await bank.loan_in(train, LoanPhase.CLOSED)


async def test_a_quota_edited_by_hand_is_reported_and_left_to_the_controller(bank: FakeBank) -> None:
    await bank.borrow("research", "train", 16, pods=2)
    turn = bank.loop.turn
    await quiet(bank)
    bank.world.simulated.edit_quota(f"serving.{POOL}.borrow", 5)
    assert await swept(bank) == {SweepKind.QUOTA_EDITED: f"serving.{POOL}.borrow"}
    assert await bank.world.quota("serving", Side.BORROW) == 5
    bank.loop.turn = turn  # type: ignore[method-assign]
    bank.loop.poke()

    async def repaired() -> bool:
        return await bank.world.quota("serving", Side.BORROW) == 0

    await bank.until(repaired, "the controller repairs it")


async def test_an_interrupted_step_is_reported(bank: FakeBank) -> None:
    await bank.borrow("research", "train", 16, pods=2)
    await quiet(bank)
    await bank.world.finish_job("research", "train")
    turns = bank.ledger._books["local", POOL]
    closing = tuple(line.model_copy(update={"state": "Closing"}) for line in turns.lines)
    bank.ledger._books["local", POOL] = turns.model_copy(update={"lines": closing})
    found = await swept(bank)
    assert found[SweepKind.STEP_INTERRUPTED] in {line.line_id for line in closing}


async def test_work_without_a_loan_is_reported(bank: FakeBank) -> None:
    await quiet(bank)
    bank.world.simulated.edit_quota(f"research.{POOL}.borrow", 8)
    await bank.world.submit_job(JobRequest("research", "stranger", side=Side.BORROW))
    stranger = await bank.placed("stranger")
    simulated = bank.world.simulated._jobs.workload(stranger.key.uid)
    assert simulated is not None
    assert simulated.admitted_at is not None
    simulated.admitted_at -= timedelta(minutes=30)
    assert (await swept(bank))[SweepKind.UNKNOWN_WORK] == stranger.key.uid


async def test_a_pool_without_a_heartbeat_is_given_one(bank: FakeBank) -> None:
    assert not await bank.client.heartbeat_runs("local", POOL)
    await swept(bank)
    assert await bank.client.heartbeat_runs("local", POOL)


async def test_the_schedule_skips_what_overlaps_and_does_not_catch_up_for_long(bank: FakeBank) -> None:
    await bank.client.start_sweeps("local")
    await bank.client.start_sweeps("local", every=timedelta(hours=1))  # one is enough
    handle = bank.client.temporal.get_schedule_handle(sweep_schedule("local"))
    schedule = (await handle.describe()).schedule
    assert schedule.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert schedule.policy.catchup_window == timedelta(minutes=1)
    assert [interval.every for interval in schedule.spec.intervals] == [timedelta(minutes=5)]


async def test_a_sweep_of_the_schedule_runs_in_the_banks_queue_and_reports_what_is_wrong(bank: FakeBank) -> None:
    await bank.borrow("research", "train", 16, pods=2)
    await quiet(bank)
    bank.world.simulated.edit_quota(f"serving.{POOL}.borrow", 5)
    await bank.client.start_sweeps("local")
    schedule = bank.client.temporal.get_schedule_handle(sweep_schedule("local"))
    await bank.client.sweep_now("local")

    async def started() -> ScheduleActionExecutionStartWorkflow | None:
        actions = [result.action for result in (await schedule.describe()).info.recent_actions]
        return next((each for each in actions if isinstance(each, ScheduleActionExecutionStartWorkflow)), None)

    action = await bank.until(started, "a sweep was started")
    handle = bank.client.temporal.get_workflow_handle_for(SweepWorkflow.run, action.workflow_id)
    async with asyncio.timeout(60):
        report = await handle.result()
    sweep = await handle.describe()
    assert (sweep.status, sweep.task_queue) == (WorkflowExecutionStatus.COMPLETED, BANK_QUEUE)
    assert sweep.run_id == action.first_execution_run_id
    assert sweep.id.startswith(sweep_schedule("local"))
    assert (report.pools, report.unswept) == (1, ())
    found = {finding.kind: finding for finding in report.findings}
    assert found[SweepKind.QUOTA_EDITED].subject == f"serving.{POOL}.borrow"
    assert SweepKind.QUOTA_EDITED in bank.ledger.actions()
