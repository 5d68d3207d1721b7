"""Loans and Reclaims that an operator resets to their first workflow task: they find out where they stand.

A reset run gets every signal of the old one again (orders of long ago included), and none of its state.
"""

import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import LineState
from gpubank.domain.recall import Decision, LoanPhase, ReclaimPhase
from tests.fakes.bank import FakeBank
from tests.fakes.branches import ManyBanks
from tests.fakes.trainer import Mood
from tests.fakes.witness import Witness
from tests.workflows.races import Race

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module")]


async def reset(bank: FakeBank, workflow_id: str) -> None:
    """Reset a workflow to its first workflow task, and see the new run go."""
    temporal = bank.client.temporal
    handle = temporal.get_workflow_handle(workflow_id)
    before = (await handle.describe()).run_id
    first = next(
        event.event_id
        for event in (await handle.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    )
    answer = await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=before),
            reason="an operator resets it",
            workflow_task_finish_event_id=first,
            request_id=str(uuid.uuid4()),
        )
    )
    assert answer.run_id != before
    old = await temporal.get_workflow_handle(workflow_id, run_id=before).describe()
    assert old.status is not WorkflowExecutionStatus.RUNNING


async def runs(bank: FakeBank, workflow_id: str) -> bool:
    """Whether a workflow runs."""
    description = await bank.client.temporal.get_workflow_handle(workflow_id).describe()
    return description.status is WorkflowExecutionStatus.RUNNING


async def looked(bank: FakeBank, train: WorkloadFacts, *, orders: bool = False) -> None:
    """See the new run of a Loan having found out where it stands, and done with what it was told long ago."""

    async def knows() -> bool:
        state = await bank.client.loan_state(bank.loan(train))
        return bool(state.lenders or state.phase is LoanPhase.PARKED) and bool(state.orders) is orders

    await bank.until(knows, "the new run knows where it stands")


class Scene:
    """A race, a borrower of 8 GPUs, and a witness."""

    def __init__(self, race: Race, witness: Witness) -> None:
        self.race, self.bank, self.witness = race, race.bank, witness

    @classmethod
    async def open(cls, banks: ManyBanks, patch: pytest.MonkeyPatch) -> "Scene":
        """Open a pool; moods of earlier ones are forgotten."""
        banks.trainers.moods.clear()
        race = await Race.open(banks)
        return cls(race, Witness(race.bank, patch))

    async def recalled(self) -> WorkloadFacts:
        """Have a trainer asked for a checkpoint that takes its time."""
        train = await self.race.trains("train", mood=Mood.SILENT)
        await self.race.wants(gpus=16)
        await self.race.asked(train)
        return train

    async def goes_on(self, train: WorkloadFacts, folder: Path) -> None:
        """Let the trainer save: its owner is served, and it is stopped once and comes back once."""
        self.race.mood("train", Mood.SAVES)
        await self.race.served()
        await self.race.ended(ReclaimPhase.MET)
        await self.bank.loan_in(train, LoanPhase.PARKED)
        await self.comes_back(train, folder)

    async def comes_back(self, train: WorkloadFacts, folder: Path) -> None:
        """Let the owner's job end: the borrower was stopped once, comes back and runs on."""
        await self.bank.world.finish_job("serving", self.race.job("serve"))
        await self.bank.placed(self.race.job("train"))
        await self.bank.loan_in(train, LoanPhase.ACTIVE)
        await self.witness.at_rest(folder)
        self.witness.stopped(train)
        assert [line.state for line in await self.race.lines(train)] == [LineState.GRANTED]

    async def back(self, train: WorkloadFacts) -> WorkloadFacts:
        """Have a borrower stopped for its owner, and back for its second term."""
        await self.race.wants(gpus=16)
        await self.race.served()
        await self.bank.loan_in(train, LoanPhase.PARKED)
        await self.bank.world.finish_job("serving", self.race.job("serve"))
        again = await self.bank.placed(self.race.job("train"))
        await self.bank.loan_in(train, LoanPhase.ACTIVE)
        return again

    async def reset_in_vain(self, train: WorkloadFacts, again: WorkloadFacts, folder: Path) -> None:
        """Reset the Loan of a borrower that is back: that it was stopped once, before, is all that happened to it."""
        await reset(self.bank, self.bank.loan(train))
        await looked(self.bank, train)
        await self.runs_on(train, again, folder)

    async def runs_on(self, train: WorkloadFacts, again: WorkloadFacts, folder: Path) -> None:
        """See a borrower that is back as it came back: stopped once, before, and with the same pods."""
        await self.witness.at_rest(folder)
        self.witness.stopped(train)
        now = await self.bank.workload(self.race.job("train"))
        assert now is not None
        assert (now.active, now.mark) == (True, again.mark)
        assert [pod.uid for pod in now.pod_facts] == [pod.uid for pod in again.pod_facts]


async def test_a_loan_that_is_reset_while_it_runs_knows_its_term(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.race.trains("train")
    await scene.bank.loan_in(train, LoanPhase.ACTIVE)
    await reset(scene.bank, scene.bank.loan(train))
    await looked(scene.bank, train)
    state = await scene.bank.loan_in(train, LoanPhase.ACTIVE)
    assert [(term.term, term.gpus, term.lenders) for term in state.history] == [(1, 8, ("serving",))]
    await scene.race.runs_on("train", train)
    await scene.race.wants(gpus=16)
    await scene.goes_on(train, tmp_path)


async def test_a_loan_that_is_reset_while_its_trainer_saves_asks_again_and_stops_it_once(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.recalled()
    await reset(scene.bank, scene.bank.loan(train))
    await looked(scene.bank, train, orders=True)
    await scene.race.asked(train)
    await scene.goes_on(train, tmp_path)


async def test_a_loan_that_is_reset_while_its_pods_end_sees_them_off_and_does_not_stop_them_again(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.race.trains("train")
    scene.race.hold(train)
    await scene.race.wants(gpus=16)
    await scene.bank.loan_in(train, LoanPhase.STOPPING)
    await reset(scene.bank, scene.bank.loan(train))
    await scene.bank.loan_in(train, LoanPhase.STOPPING)
    scene.race.hold(train, False)
    await scene.goes_on(train, tmp_path)


async def test_a_parked_loan_that_is_reset_still_brings_its_job_back(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.race.trains("train")
    await scene.race.wants(gpus=16)
    await scene.race.served()
    await scene.bank.loan_in(train, LoanPhase.PARKED)
    await reset(scene.bank, scene.bank.loan(train))
    await looked(scene.bank, train)
    await scene.bank.loan_in(train, LoanPhase.PARKED)
    await scene.comes_back(train, tmp_path)


@pytest.mark.parametrize("saves", [True, False], ids=["trainer", "batch"])
async def test_a_loan_that_is_reset_after_its_comeback_is_not_stopped_for_a_demand_of_long_ago(
    saves: bool, banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await (scene.race.trains("train") if saves else scene.race.batch("train"))
    again = await scene.back(train)
    await scene.reset_in_vain(train, again, tmp_path)


async def test_a_loan_that_is_reset_after_its_comeback_does_not_repeat_the_return_that_somebody_asked_for(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    race, bank = scene.race, scene.bank
    train = await race.trains("train")
    await bank.client.return_now(bank.loan(train), Decision(identity="cho"))
    await bank.loan_in(train, LoanPhase.PARKED)
    again = await bank.placed(race.job("train"))
    await bank.loan_in(train, LoanPhase.ACTIVE)
    await scene.reset_in_vain(train, again, tmp_path)


async def test_a_reclaim_that_is_reset_in_its_recall_stops_its_victim_once_and_serves_its_owner(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.recalled()
    await reset(scene.bank, scene.bank.reclaim("serving"))
    await scene.race.ended(ReclaimPhase.RECALLING)
    await scene.race.asked(train)
    await scene.goes_on(train, tmp_path)
    assert (await scene.bank.client.loan_state(scene.bank.loan(train))).recalls == 1


async def test_a_reclaim_that_is_reset_while_its_victims_pods_end_waits_for_them_and_serves_its_owner(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    monkeypatch.setattr("workflows.reclaim_demand.SEND_AGAIN", timedelta(seconds=1))
    train = await scene.race.trains("train")
    scene.race.hold(train)
    await scene.race.wants(gpus=16)
    await scene.bank.loan_in(train, LoanPhase.STOPPING)
    await reset(scene.bank, scene.bank.reclaim("serving"))
    await scene.race.ended(ReclaimPhase.STOPPING, ReclaimPhase.RECALLING)
    scene.race.hold(train, False)
    await scene.goes_on(train, tmp_path)


async def test_loan_and_reclaim_that_are_reset_together_stop_the_victim_once(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.recalled()
    await reset(scene.bank, scene.bank.reclaim("serving"))
    await reset(scene.bank, scene.bank.loan(train))
    await scene.race.ended(ReclaimPhase.RECALLING)
    await scene.race.asked(train)
    await scene.goes_on(train, tmp_path)


async def test_a_reclaim_that_is_reset_after_its_end_finds_nothing_to_do(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.race.trains("train")
    again = await scene.back(train)
    await reset(scene.bank, scene.bank.reclaim("serving"))

    async def ended() -> bool:
        return not await runs(scene.bank, scene.bank.reclaim("serving"))

    await scene.bank.until(ended, "it ends again")
    state = await scene.bank.client.reclaim_state(scene.bank.reclaim("serving"))
    assert state.phase is ReclaimPhase.CANCELLED
    assert {demand.reason for demand in state.demands} <= {"it had ended already", "nobody waits any more"}
    await scene.runs_on(train, again, tmp_path)
