"""What is told of one Workload among many, and who uses a queue; on a cluster on paper."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import cast

import pytest

from benchmarks.paper_cluster import PaperCluster
from benchmarks.worlds import CLUSTER, POOL, SIZE, Size, workload, world
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kueue.backend import FOLD, KueueBackend
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from tests.support.waiting import seen

LONG = 5 * FOLD
"""Seconds after which a change that is told has been told."""


@pytest.fixture
def cluster() -> PaperCluster:
    at = world(Size(groups=3, loans=0, own=3, slack=4 * SIZE), datetime.now(UTC))
    return PaperCluster(at)


@pytest.fixture
async def backend(cluster: PaperCluster) -> AsyncIterator[KueueBackend]:
    async with KueueBackend(cast(Connection, cluster), cluster=CLUSTER) as backend:
        yield backend


async def see(backend: KueueBackend, holds: Callable[[PoolFacts], bool], what: str) -> None:
    """Observe until it is so."""

    async def look() -> bool:
        return holds(await backend.observe(POOL))

    await seen(look, what)


def at_rest(facts: PoolFacts) -> bool:
    return all(queue.fenced >= queue.stamp for queue in facts.queues)


async def test_who_waits_for_one_workload_hears_of_it_its_pods_and_its_queue_and_of_nobody_else(
    cluster: PaperCluster, backend: KueueBackend
) -> None:
    mine, other = workload("mine", "g0000", Side.OWN), workload("other", "g0001", Side.OWN)
    cluster.add(mine)
    cluster.add(other)
    await see(backend, lambda facts: len(facts.workloads) == 5 and at_rest(facts), "both jobs, and no fence")
    async with aclosing(backend.changes(POOL, mine.key)) as changes:
        await anext(changes)
        news = asyncio.ensure_future(anext(changes))
        cluster.admit(other, "node-000000", datetime.now(UTC))
        await see(backend, lambda facts: sum(each.reserved for each in facts.workloads) == 4, "its admission")
        await asyncio.sleep(LONG)
        assert not news.done(), "another group's job, its pod and its queue are no news"
        cluster.admit(mine, "node-000000", datetime.now(UTC))
        await asyncio.wait_for(news, 10)


async def test_of_a_workload_that_is_not_seen_every_queue_is_told(cluster: PaperCluster, backend: KueueBackend) -> None:
    gone, other = workload("gone", "g0000", Side.OWN), workload("other", "g0001", Side.OWN)
    cluster.add(other)
    async with aclosing(backend.changes(POOL, gone.key)) as changes:
        await anext(changes)
        cluster.admit(other, "node-000000", datetime.now(UTC))
        await asyncio.wait_for(anext(changes), 10)


async def test_a_queue_is_used_by_who_holds_its_quota_and_by_who_waits_for_it(cluster: PaperCluster) -> None:
    view = View(cluster, lambda: datetime.now(UTC))
    queue = f"g0000.{POOL}.own"

    def users() -> set[tuple[str, bool]]:
        return {(each.uid, each.reserved) for each in view.users(queue)}

    view.caches.start()
    try:
        await view.caches.ready()
        assert users() == {("own-000000", True)}
        new = workload("new", "g0000", Side.OWN)
        cluster.add(new)
        cluster.add(workload("other", "g0001", Side.OWN))
        assert await view.workloads.until(lambda: users() == {("own-000000", True), ("new", False)}, 10)
        cluster.admit(new, "node-000000", datetime.now(UTC))
        assert await view.workloads.until(lambda: users() == {("own-000000", True), ("new", True)}, 10)
        assert {each.uid for each in view.users(f"g0001.{POOL}.own")} == {"own-000001", "other"}
        assert view.users("nobody's") == []
    finally:
        await view.caches.stop()
