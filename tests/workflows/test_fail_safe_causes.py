"""Each part of the bank dies alone: the watchdog hands the pool over, its owner is served, and the bank comes back.

That worker and controller die is tried on the lab, with real processes and the real minutes (`tests.lab`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from gpubank.domain.errors import BackendError
from gpubank.domain.loan import LineState
from gpubank.embedded.devserver import DevServer
from tests.fakes.bank import POOL, FakeBank, fake_bank, in_charge
from tests.support.audit import drift, unbacked
from tests.workflows.conftest import connected, watching
from workflows import attributes

Death = Callable[[FakeBank], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def worker(bank: FakeBank) -> AsyncIterator[None]:
    await bank.stop_workers()
    yield
    await bank.start_workers()


@asynccontextmanager
async def ledger(bank: FakeBank) -> AsyncIterator[None]:
    bank.ledger.gone = True
    yield
    bank.ledger.gone = False


@asynccontextmanager
async def hung_controller(bank: FakeBank) -> AsyncIterator[None]:
    """Have every turn of the pool's loop begin and none end."""
    healed, turn = asyncio.Event(), bank.loop.turn

    async def hangs() -> timedelta:
        await healed.wait()
        return await turn()

    with patch.object(bank.loop, "turn", hangs):
        yield
    healed.set()


@asynccontextmanager
async def failing_controller(bank: FakeBank) -> AsyncIterator[None]:
    """Have the pool's loop turn all the time, and no turn succeed."""

    async def fails() -> timedelta:
        raise BackendError("it cannot be seen")

    with patch.object(bank.loop, "turn", fails):
        yield


@pytest.mark.parametrize("dies", [worker, ledger, hung_controller, failing_controller])
async def test_whoever_dies_alone_the_owner_is_served_and_the_bank_comes_back(
    watched: FakeBank, dies: Death, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubank.controller.pool_loop.BEAT_EVERY", timedelta(milliseconds=200))
    await goes_on(watched, dies(watched))


async def test_without_temporal_the_owner_is_served_and_the_bank_comes_back(tmp_path: Path) -> None:
    async with DevServer(tmp_path / "temporal", search_attributes=attributes.KINDS) as server:

        @asynccontextmanager
        async def temporal() -> AsyncIterator[None]:
            await server.kill()
            yield
            await server.start()

        client = await connected(server.address)
        async with fake_bank(client, {"research": 8, "serving": 8}) as bank, watching(bank):
            await goes_on(bank, temporal())


async def goes_on(bank: FakeBank, death: AbstractAsyncContextManager[None]) -> None:
    """Borrow, die, have the owner served by the scheduler, live again, and see that everything is as it should be."""
    batch = await bank.borrow("research", "batch", 16, pods=2)
    async with death:
        await in_charge(bank, scheduler=True)
        await bank.own("serving", "serve")
        await bank.placed("serve")
        killed = await bank.workload("batch")
        assert killed is not None
        assert (killed.evicted, killed.mark) == ("Preempted", None), "only borrowed work pays"
    await in_charge(bank, scheduler=False)
    served = await bank.placed("serve")
    assert served.active
    await bank.world.finish_job("serving", "serve")
    back = await bank.placed("batch")
    assert back.key.uid == batch.key.uid

    async def settled() -> bool:
        books, facts = await bank.ledger.books(bank.cluster, POOL), await bank.world.backend.observe(POOL)
        return not drift(books, facts) and not unbacked(books, facts)

    await bank.until(settled, "quotas are what the books say, and loans what borrow jobs use")
    assert sum(line.gpus for line in await bank.lines()) == 16
    states = [line.state for line in bank.ledger.rows.values() if line.workload.uid == batch.key.uid]
    assert set(states) == {LineState.RETURNED, LineState.GRANTED}, "what it held before has ended in the books"
