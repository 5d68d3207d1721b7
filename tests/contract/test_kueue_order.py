"""Who comes in when a quota is raised on real Kueue: whoever waited for it, and nobody that came later."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, WORKLOAD, Kind, Object
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.kueue.order import IN_ORDER_ANNOTATION
from gpubank.domain.contract import Side, own_queue
from gpubank.lab import Lab
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.world import JobRequest, job_of, layout, the


@pytest.fixture
async def world(lab: Lab) -> AsyncIterator[KueueWorld]:
    async with kueue_world(lab, "ads") as world:
        await world.backend.lay_out(layout(world, "ads"))
        await world.add_nodes(8, 8, 8)
        yield world


async def quota(world: KueueWorld, nominal: int, revision: int) -> None:
    await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=nominal, revision=revision)


async def set_aside(world: KueueWorld, *names: str) -> None:
    """Wait until Kueue has looked at these jobs and put them aside, so that only its next batch would look again."""
    await world.wait_until(lambda facts: all(job_of(facts, name) for name in names))
    await world.pause(1.3)


async def others_come(world: KueueWorld) -> None:
    """Submit jobs that would fit, one after the other, while a quota is raised for somebody before them."""
    for number in range(5):
        await world.submit_job(JobRequest("ads", f"later-{number}"))
        await asyncio.sleep(0.05)


async def relaxed(world: KueueWorld) -> None:
    for _ in range(100):
        body = await world.connection.get(CLUSTER_QUEUE, own_queue("ads", world.pool))
        assert body is not None
        if body["spec"]["queueingStrategy"] == "BestEffortFIFO":
            assert IN_ORDER_ANNOTATION not in body["metadata"].get("annotations", {})
            return
        await world.pause(0.05)
    raise AssertionError("the queue stayed strict")


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.3])
async def test_a_gang_comes_in_before_a_job_that_arrives_while_its_quota_is_raised(
    world: KueueWorld, delay: float
) -> None:
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await set_aside(world, "gang")

    async def later() -> None:
        await asyncio.sleep(delay)
        await world.submit_job(JobRequest("ads", "later"))

    await asyncio.gather(quota(world, 16, 1), later())
    facts = await world.wait_until(lambda facts: the(facts, "gang").placed and job_of(facts, "later"))
    assert not the(facts, "later").reserved
    await relaxed(world)


@pytest.mark.parametrize("delay", [0.0, 0.05])
async def test_two_writers_of_one_raise_keep_the_order_together(world: KueueWorld, lab: Lab, delay: float) -> None:
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await set_aside(world, "gang")

    async with Connection.open(lab.kubeconfig) as connection, KueueBackend(connection, cluster="lab") as other:
        await other.observe(world.pool)

        async def second() -> None:
            await asyncio.sleep(delay)
            await other.write_quota(world.pool, "ads", Side.OWN, nominal=16, revision=1)

        await asyncio.gather(quota(world, 16, 1), second(), others_come(world))
        facts = await world.wait_until(lambda facts: the(facts, "gang").placed)
        assert not any(each.reserved for each in facts.workloads if each.key.job != "Job/gang")
        await relaxed(world)


class _Crossed(Connection):
    """A connection on which somebody else writes to a Workload between its read and the write that rests on it."""

    crossings = 0

    async def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Object, *, version: str = "", subresource: str = ""
    ) -> Object:
        if subresource == "status" and version and self.crossings < 2:
            self.crossings += 1
            label = {"metadata": {"labels": {"crossed": str(self.crossings)}}}
            await super().patch(kind, name, namespace, label)
        return await super().patch(kind, name, namespace, change, version=version, subresource=subresource)


async def test_who_is_written_to_by_others_while_it_is_woken_still_comes_in_first(world: KueueWorld, lab: Lab) -> None:
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await set_aside(world, "gang")

    async with _Crossed.open(lab.kubeconfig) as connection, KueueBackend(connection, cluster="lab") as writer:
        await writer.observe(world.pool)
        raised = writer.write_quota(world.pool, "ads", Side.OWN, nominal=16, revision=1)
        await asyncio.gather(raised, others_come(world))
        facts = await world.wait_until(lambda facts: the(facts, "gang").reserved)
        assert not any(each.reserved for each in facts.workloads if each.key.job != "Job/gang")
        assert connection.crossings == 2
        await relaxed(world)


async def test_all_who_fit_come_in_and_the_next_waits(world: KueueWorld) -> None:
    for name in ("first", "second", "third"):
        await world.submit_job(JobRequest("ads", name))
        await world.pause(1.0)  # creation times are whole seconds
    await set_aside(world, "first", "second", "third")
    await quota(world, 16, 1)
    facts = await world.wait_until(lambda facts: the(facts, "first").reserved and the(facts, "second").reserved)
    assert not the(facts, "third").reserved
    await relaxed(world)


async def test_where_somebody_who_cannot_fit_is_first_the_queue_is_not_held_up(world: KueueWorld) -> None:
    await world.submit_job(JobRequest("ads", "huge", pods=4))
    await world.pause(1.0)
    await world.submit_job(JobRequest("ads", "small"))
    await set_aside(world, "huge", "small")
    await quota(world, 8, 1)
    body = await world.connection.get(CLUSTER_QUEUE, own_queue("ads", world.pool))
    assert body is not None
    assert body["spec"]["queueingStrategy"] == "BestEffortFIFO"
    facts = await world.wait_until(lambda facts: the(facts, "small").reserved)
    assert not the(facts, "huge").reserved


async def test_waking_a_workload_leaves_its_conditions_and_its_wait_as_they_were(world: KueueWorld) -> None:
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await set_aside(world, "gang")
    before = the(await world.backend.observe(world.pool), "gang")
    await quota(world, 16, 1)
    facts = await world.wait_until(lambda facts: the(facts, "gang").reserved)
    assert the(facts, "gang").created_at == before.created_at
    body = await world.connection.get(WORKLOAD, before.key.name, before.key.namespace)
    assert body is not None
    conditions = {each["type"]: each for each in body["status"]["conditions"]}
    assert conditions["QuotaReserved"]["status"] == "True"
    assert conditions["Requeued"]["status"] == "True"
    assert conditions["Requeued"]["lastTransitionTime"] == body["metadata"]["creationTimestamp"]


async def test_a_nudge_wakes_who_was_passed_over(world: KueueWorld) -> None:
    await world.submit_job(JobRequest("ads", "gang", pods=2))
    await set_aside(world, "gang")
    seen = the(await world.backend.observe(world.pool), "gang")
    await world.backend.nudge(world.pool, seen.key)  # nothing to have: nobody is woken
    body = await world.connection.get(CLUSTER_QUEUE, own_queue("ads", world.pool))
    assert body is not None
    assert body["spec"]["queueingStrategy"] == "BestEffortFIFO"
    await quota(world, 16, 1)
    await world.backend.nudge(world.pool, seen.key)
    await world.wait_until(lambda facts: the(facts, "gang").placed)
    await relaxed(world)


async def test_kueue_says_of_the_first_in_line_that_it_has_been_refused(world: KueueWorld) -> None:
    await world.submit_job(JobRequest("ads", "large", pods=2))
    facts = await world.wait_until(lambda facts: job_of(facts, "large") and the(facts, "large").refused)
    large = the(facts, "large")
    assert not large.reserved
    assert large.waiting_since is not None
    await quota(world, 16, 1)
    facts = await world.wait_until(lambda facts: the(facts, "large").reserved)
    assert not the(facts, "large").refused
