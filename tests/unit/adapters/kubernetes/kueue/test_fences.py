"""What confirming fences asks of the API server, and what it takes for confirmed."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from benchmarks.paper_cluster import PaperCluster
from benchmarks.worlds import CLUSTER, POOL, Size, World, group_name, world
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.decide.fence import MINIMUM_WAIT
from gpubank.domain.contract import GROUP_LABEL, POOL_LABEL, REVISION_ANNOTATION, Side, own_queue
from gpubank.domain.facts import PoolFacts, QueueFacts

GROUPS = 60
BURST = [group_name(index) for index in range(25)]
"""Groups whose queues move at the same time: more than a sixth of the pool."""

STAMP = 1_000_000


class Counted(PaperCluster):
    """Counts reads of queues, and can have them take their time."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.read: list[str] = []
        self.asked: list[str] = []
        """Label selectors of lists of queues."""

        self.hold: asyncio.Event | None = None

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        if kind == CLUSTER_QUEUE:
            self.read.append(name)
        found = await super().get(kind, name, namespace)
        if self.hold is not None:
            await self.hold.wait()  # the answer is of the moment when it was asked
        return found

    async def all(self, kind: Kind, *, selectors: Mapping[str, str] | None = None) -> list[Object]:
        assert kind == CLUSTER_QUEUE
        self.asked.append((selectors or {})["labelSelector"])
        chosen = self.asked[-1].rpartition("(")[2].removesuffix(")").split(",")
        found = await super().all(kind, selectors=selectors)
        return [body for body in found if body["metadata"]["labels"][GROUP_LABEL] in chosen]

    async def move(self, *groups: str, stamp: int = STAMP) -> None:
        """Have own queues written anew; Kueue acknowledges it at once."""
        for group in groups:
            change = {"metadata": {"annotations": {REVISION_ANNOTATION: str(stamp)}}}
            await self.patch(CLUSTER_QUEUE, own_queue(group, POOL), None, change)

    def edit(self, group: str, nominal: int) -> None:
        """Have somebody else edit an own queue; Kueue has not taken it in yet."""
        body = self._objects[CLUSTER_QUEUE]["", own_queue(group, POOL)]
        metadata = {**body["metadata"], "generation": body["metadata"]["generation"] + 1}
        spec = {**body["spec"], "resourceGroups": queues.resource_groups(POOL, queues.resource_of(body), nominal)}
        self._put(CLUSTER_QUEUE, {**body, "metadata": metadata, "spec": spec})


def own(facts: PoolFacts, group: str) -> QueueFacts:
    queue = facts.queue(group, Side.OWN)
    assert queue is not None, group
    return queue


def fenced(facts: PoolFacts, *groups: str) -> list[int]:
    return [own(facts, group).fenced for group in groups]


async def wait_out() -> None:
    await asyncio.sleep(MINIMUM_WAIT + 0.05)


async def earned(cluster: Counted, backend: KueueBackend, *groups: str) -> None:
    """Have own queues move, and their fences be earned but not confirmed yet."""
    cluster.asked.clear()
    await cluster.move(*groups)
    await backend.observe(POOL)
    await wait_out()


@pytest.fixture
async def cluster() -> Counted:
    return Counted(world(Size(groups=GROUPS, loans=0)))


@pytest.fixture
async def backend(cluster: Counted) -> AsyncIterator[KueueBackend]:
    """A backend that has looked for a while: every fence of the start is confirmed."""
    connection: Any = cluster
    async with KueueBackend(connection, cluster=CLUSTER) as backend:
        await backend.observe(POOL)
        await wait_out()
        await backend.observe(POOL)
        yield backend


async def test_after_a_start_one_request_confirms_all_fences(cluster: Counted, backend: KueueBackend) -> None:
    assert (len(cluster.asked), cluster.read) == (1, [])


async def test_queues_that_move_are_asked_for_by_their_groups_once_and_the_rest_of_the_pool_is_not_listed(
    cluster: Counted, backend: KueueBackend
) -> None:
    await earned(cluster, backend, *BURST)
    assert fenced(await backend.observe(POOL), *BURST) == [STAMP] * len(BURST)
    assert cluster.asked == [f"{POOL_LABEL}={POOL},{GROUP_LABEL} in ({','.join(BURST)})"]
    for _ in range(20):
        await backend.observe(POOL)
    assert (len(cluster.asked), cluster.read) == (1, [])


async def test_a_few_queues_are_read_one_by_one(cluster: Counted, backend: KueueBackend) -> None:
    await earned(cluster, backend, *BURST[:8])
    assert fenced(await backend.observe(POOL), *BURST[:8]) == [STAMP] * 8
    for _ in range(20):
        await backend.observe(POOL)
    assert (cluster.asked, sorted(cluster.read)) == ([], [own_queue(group, POOL) for group in BURST[:8]])


async def test_all_who_look_at_the_same_time_share_the_reads(cluster: Counted, backend: KueueBackend) -> None:
    await earned(cluster, backend, *BURST)
    looks = await asyncio.gather(*(backend.observe(POOL) for _ in range(10)))
    assert all(fenced(facts, *BURST) == [STAMP] * len(BURST) for facts in looks)
    assert (len(cluster.asked), cluster.read) == (1, [])


async def test_one_request_asks_for_a_hundred_groups_at_most() -> None:
    cluster = Counted(world(Size(groups=250, loans=0)))
    connection: Any = cluster
    async with KueueBackend(connection, cluster=CLUSTER) as backend:
        await backend.observe(POOL)
        await wait_out()
        facts = await backend.observe(POOL)
    assert all(queue.fenced == queue.stamp for queue in facts.queues)
    assert [asked.count(",g") + 1 for asked in cluster.asked] == [100, 100, 50]


async def test_who_is_cut_off_while_it_reads_leaves_the_reading_to_the_next(
    cluster: Counted, backend: KueueBackend
) -> None:
    await earned(cluster, backend, "g0000")
    cluster.hold = asyncio.Event()
    first, second = (asyncio.create_task(backend.observe(POOL)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    cluster.hold.set()
    assert fenced(await second, "g0000") == [STAMP]
    assert len(cluster.read) == 2


async def test_a_read_that_began_before_a_fence_was_earned_confirms_nothing(
    cluster: Counted, backend: KueueBackend
) -> None:
    await earned(cluster, backend, "g0000")
    held = cluster.hold = asyncio.Event()
    late = asyncio.create_task(backend.observe(POOL))
    await asyncio.sleep(0.01)
    assert len(cluster.read) == 1
    await cluster.move("g0000", stamp=STAMP + 1)
    await wait_out()  # the second fence is earned while the read for the first one is on its way
    second = asyncio.create_task(backend.observe(POOL))
    await asyncio.sleep(0.01)
    cluster.hold = None
    held.set()
    await late
    assert fenced(await second, "g0000") == [STAMP + 1]
    assert len(cluster.read) == 2


async def test_what_a_read_shows_to_be_edited_meanwhile_is_not_fenced(cluster: Counted, backend: KueueBackend) -> None:
    await earned(cluster, backend, "g0000")
    cluster._events.clear()  # the watch is late from here on
    cluster.edit("g0000", 77)
    facts = await backend.observe(POOL)
    assert fenced(facts, "g0000") == [-1]
    assert own(facts, "g0000").nominal == 77


async def test_a_watch_that_is_late_does_not_make_old_reservations_look_fenced(
    cluster: Counted, backend: KueueBackend
) -> None:
    await cluster.move("g0000")
    await backend.observe(POOL)
    cluster._events.clear()  # the watch is late from here on
    body = cluster._objects[CLUSTER_QUEUE]["", own_queue("g0000", POOL)]
    body["status"]["flavorsReservation"] = [
        {"name": POOL, "resources": [{"name": queues.resource_of(body), "total": "5"}]}
    ]
    cluster._put(CLUSTER_QUEUE, body)
    began = time.monotonic()
    while fenced(facts := await backend.observe(POOL), "g0000") != [STAMP]:
        assert time.monotonic() - began < 10
        await asyncio.sleep(0.02)
    assert own(facts, "g0000").reserved == 5


async def test_a_queue_that_is_gone_from_the_server_is_not_confirmed(cluster: Counted, backend: KueueBackend) -> None:
    await earned(cluster, backend, "g0000")
    del cluster._objects[CLUSTER_QUEUE]["", own_queue("g0000", POOL)]
    assert fenced(await backend.observe(POOL), "g0000") == [1], "what was confirmed before"
