"""The fail-safe with nothing shortened: worker and controller die, and a watchdog waits a real minute, twice."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.leases import KubernetesLeases
from gpubank.domain.contract import Side
from gpubank.domain.failsafe import heartbeat_lease
from gpubank.domain.loan import LineState
from gpubank.lab.bank import SYSTEM_NAMESPACE, BankProcess
from tests.support.bank import Bank
from tests.support.restricted import watchdog
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

AFTER = timedelta(minutes=1)
PATIENCE = AFTER.total_seconds() + 60


@pytest_asyncio.fixture(loop_scope="session")
async def guard(lab_bank: RunningBank) -> AsyncIterator[BankProcess]:
    """A watchdog that runs, with the rights of its manifest."""
    process = await asyncio.to_thread(watchdog, lab_bank.lab, lab_bank.processes)
    process.start()
    yield process
    await asyncio.to_thread(process.stop)


@pytest_asyncio.fixture(loop_scope="session")
async def bank(lab_bank: RunningBank, tmp_path: Path) -> AsyncIterator[Bank]:
    """A pool of a bank whose processes may be killed, and run again afterwards."""
    await lab_bank.end()  # what earlier tests still clear away must not meet a dead bank
    async with lab_bank.pool(tmp_path) as bank:
        yield bank
        await asyncio.to_thread(lab_bank.processes.start)


async def test_an_owner_is_served_after_a_minute_without_a_bank_and_the_bank_takes_up_what_it_finds(
    lab_bank: RunningBank, bank: Bank, guard: BankProcess
) -> None:
    await bank.agree((8, 8), {"failSafeAfter": "1m"}, vision=8, search=8)
    await bank.own("search", "own")
    await bank.placed("own")
    await bank.borrow("search", "train")
    async with Connection.open(lab_bank.lab.kubeconfig) as connection:
        leases = KubernetesLeases(connection, SYSTEM_NAMESPACE)
        heartbeat = heartbeat_lease(bank.world.cluster, bank.world.pool)

        async def beats() -> datetime | None:
            beat = await leases.read(heartbeat)
            return datetime.fromisoformat(beat.renewed_at) if beat is not None else None

        await bank.until(beats, "the pool has a heartbeat")
        for process in lab_bank.processes.processes:
            process.kill()
        last = await beats()
    assert last is not None

    await bank.own("vision", "serve")

    async def handed_over() -> bool:
        return (await bank.facts()).in_fail_safe

    await bank.until(handed_over, "the watchdog has handed the pool to Kueue", PATIENCE)
    assert datetime.now(UTC) - last >= AFTER, "no sooner than the pool says"
    await bank.placed("serve")
    facts = await bank.facts()
    assert facts.fail_safe_epoch == 1
    assert (await bank.workload("own")).placed, "own work is never stopped"
    assert not (await bank.workload("train")).reserved, "the borrow job made room"
    guard.check()

    await asyncio.to_thread(lab_bank.processes.start)

    async def taken_back() -> bool:
        return not (await bank.facts()).in_fail_safe

    await bank.until(taken_back, "after a minute of heartbeats the bank has its queues back", PATIENCE)
    own = (await bank.facts()).queue(bank.name("vision"), Side.OWN)
    assert own is not None
    assert own.reserved == 8
    await bank.finish("vision", "serve")
    await bank.placed("train")
    await bank.finish("search", "train")
    await bank.finish("search", "own")

    async def returned() -> bool:
        return {line.state for line in await bank.lines(job="train")} == {LineState.RETURNED}

    await bank.until(returned, "the loan is over")
    await bank.settled()
    first, second = await bank.lines(job="train")
    assert first.ended_at is not None
    assert second.granted_at is not None
    assert first.ended_at <= second.granted_at, "nothing is billed twice"
