"""Own work that makes room for more important work of its group, on the real control plane with Kueue."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase
from tests.contract.world import job_of
from tests.support.bank import Bank
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def bank(lab_bank: RunningBank, tmp_path: Path) -> AsyncIterator[Bank]:
    async with lab_bank.pool(tmp_path) as bank:
        yield bank


def admitted(name: str, facts: PoolFacts) -> bool:
    """Whether a job holds quota."""
    workload = job_of(facts, name)
    return workload is not None and workload.reserved


async def test_less_important_work_is_saved_and_stopped_for_the_important_job_and_comes_back(bank: Bank) -> None:
    policy = {"guaranteed": 8, "reclaimPolicy": {"gracePeriod": "5m", "withinGroup": "LowerPriority"}}
    await bank.agree((8,), vision=policy)
    await bank.own("vision", "low", trains=bank.gate(opened=True))
    await bank.placed("low")
    await bank.answers("low")

    async with bank.forbidden(lambda facts: admitted("sister", facts), "sister came into the victim's place"):
        await bank.own("vision", "sister", trains=bank.gate())  # as important as the victim, and would fit its place
        await bank.own("vision", "high", priority=100)
        await bank.placed("high")
        parked = await bank.loan_in("low", LoanPhase.PARKED)
        assert parked.own
        assert parked.checkpoint is not None
        await bank.demand_met("vision")
        await bank.settled()
    await bank.drop("vision", "sister")

    await bank.finish("vision", "high")
    await bank.placed("low")
    await bank.loan_in("low", LoanPhase.CLOSED)
    lines = await bank.lines()
    assert [(line.side, line.state, line.gpus) for line in lines] == [(Side.OWN, LineState.RETURNED, 8)]
    await bank.ledger.post(until=datetime.now(UTC))
    assert not await bank.ledger.postings(cluster=bank.world.cluster, pool=bank.world.pool)
    await bank.settled()


async def test_a_policy_that_says_never_in_the_middle_leaves_everybody_where_they_are(bank: Bank) -> None:
    policy = {"guaranteed": 8, "reclaimPolicy": {"gracePeriod": "5m", "withinGroup": "LowerPriority"}}
    await bank.agree((8,), vision=policy)
    await bank.own("vision", "low", trains=bank.gate())
    before = await bank.placed("low")
    await bank.answers("low")
    await bank.own("vision", "high", priority=100)
    await bank.loan_in("low", LoanPhase.CHECKPOINTING)
    await bank.edit("vision", reclaimPolicy={"gracePeriod": "5m"})
    await bank.loan_in("low", LoanPhase.CLOSED)

    async def let_go() -> bool:
        books = await bank.books()
        return not books.lines and not books.demands

    await bank.until(let_go, "nothing is open any more")
    running = await bank.workload("low")
    assert (running.placed, running.mark, running.admitted_at) == (True, None, before.admitted_at)
    await bank.settled()


async def test_worker_and_controller_die_in_the_middle_and_nobody_comes_in_between(
    bank: Bank, lab_bank: RunningBank
) -> None:
    policy = {"guaranteed": 8, "reclaimPolicy": {"gracePeriod": "5m", "withinGroup": "LowerPriority"}}
    await bank.agree((8,), vision=policy)
    gate = bank.gate()
    await bank.own("vision", "low", trains=gate)
    await bank.placed("low")
    await bank.answers("low")
    async with bank.forbidden(lambda facts: admitted("sister", facts), "sister came into the victim's place"):
        await bank.own("vision", "sister", trains=gate)
        await bank.own("vision", "high", priority=100)
        await bank.loan_in("low", LoanPhase.CHECKPOINTING)
        processes = lab_bank.processes
        await asyncio.to_thread(processes.worker.kill)
        await asyncio.to_thread(processes.controller.kill)
        gate.touch()
        await asyncio.to_thread(processes.start)
        await bank.placed("high")
        await bank.loan_in("low", LoanPhase.PARKED)
        await bank.demand_met("vision")
        await bank.settled()
    assert {line.side for line in await bank.lines()} == {Side.OWN}
