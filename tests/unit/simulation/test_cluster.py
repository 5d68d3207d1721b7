"""Time, drift, layouts and waits of the simulated cluster, beyond what every backend must do."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.contract import Side
from gpubank.domain.facts import Wait
from gpubank.domain.layout import GroupLayout, LayoutReport
from gpubank.simulation.clock import ManualClock, SystemClock, Timeline, Timing
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.simulation.pulse import Pulse
from tests.contract.simulated_world import SimulatedWorld, simulated_world
from tests.contract.world import DeploymentRequest, JobRequest, job_of, layout, pods_of, the


@pytest.fixture
async def world() -> AsyncIterator[SimulatedWorld]:
    async with simulated_world() as world:
        await world.backend.lay_out(layout(world, "ads", "maps"))
        await world.add_nodes(8, 8)
        yield world


async def write(world: SimulatedWorld, group: str, nominal: int, revision: int) -> None:
    await world.backend.write_quota(world.pool, group, Side.OWN, nominal=nominal, revision=revision)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_a_timeline_runs_in_order_of_time_then_arrangement(delays: list[int]) -> None:
    clock = ManualClock()
    timeline, ran = Timeline(clock), list[tuple[int, int]]()
    for number, delay in enumerate(delays):
        timeline.after(delay, lambda each=(delay, number): ran.append(each))  # type: ignore[misc]
    clock.move_to(10)
    timeline.run_due()
    assert ran == sorted((delay, number) for number, delay in enumerate(delays))


def test_what_is_cancelled_or_not_due_does_not_run() -> None:
    clock = ManualClock()
    timeline, ran = Timeline(clock), list[str]()
    timeline.after(1, lambda: ran.append("cancelled")).cancel()
    timeline.after(2, lambda: ran.append("late"))
    clock.move_to(1)
    timeline.run_due()
    assert (ran, timeline.next_at()) == ([], 2)


async def test_beats_that_nobody_saw_fold_into_one() -> None:
    pulse = Pulse()
    follower = pulse.follow()
    await anext(follower)
    for _ in range(3):
        pulse.beat()
    await asyncio.wait_for(anext(follower), 5)
    woken = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    assert not woken.done()
    woken.cancel()


async def test_two_runs_by_hand_are_alike() -> None:
    async def run() -> str:
        async with simulated_world() as world:
            await world.backend.lay_out(layout(world, "ads"))
            await world.add_nodes(8, 8)
            await write(world, "ads", 12, 1)
            for number in range(3):
                await world.submit_job(JobRequest("ads", f"job-{number}", gpus_per_pod=4 + number))
            await world.pause(2.5)
            await world.delete_job("ads", "job-0")
            await world.pause(2.5)
            return (await world.backend.observe(world.pool)).model_dump_json()

    assert await run() == await run()


async def test_time_moved_by_hand_lets_followers_act_in_between(world: SimulatedWorld) -> None:
    """A controller that follows changes raises a quota at the moment at which it sees the job, not at the end."""

    async def controller() -> None:
        async for _ in world.backend.changes(world.pool):
            facts = await world.backend.observe(world.pool)
            if facts.workloads and facts.queue("ads", Side.OWN).stamp < 1:  # type: ignore[union-attr]
                await write(world, "ads", 8, 1)

    task = asyncio.create_task(controller())
    await world.submit_job(JobRequest("ads", "train"))
    await world.pause(1.5)
    task.cancel()
    assert the(await world.backend.observe(world.pool), "train").placed


async def test_a_clock_that_runs_by_itself_cannot_be_advanced() -> None:
    with pytest.raises(TypeError, match="runs by itself"):
        await SimulatedCluster(SystemClock()).advance(1)


async def test_on_the_machines_time_a_task_does_what_is_due() -> None:
    quick = Timing(acknowledge=0.001, batch=0.05, creation=0.001, start=0.001)
    async with simulated_world(SystemClock(), timing=quick) as world:
        await world.backend.lay_out(layout(world, "ads"))
        await world.add_nodes(8)
        await world.submit_job(JobRequest("ads", "train"))
        await world.pause(0.05)
        await write(world, "ads", 8, 1)
        await world.wait_until(lambda facts: the(facts, "train").placed)


async def test_uids_of_two_clusters_differ_on_the_machines_time() -> None:
    uids = []
    for _ in range(2):
        async with simulated_world(SystemClock()) as world:
            await world.backend.lay_out(layout(world, "ads"))
            await world.submit_job(JobRequest("ads", "train"))
            uids.append(the(await world.backend.observe(world.pool), "train").key.uid)
    assert uids[0] != uids[1]


async def test_a_fault_in_one_action_does_not_stop_the_cluster(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("a fault")

    ran = asyncio.Event()
    cluster = SimulatedCluster(SystemClock())
    with caplog.at_level(logging.ERROR):
        async with cluster.running():
            cluster._timeline.after(0, fail)
            cluster._timeline.after(0.01, ran.set)
            await asyncio.wait_for(ran.wait(), 5)
    assert "stumbled" in caplog.text


async def test_a_quota_that_somebody_edits_keeps_its_stamp_and_is_written_over(world: SimulatedWorld) -> None:
    await write(world, "ads", 8, 4)
    world.simulated.edit_quota("ads.h100.own", 16)
    await world.submit_job(JobRequest("ads", "train", pods=2))
    facts = await world.wait_until(lambda facts: the(facts, "train").reserved)
    queue = facts.queue("ads", Side.OWN)
    assert queue is not None
    assert (queue.nominal, queue.stamp) == (16, 4)
    await write(world, "ads", 8, 4)
    assert await world.quota("ads", Side.OWN) == 8


async def test_a_workload_that_waits_for_something_else_says_so_and_is_not_admitted(world: SimulatedWorld) -> None:
    await world.submit_job(JobRequest("ads", "train"))
    uid = the(await world.backend.observe(world.pool), "train").key.uid
    world.simulated.hold(uid, Wait.CHECK)
    await write(world, "ads", 8, 1)
    await world.pause(3)
    seen = the(await world.backend.observe(world.pool), "train")
    assert (seen.wait, seen.reserved) == (Wait.CHECK, False)
    world.simulated.hold(uid, None)
    await world.wait_until(lambda facts: the(facts, "train").reserved)


async def test_a_deployment_that_shrinks_gives_up_what_waits_first_then_the_newest(world: SimulatedWorld) -> None:
    await write(world, "ads", 4, 1)
    await world.submit_deployment(DeploymentRequest("ads", "serve", replicas=3, gpus_per_pod=2))
    facts = await world.wait_until(lambda facts: [w.placed for w in pods_of(facts, "serve")].count(True) == 2)
    placed = [each.key.uid for each in pods_of(facts, "serve") if each.placed]
    await world.scale_deployment("ads", "serve", 2)
    facts = await world.wait_until(lambda facts: len(pods_of(facts, "serve")) == 2)
    assert [each.key.uid for each in pods_of(facts, "serve")] == placed
    await world.scale_deployment("ads", "serve", 1)
    facts = await world.wait_until(lambda facts: len(pods_of(facts, "serve")) == 1)
    assert [each.key.uid for each in pods_of(facts, "serve")] == placed[:1]
    assert not world.simulated.scale_deployment("unknown", 1)


async def test_a_group_that_leaves_the_layout_loses_its_queues_once_they_are_empty(world: SimulatedWorld) -> None:
    await write(world, "maps", 8, 1)
    await world.submit_job(JobRequest("maps", "train"))
    await world.wait_until(lambda facts: the(facts, "train").placed)
    report = await world.backend.lay_out(layout(world, "ads"))
    assert [each.reason for each in report.problems] == ["QueueInUse"]
    assert "ClusterQueue/maps.h100.borrow" in report.changed
    assert the(await world.backend.observe(world.pool), "train").placed
    await world.finish_job("maps", "train")
    await write(world, "maps", 0, 2)
    report = await world.backend.lay_out(layout(world, "ads"))
    assert report == LayoutReport(changed=("ClusterQueue/maps.h100.own",))


async def test_a_namespace_that_changes_hands_leads_to_the_new_groups_queues(world: SimulatedWorld) -> None:
    wanted = layout(world, "ads", "maps")
    groups = (wanted.groups[0], GroupLayout(group="maps", namespaces=("other",)))
    report = await world.backend.lay_out(wanted.model_copy(update={"groups": groups}))
    assert set(report.changed) == {
        "LocalQueue/other/h100",
        "LocalQueue/other/h100-borrow",
        "LocalQueue/team-maps/h100",
        "LocalQueue/team-maps/h100-borrow",
    }


async def test_a_pool_that_is_removed_keeps_queues_that_have_work(world: SimulatedWorld) -> None:
    await write(world, "ads", 8, 1)
    await world.submit_job(JobRequest("ads", "train"))
    await world.wait_until(lambda facts: the(facts, "train").placed)
    report = await world.backend.remove(world.pool)
    assert [each.reason for each in report.problems] == ["QueueInUse"]
    await world.delete_job("ads", "train")
    await world.wait_until(lambda facts: job_of(facts, "train") is None)
    report = await world.backend.remove(world.pool)
    assert set(report.changed) == {"ClusterQueue/ads.h100.own", "ResourceFlavor/h100"}


async def test_pools_do_not_see_each_other(world: SimulatedWorld) -> None:
    other = SimulatedWorld(world.simulated, pool="a100")
    await other.backend.lay_out(layout(other, "ads"))
    await other.add_nodes(4)
    await other.backend.write_quota("a100", "ads", Side.OWN, nominal=4, revision=1)
    await other.submit_job(JobRequest("ads", "small", gpus_per_pod=4))
    facts = await other.wait_until(lambda facts: the(facts, "small").placed)
    assert {node.name for node in facts.nodes} == {"a100-node-1"}
    facts = await world.backend.observe(world.pool)
    assert (facts.workloads, sum(node.used for node in facts.nodes)) == ((), 0)
