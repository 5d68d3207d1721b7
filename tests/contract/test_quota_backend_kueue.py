"""The contract of the quota port on real Kueue."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpubank.adapters.kubernetes.kinds import POD, WORKLOAD
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from gpubank.lab import Lab
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.quota_bench import GROUPS, Bench, gone, mark, placed, queue
from tests.contract.quota_suite import QuotaBackendSuite
from tests.contract.world import the
from tests.support.waiting import seen

JOBS = "kube-controller-manager"
"""Keeps Jobs; Kueue takes a reservation back when the Job's status, which it writes, counts no active pod."""


class TestKueue(QuotaBackendSuite):
    @pytest.fixture
    async def world(self, lab: Lab) -> AsyncIterator[KueueWorld]:
        async with kueue_world(lab, *GROUPS, "video") as world:
            yield world

    async def test_the_gpus_of_who_was_stopped_are_free_before_kueue_has_booked_it(
        self, bench: Bench, world: KueueWorld, lab: Lab
    ) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "train", side=Side.BORROW)
        train = the(await bench.until(placed("train")), "train")
        await asyncio.to_thread(lab.kill, JOBS)
        try:
            await bench.backend.stop(world.pool, train.key, mark("stop"), seen=train.version)
            facts = await bench.until(lambda facts: the(facts, "train").evicted and not the(facts, "train").active)
            assert not gone("train")(facts), "its pod is there"
            (pod,) = train.pod_facts
            await world.connection.delete(POD, pod.name, train.key.namespace)
            await world.connection.patch(POD, pod.name, train.key.namespace, {"metadata": {"finalizers": None}})
            facts = await bench.until(gone("train"))
            assert queue(facts, "ads", Side.BORROW).reserved == 0
            assert await booked(world, facts), "Kueue cannot know yet"
        finally:
            await asyncio.to_thread(lab.start, JOBS)
        await seen(lambda: released(world, facts), "Kueue's own release")
        # Kueue writes the Workload first and its queue's sum a moment later: in between it says that they are held.
        await bench.until(lambda facts: not queue(facts, "ads", Side.BORROW).reserved)
        await bench.never(lambda facts: queue(facts, "ads", Side.BORROW).reserved, 1)


async def released(world: KueueWorld, facts: PoolFacts) -> bool:
    """Whether Kueue books nothing for the job any more."""
    return not await booked(world, facts)


async def booked(world: KueueWorld, facts: PoolFacts) -> bool:
    """Whether Kueue books a reservation for the job."""
    key = the(facts, "train").key
    body = await world.connection.get(WORKLOAD, key.name, key.namespace)
    assert body is not None
    conditions = {each["type"]: each["status"] for each in body["status"]["conditions"]}
    return conditions.get("QuotaReserved") == "True"
