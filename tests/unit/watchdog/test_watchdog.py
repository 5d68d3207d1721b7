"""The watchdog on the simulation, with time moved by hand: when it acts, and that the owner gets its guarantee."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.failsafe import CohortQueue, heartbeat_lease
from gpubank.domain.pool import DEFAULT_RESOURCE, Freeze
from gpubank.domain.terms import GroupTerms, PoolTerms
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.watchdog.watchdog import Watchdog
from tests.contract.simulated_world import SimulatedWorld
from tests.contract.world import JobRequest, layout, the

POOL = "h100"
LEASE = heartbeat_lease("local", POOL)
AFTER = 300


def terms(**update: Any) -> PoolTerms:
    """16 GPUs each for a and b, and 8 that nobody is guaranteed."""
    groups = tuple(
        GroupTerms(group=name, guaranteed=16, borrow_limit=limit, lending_limit=16)
        for name, limit in (("a", 16), ("b", 24))
    )
    found = PoolTerms(
        cluster="local",
        pool=POOL,
        resource_name=DEFAULT_RESOURCE,
        capacity=40,
        groups=groups,
        max_grace_period=timedelta(minutes=10),
        max_termination=timedelta(seconds=60),
        max_time_to_return=timedelta(minutes=30),
        resume_after=timedelta(0),
        min_run_time=timedelta(0),
        fail_safe_after=timedelta(seconds=AFTER),
    )
    return found.model_copy(update=update)


class Scene:
    """A pool in which b lends 8 GPUs to a, and its watchdog."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.world = SimulatedWorld(cluster, POOL)
        self.terms = terms()
        self.away: Exception | None = None
        self.told: list[str] = []
        self.watchdog = self.new_watchdog()

    def new_watchdog(self, backend: Any = None) -> Watchdog:
        """A watchdog that has seen nothing yet, as after a restart."""
        return Watchdog(
            "local",
            terms=self._terms,
            leases=self.cluster.leases,
            backend=backend or self.cluster.fail_safe,
            tell=self._tell,
            now=self.cluster.clock.now,
            monotonic=self.cluster.clock.monotonic,
            pause=self.cluster.advance,
        )

    async def _terms(self) -> Mapping[str, PoolTerms]:
        if self.away is not None:
            raise self.away
        return {POOL: self.terms}

    async def _tell(self, pool: str, reason: str, message: str) -> None:
        self.told.append(reason)

    async def start(self) -> None:
        await self.world.add_nodes(8, 8, 8, 8, 8)
        await self.cluster.lay_out(layout(self.world, "a", "b"))
        for group, side, nominal in (("a", Side.OWN, 16), ("b", Side.OWN, 8), ("a", Side.BORROW, 8)):
            await self.cluster.write_quota(POOL, group, side, nominal=nominal, revision=1)
        await self.job("a", "own", 2)
        await self.job("a", "loan", side=Side.BORROW)
        await self.cluster.advance(2)

    async def job(self, group: str, name: str, pods: int = 1, side: Side = Side.OWN, priority: int = 0) -> None:
        await self.world.submit_job(JobRequest(group, name, side=side, pods=pods, priority=priority))

    async def let(self, seconds: float, *, beats: bool) -> None:
        """Let time pass; the watchdog looks every 5 seconds, and the bank may beat every 10."""
        for turn in range(round(seconds / 5)):
            if beats and turn % 2 == 0:
                await self.beat()
            await self.watchdog.turn()
            await self.cluster.advance(5)

    async def beat(self) -> None:
        await self.cluster.leases.renew(LEASE, holder="gpubank", duration=timedelta(seconds=45))

    async def facts(self) -> PoolFacts:
        return await self.cluster.observe(POOL)

    async def epoch(self) -> int:
        return (await self.facts()).fail_safe_epoch

    async def queues(self) -> dict[str, tuple[int, int | None, bool]]:
        found = (await self.cluster.fail_safe.observe(POOL)).queues
        return {f"{q.group}.{q.kind}": (q.nominal, q.borrowing_limit, q.reclaims) for q in found if q.in_cohort}


SWITCHED = {
    "a.own": (16, 0, True),
    "b.own": (16, 0, True),
    "a.borrow": (0, 32, False),
    "b.borrow": (0, 40, False),
}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    cluster = SimulatedCluster(ManualClock())
    scene = Scene(cluster)
    await scene.start()
    try:
        yield scene
    finally:
        await cluster.close()


async def test_while_the_bank_lives_nothing_is_touched(scene: Scene) -> None:
    before = await scene.facts()
    await scene.let(900, beats=True)
    assert (await scene.facts()).queues == before.queues
    assert scene.told == []


async def test_a_dead_bank_costs_no_owner_its_guarantee_and_only_borrow_jobs_pay(scene: Scene) -> None:
    await scene.let(60, beats=True)
    await scene.let(AFTER - 10, beats=False)
    assert await scene.epoch() == 0, "not before failSafeAfter"
    await scene.job("b", "gang", 2)
    await scene.job("b", "greedy", side=Side.BORROW)
    await scene.let(40, beats=False)
    assert (await scene.epoch(), await scene.queues()) == (1, SWITCHED)
    facts = await scene.facts()
    assert the(facts, "gang").placed, "the owner has its guarantee"
    assert the(facts, "own").placed, "own work of others is not touched"
    assert the(facts, "loan").placed, "and what nobody is guaranteed is still lent"
    assert not the(facts, "greedy").reserved
    assert the(facts, "loan").evicted == ""
    await scene.job("b", "more", side=Side.BORROW, priority=5)
    await scene.let(20, beats=False)
    assert the(await scene.facts(), "loan").placed, "a borrower takes nothing back from a borrower"


async def test_a_borrow_job_is_preempted_for_an_owner_who_needs_all_of_its_guarantee(scene: Scene) -> None:
    await scene.job("a", "surplus", side=Side.BORROW)
    await scene.let(AFTER + 20, beats=False)
    assert the(await scene.facts(), "surplus").placed, "the surplus is lent under the fail-safe"
    await scene.job("b", "gang", 2)
    await scene.let(20, beats=False)
    facts = await scene.facts()
    assert the(facts, "gang").placed
    evicted = [the(facts, name).evicted for name in ("own", "loan", "surplus")]
    assert evicted == ["", "", "Preempted"], "newest first"


async def test_the_bank_writes_nothing_while_the_epoch_stands(scene: Scene) -> None:
    await scene.let(AFTER + 20, beats=False)
    with pytest.raises(ConflictError):
        await scene.cluster.write_quota(POOL, "a", Side.BORROW, nominal=8, revision=9)
    with pytest.raises(ConflictError):
        await scene.cluster.take_back(POOL, "a", Side.BORROW, nominal=8, revision=9)


async def test_a_missing_lease_is_as_stale_as_one_that_stands_still(scene: Scene) -> None:
    await scene.let(60, beats=True)
    scene.cluster.leases.drop(LEASE)
    await scene.let(AFTER - 10, beats=False)
    assert await scene.epoch() == 0
    await scene.let(30, beats=False)
    assert await scene.epoch() == 1


async def test_a_frozen_pool_is_left_as_it_is(scene: Scene) -> None:
    scene.terms = terms(freeze=Freeze(by="ops", reason="an incident"))
    await scene.let(AFTER + 60, beats=False)
    assert await scene.epoch() == 0
    scene.terms = terms()
    await scene.let(5, beats=False)
    assert await scene.epoch() == 1


async def test_the_way_back_needs_as_long_of_unbroken_renewals(scene: Scene) -> None:
    await scene.let(AFTER + 20, beats=False)
    await scene.let(AFTER - 20, beats=True)
    assert await scene.epoch() == 1
    await scene.let(60, beats=False)
    await scene.let(AFTER - 20, beats=True)
    assert await scene.epoch() == 1, "a gap begins it anew"
    await scene.let(40, beats=True)
    assert await scene.epoch() == 0
    assert (await scene.facts()).in_fail_safe, "the bank has to take its queues back"
    assert scene.told == ["FailSafeBegan", "FailSafeEnded"]


async def test_the_next_epoch_is_another_one(scene: Scene) -> None:
    await scene.let(AFTER + 20, beats=False)
    await scene.let(AFTER + 30, beats=True)
    assert await scene.epoch() == 0
    await scene.let(AFTER + 20, beats=False)
    assert (await scene.epoch(), await scene.queues()) == (2, SWITCHED)


async def test_a_watchdog_that_could_not_look_does_not_blame_the_bank(scene: Scene) -> None:
    await scene.let(60, beats=True)
    scene.away = BackendError("the API server is away")
    for _ in range(100):
        with pytest.raises(BackendError):
            await scene.watchdog.turn()
        await scene.cluster.advance(5)
    scene.away = None
    await scene.watchdog.turn()
    assert await scene.epoch() == 0


class Dying:
    """A scheduler's hand that is cut off after so many writes."""

    def __init__(self, real: Any, writes: int) -> None:
        self._real, self._left = real, writes

    async def observe(self, pool: str) -> Any:
        return await self._real.observe(pool)

    def __getattr__(self, name: str) -> Any:
        async def write(*args: Any, **kwargs: Any) -> None:
            if self._left <= 0:
                raise BackendError("the watchdog is dead")
            self._left -= 1
            await getattr(self._real, name)(*args, **kwargs)

        return write


@pytest.mark.parametrize("writes", range(7))
async def test_a_watchdog_that_dies_after_any_write_is_finished_by_its_next_run(scene: Scene, writes: int) -> None:
    scene.watchdog = scene.new_watchdog(Dying(scene.cluster.fail_safe, writes))
    await scene.let(AFTER + 20, beats=False)
    assert await scene.epoch() == min(writes, 1)
    scene.watchdog = scene.new_watchdog()
    await scene.let(10 if writes else AFTER + 20, beats=bool(writes))
    assert (await scene.epoch(), await scene.queues()) == (1, SWITCHED)
    assert (await scene.cluster.fail_safe.observe(POOL)).surplus == 8


async def test_a_queue_that_somebody_takes_out_by_hand_is_put_back(scene: Scene) -> None:
    await scene.let(AFTER + 20, beats=False)
    queue = scene.cluster._queues.queues[f"b.{POOL}.own"]
    queue.cohort, queue.nominal = None, 0
    await scene.let(10, beats=False)
    assert await scene.queues() == SWITCHED


async def test_a_write_that_somebody_was_faster_than_is_judged_again(scene: Scene) -> None:
    class Racing:
        """Another watchdog enters each queue just before this one."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        async def enter(self, pool: str, queue: CohortQueue, **how: Any) -> None:
            await self._real.enter(pool, queue, **how)
            await self._real.enter(pool, queue, **how)

    scene.watchdog = scene.new_watchdog(Racing(scene.cluster.fail_safe))
    await scene.let(AFTER + 20, beats=False)
    assert await scene.queues() == SWITCHED
