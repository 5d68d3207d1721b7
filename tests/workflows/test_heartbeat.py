"""The heartbeat: it beats while the whole bank is at work, and stops beating when any part of it is missing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.failures import NOT_YET
from activities.heartbeat import REFUSED, HeartbeatActivities
from activities.pools import Pools
from gpubank.domain.demand import DemandKind
from gpubank.domain.errors import BackendError
from gpubank.domain.failsafe import HeartbeatInput, heartbeat_id, heartbeat_lease, loop_lease
from gpubank.domain.transaction import CapacityChange, DemandOpening, GuaranteeChange, Transaction
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.simulation.leases import SimulatedLeases
from tests.fakes.bank import POOL, FakeBank, TermsBoard
from tests.fakes.ledger import MemoryLedger

EVERY = timedelta(milliseconds=300)
LEASE, LOOP = heartbeat_lease("local", POOL), loop_lease("local", POOL)


class Reclaims:
    """Knows which Reclaims run, because a test says so."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    async def reclaim_runs(self, cluster: str, pool: str, lender: str) -> bool:
        return lender in self.running


class Scene:
    """One beat at a time, of a bank with nothing in it."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(ManualClock())
        self.ledger, self.leases, self.reclaims = MemoryLedger(), SimulatedLeases(), Reclaims()
        self.terms = TermsBoard("local", {"a": 8, "b": 8})
        self.moment, self.seconds = datetime.now(UTC), 0.0
        pools = Pools("local", quota=self.cluster, ledger=self.ledger, terms=self.terms, clock=lambda: self.moment)
        self.activities = HeartbeatActivities(
            pools, leases=self.leases, reclaims=self.reclaims, monotonic=lambda: self.seconds
        )

    async def loop_turns(self) -> None:
        await self.leases.renew(LOOP, holder="gpubank", duration=timedelta(seconds=30))

    async def beat(self) -> str:
        """Beat once; return the type of the failure that every beat ends in."""
        with pytest.raises((ApplicationError, BackendError)) as caught:
            await ActivityEnvironment().run(self.activities.beat, HeartbeatInput(cluster="local", pool=POOL))
        return (caught.value.type or "") if isinstance(caught.value, ApplicationError) else "BackendError"

    async def demand(self, age: timedelta) -> None:
        """Open a demand of b, some time ago."""
        at = self.moment - age
        opening = DemandOpening(demand_id="d", lender="b", kind=DemandKind.WORKLOAD, gpus=8, due_at=at)
        head = {"cluster": "local", "pool": POOL, "at": at, "actor": "controller"}
        await self.ledger.commit(Transaction.model_validate({"key": "d", "openings": (opening,), **head}))

    async def renewed(self) -> str | None:
        found = await self.leases.read(LEASE)
        return found.renewed_at if found is not None else None


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.loop_turns()
    scene.activities._loops.clear()
    assert (await scene.leases.read(LOOP)) is not None
    waiting = asyncio.create_task(scene.beat())
    await asyncio.sleep(0.05)
    await scene.loop_turns()
    assert await waiting == NOT_YET
    try:
        yield scene
    finally:
        await scene.cluster.close()


async def test_a_worker_believes_in_a_loop_only_when_it_has_seen_it_turn(scene: Scene) -> None:
    first = await scene.renewed()
    assert first is not None
    assert await scene.beat() == NOT_YET
    assert await scene.renewed() != first, "and then for as long as its lease lasts"


async def test_a_controller_that_turns_no_more_stops_the_heart(scene: Scene) -> None:
    for _ in range(2):
        scene.seconds += 29
        outcome = await scene.beat()
    assert outcome == REFUSED
    before = await scene.renewed()
    await scene.beat()
    assert await scene.renewed() == before
    await scene.loop_turns()
    assert await scene.beat() == NOT_YET


async def test_a_worker_that_has_not_looked_for_long_does_not_take_an_old_sign_for_a_new_one(scene: Scene) -> None:
    await scene.loop_turns()
    scene.seconds += 600  # it died since
    before = await scene.renewed()
    waiting = asyncio.create_task(scene.beat())
    await asyncio.sleep(0.1)
    scene.seconds += 21
    assert await waiting == REFUSED
    assert await scene.renewed() == before


async def test_a_loop_that_never_turned_is_none(scene: Scene) -> None:
    scene.leases.drop(LOOP)
    scene.activities._loops.clear()
    assert await scene.beat() == REFUSED


async def test_a_ledger_that_takes_no_write_stops_the_heart(scene: Scene) -> None:
    before = await scene.renewed()
    scene.ledger.gone = True
    assert await scene.beat() == "BackendError"
    assert await scene.renewed() == before


async def test_a_demand_that_nobody_works_on_stops_the_heart(scene: Scene) -> None:
    await scene.demand(timedelta(seconds=61))
    before = await scene.renewed()
    assert await scene.beat() == REFUSED
    assert await scene.renewed() == before
    scene.reclaims.running = {"a"}
    assert await scene.beat() == REFUSED
    scene.reclaims.running = {"b"}
    assert await scene.beat() == NOT_YET


async def test_a_young_demand_and_one_of_a_frozen_pool_do_not(scene: Scene) -> None:
    await scene.demand(timedelta(seconds=59))
    assert await scene.beat() == NOT_YET
    scene.moment += timedelta(seconds=2)
    assert await scene.beat() == REFUSED
    scene.terms.freeze()
    assert await scene.beat() == NOT_YET


async def test_guarantees_that_have_yet_to_follow_their_policies_are_on_the_lease(scene: Scene) -> None:
    rows = (GuaranteeChange(group="a", version=0, in_force=8), GuaranteeChange(group="b", version=0, in_force=4))
    head = {"cluster": "local", "pool": POOL, "at": scene.moment, "actor": "controller"}
    await scene.ledger.commit(
        Transaction.model_validate({"key": "g", "capacity": CapacityChange(capacity=16), "guarantees": rows, **head})
    )
    await scene.beat()
    found = await scene.leases.read(LEASE)
    assert found is not None
    assert found.promises == {"b": 4}


# ---- through Temporal


async def turning(bank: FakeBank) -> None:
    """Give signs of life of the controller's loop, as it does itself after every turn."""
    leases = bank.world.simulated.leases
    while True:
        await leases.renew(LOOP, holder="gpubank", duration=timedelta(seconds=2))
        await asyncio.sleep(0.2)


@pytest.fixture
async def loop(bank: FakeBank) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(turning(bank))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def renewals(bank: FakeBank, count: int) -> None:
    """See the Lease renewed so many times."""
    seen: set[str] = set()

    async def look() -> bool:
        found = await bank.world.simulated.leases.read(LEASE)
        seen.add(found.token if found is not None else "")
        return len(seen - {""}) > count

    await bank.until(look, f"{count} renewals")


async def test_it_beats_through_temporal_with_a_history_that_does_not_grow(
    bank: FakeBank, loop: asyncio.Task[None]
) -> None:
    await bank.client.start_heartbeat("local", POOL, every=EVERY)
    await renewals(bank, 3)
    handle = bank.client.temporal.get_workflow_handle(heartbeat_id("local", POOL))
    before = (await handle.describe()).history_length
    await renewals(bank, 3)
    assert (await handle.describe()).history_length == before
    await bank.client.start_heartbeat("local", POOL, every=EVERY)  # changes nothing
    assert (await handle.describe()).history_length == before
    await bank.client.end_heartbeat("local", POOL)
    await asyncio.wait_for(handle.result(), 10)
    await bank.client.end_heartbeat("local", POOL)


async def test_without_a_worker_it_does_not_beat_and_with_one_it_does_again(
    bank: FakeBank, loop: asyncio.Task[None]
) -> None:
    await bank.client.start_heartbeat("local", POOL, every=EVERY)
    await renewals(bank, 1)
    await bank.stop_workers()
    leases = bank.world.simulated.leases
    before = await leases.read(LEASE)
    await asyncio.sleep(1)
    assert await leases.read(LEASE) == before
    await bank.start_workers()
    await renewals(bank, 2)


async def test_a_dead_controller_stops_the_heart_and_the_ui_says_why(bank: FakeBank, loop: asyncio.Task[None]) -> None:
    await bank.client.start_heartbeat("local", POOL, every=EVERY)
    await renewals(bank, 1)
    loop.cancel()
    handle = bank.client.temporal.get_workflow_handle(heartbeat_id("local", POOL))

    async def refused() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any("gives no sign of life" in each.last_failure.message for each in pending)

    await bank.until(refused, "the beat is refused")
