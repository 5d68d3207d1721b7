"""The controller's signs of life: of loops that turn, and of no others; and every pool has its heartbeat."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpubank.controller.controller import Controller
from gpubank.controller.pool_loop import BEAT_EVERY, PoolLoop
from gpubank.domain.books import Books
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.failsafe import loop_lease
from gpubank.domain.pool import Backend
from gpubank.domain.transaction import Transaction
from tests.unit.controller.harness import POOL, Bank, a_bank

LEASE = loop_lease("local", POOL)
EIGHT = {"guaranteed": 8, "borrowLimit": 8}


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with a_bank(tmp_path) as bank:
        yield bank


class Running:
    """A loop that runs on time moved by hand, and that sleeps only for a moment."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.loop = PoolLoop(
            "local",
            POOL,
            backend=bank.cluster,
            ledger=bank.ledger,
            processes=bank.processes,
            notifier=bank.cluster.notices,
            terms=lambda: bank.controller.terms(POOL),
            now=bank.cluster.clock.now,
            leases=bank.cluster.leases,
        )
        self.turns = 0

    async def let(self, seconds: int) -> None:
        """Run for so many turns, one a second."""
        task = asyncio.create_task(self.loop.run(self._second))
        for _ in range(500):
            await asyncio.sleep(0.002)
            if self.turns >= seconds:
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _second(self, seconds: float) -> None:
        self.turns += 1
        await self.bank.cluster.advance(1)

    async def renewed(self) -> str:
        found = await self.bank.cluster.leases.read(LEASE)
        return found.renewed_at if found is not None else ""


async def test_a_loop_that_turns_gives_a_sign_every_few_seconds(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.controller.reconcile()
    await bank.controller.stop()
    running = Running(bank)
    await running.let(3)
    first = await running.renewed()
    assert first
    await running.let(5 + 2 * int(BEAT_EVERY.total_seconds()))
    assert await running.renewed() != first
    lease = await bank.cluster.leases.read(LEASE)
    assert lease is not None
    assert lease.duration >= 2 * timedelta(seconds=15), "a quiet pool is looked at every 15 s only"


@pytest.mark.parametrize("trouble", ["fails", "never ends"])
async def test_a_loop_that_fails_or_never_comes_to_an_end_gives_none(bank: Bank, trouble: str) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.controller.reconcile()
    await bank.controller.stop()
    running = Running(bank)

    async def turn() -> timedelta:
        if trouble == "fails":
            raise BackendError("the ledger is gone")
        return timedelta(0)

    running.loop.turn = turn  # type: ignore[method-assign]
    await running.let(30)
    assert running.turns >= 30
    assert await running.renewed() == ""


async def test_a_loop_that_always_has_more_to_decide_gives_a_sign_as_long_as_it_gets_on(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubank.controller.pool_loop.MAX_ROUNDS", 1)
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.controller.reconcile()
    await bank.controller.stop()
    running = Running(bank)
    assert await running.loop.turn() == timedelta(0), "nothing was left to decide"
    await running.loop._beat(timedelta(0))
    first = await running.renewed()
    assert first

    async def refused(transactions: Sequence[Transaction]) -> Sequence[Books]:
        raise ConflictError("somebody else was first")

    monkeypatch.setattr(bank.ledger, "commit_all", refused)
    await bank.agree(a={"guaranteed": 4, "borrowLimit": 8}, b=EIGHT)
    await bank.controller.reconcile()
    await bank.controller.stop()
    for _ in range(3):
        await bank.cluster.advance(BEAT_EVERY.total_seconds())
        assert await running.loop.turn() == timedelta(0)
        await running.loop._beat(timedelta(0))
    assert await running.renewed() == first, "what it decides comes into no books"


async def test_a_turn_is_over_after_a_while_although_something_is_left(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubank.controller.pool_loop.MAX_TURN", 0.0)
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.controller.reconcile()
    await bank.controller.stop()
    loop = Running(bank).loop
    turns = 1
    while await loop.turn() == timedelta(0):
        turns += 1
    assert turns > 1


class Heartbeats:
    """Keeps what it is asked; Temporal may be away."""

    def __init__(self) -> None:
        self.beating: set[str] = set()
        self.swept: set[str] = set()
        self.away = False

    def _answer(self) -> None:
        if self.away:
            raise BackendError("Temporal does not answer")

    async def start_sweeps(self, cluster: str) -> None:
        self._answer()
        self.swept.add(cluster)

    async def start_heartbeat(self, cluster: str, pool: str) -> None:
        self._answer()
        self.beating.add(pool)

    async def end_heartbeat(self, cluster: str, pool: str) -> None:
        self._answer()
        self.beating.discard(pool)


async def test_every_pool_has_a_heartbeat_and_a_removed_one_has_none(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubank.controller.controller.HEARTBEATS_EVERY", 0.05)
    heartbeats = Heartbeats()
    heartbeats.away = True
    options: dict[str, Any] = {
        "objects": bank.cluster.objects,
        "backends": {Backend.KUEUE: bank.cluster},
        "ledger": bank.ledger,
        "processes": bank.processes,
        "notifier": bank.cluster.notices,
        "now": bank.cluster.clock.now,
    }
    controller = Controller("local", heartbeats=heartbeats, leases=bank.cluster.leases, **options)
    await bank.agree(a=EIGHT, b=EIGHT)
    task = asyncio.create_task(controller.run())
    try:
        await asyncio.sleep(1)
        heartbeats.away = False  # it goes on trying
        await _until(bank, lambda: heartbeats.beating == {POOL} and heartbeats.swept == {"local"})
        await bank.cluster.objects.delete("GPUPool", POOL)
        await _until(bank, lambda: heartbeats.beating == set())
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until(bank: Bank, holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        await bank.cluster.advance(0.1)
        await asyncio.sleep(0.05)
    raise AssertionError("not within 20 s")
