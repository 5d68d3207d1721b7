"""What makes the bank's fence necessary: an admission cycle that still uses a quota that has been lowered."""

from collections.abc import AsyncIterator

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.facts import Mark
from gpubank.simulation.clock import Timing
from tests.contract.simulated_world import SimulatedWorld, simulated_world
from tests.contract.world import JobRequest, layout, the


@pytest.fixture
async def world() -> AsyncIterator[SimulatedWorld]:
    async with simulated_world() as world:
        await world.backend.lay_out(layout(world, "ads", "maps"))
        await world.add_nodes(8, 8, 8, 8)
        yield world


async def write(world: SimulatedWorld, group: str, nominal: int, revision: int) -> None:
    await world.backend.write_quota(world.pool, group, Side.OWN, nominal=nominal, revision=revision)


async def test_a_cycle_that_began_before_an_edit_admits_against_the_old_quota(world: SimulatedWorld) -> None:
    await write(world, "ads", 16, 1)
    await world.pause(1)
    world.simulated.stall_cycle(0.2)
    await world.submit_job(JobRequest("ads", "train", pods=2))
    await world.pause(0.05)  # the cycle has begun, and takes 0.2 s
    await write(world, "ads", 0, 2)
    await world.pause(0.1)
    facts = await world.backend.observe(world.pool)
    assert (facts.queues[1].name, facts.queues[1].nominal, facts.queues[1].fenced) == ("ads.h100.own", 0, 1)
    assert not the(facts, "train").reserved
    facts = await world.wait_until(lambda facts: facts.queues[1].fenced == 2)
    assert the(facts, "train").reserved, "the fence must show what the late cycle did"
    assert facts.queues[1].reserved == 16 > facts.queues[1].nominal


async def test_a_cycle_that_begins_after_the_acknowledgement_uses_the_new_quota(world: SimulatedWorld) -> None:
    await write(world, "ads", 16, 1)
    await world.pause(1)
    await write(world, "ads", 0, 2)
    await world.pause(Timing().acknowledge + 0.001)
    await world.submit_job(JobRequest("ads", "train", pods=2))
    await world.pause(3)
    assert not the(await world.backend.observe(world.pool), "train").reserved


async def test_an_edit_counts_for_new_cycles_only_once_it_is_acknowledged(world: SimulatedWorld) -> None:
    await write(world, "ads", 16, 1)
    await world.pause(1)
    await write(world, "ads", 0, 2)
    await world.submit_job(JobRequest("ads", "train", pods=2))
    await world.pause(Timing().acknowledge - 0.001)
    assert the(await world.backend.observe(world.pool), "train").reserved


async def test_those_who_did_not_fit_are_considered_again_a_batch_later(world: SimulatedWorld) -> None:
    await world.submit_job(JobRequest("ads", "train"))
    await world.pause(0.5)
    world.simulated.edit_quota("ads.h100.own", 8)
    await world.pause(Timing().acknowledge + Timing().batch - 0.01)
    assert not the(await world.backend.observe(world.pool), "train").reserved
    await world.pause(0.1)
    assert the(await world.backend.observe(world.pool), "train").reserved


async def test_a_nudge_does_not_wait_for_the_batch(world: SimulatedWorld) -> None:
    await world.submit_job(JobRequest("ads", "train"))
    await world.pause(0.5)
    world.simulated.edit_quota("ads.h100.own", 8)
    await world.pause(0.1)
    await world.backend.nudge(world.pool, the(await world.backend.observe(world.pool), "train").key)
    await world.pause(0.1)
    assert the(await world.backend.observe(world.pool), "train").reserved


async def test_a_new_job_overtakes_those_who_wait_for_the_batch(world: SimulatedWorld) -> None:
    await world.submit_job(JobRequest("ads", "older"))
    await world.pause(0.5)
    world.simulated.edit_quota("ads.h100.own", 8)
    await world.pause(0.1)
    await world.submit_job(JobRequest("ads", "newer"))
    await world.pause(2)
    facts = await world.backend.observe(world.pool)
    assert (the(facts, "newer").reserved, the(facts, "older").reserved) == (True, False)


async def test_a_raise_by_the_bank_lets_in_who_waits_before_any_newcomer(world: SimulatedWorld) -> None:
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await world.submit_job(JobRequest("ads", "second"))
    await world.pause(0.5)
    await write(world, "ads", 24, 1)
    await world.pause(Timing().acknowledge - 0.01)
    await world.submit_job(JobRequest("ads", "newer"))
    await world.pause(0.1)
    facts = await world.backend.observe(world.pool)
    assert [the(facts, name).reserved for name in ("gang", "second", "newer")] == [True, True, False]


async def test_a_smaller_job_passes_one_that_does_not_fit(world: SimulatedWorld) -> None:
    await write(world, "ads", 8, 1)
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await world.submit_job(JobRequest("ads", "single"))
    await world.pause(2)
    facts = await world.backend.observe(world.pool)
    assert (the(facts, "gang").reserved, the(facts, "single").reserved) == (False, True)


async def test_capacity_that_is_freed_during_a_cycle_is_not_lost(world: SimulatedWorld) -> None:
    await write(world, "ads", 8, 1)
    await world.submit_job(JobRequest("ads", "first"))
    await world.pause(2)
    # The cycle finds no room; the batch that follows the first job's end comes before the cycle is over.
    world.simulated.stall_cycle(1.5)
    await world.submit_job(JobRequest("ads", "second"))
    await world.pause(0.1)
    await world.finish_job("ads", "first")
    await world.pause(3)
    assert the(await world.backend.observe(world.pool), "second").reserved


async def test_a_job_that_is_stopped_as_it_is_admitted_never_gets_pods(world: SimulatedWorld) -> None:
    await write(world, "ads", 8, 1)
    await world.submit_job(JobRequest("ads", "train"))
    seen = the(await world.wait_until(lambda facts: the(facts, "train").reserved), "train")
    assert seen.pod_facts == ()
    mark = Mark(loan="loan/local/1", term=1, step="stop")
    await world.backend.stop(world.pool, seen.key, mark, seen=seen.version)
    for _ in range(100):
        await world.pause(0.01)
        assert the(await world.backend.observe(world.pool), "train").pod_facts == ()
    assert the(await world.backend.observe(world.pool), "train").gone


async def test_quota_is_free_before_the_pods_are_gone() -> None:
    async with simulated_world(timing=Timing(termination=5)) as world:
        await world.backend.lay_out(layout(world, "ads"))
        await world.add_nodes(8)
        await write(world, "ads", 8, 1)
        await world.submit_job(JobRequest("ads", "train", termination_grace=4))
        seen = the(await world.wait_until(lambda facts: the(facts, "train").placed), "train")
        mark = Mark(loan="loan/local/1", term=1, step="stop")
        await world.backend.stop(world.pool, seen.key, mark, seen=seen.version)
        facts = await world.wait_until(lambda facts: not the(facts, "train").reserved)
        assert [pod.terminating for pod in the(facts, "train").pod_facts] == [True]
        assert [node.used for node in facts.nodes] == [8]
        await world.submit_job(JobRequest("ads", "next"))
        facts = await world.wait_until(lambda facts: the(facts, "next").reserved)
        assert not the(facts, "next").placed
        start = facts.at
        facts = await world.wait_until(lambda facts: the(facts, "next").placed)
        assert the(facts, "train").gone
        assert 2 < (facts.at - start).total_seconds() < 4
