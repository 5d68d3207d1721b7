"""What writing quotas asks of the API server, and that a watch that lags behind never lets a wrong write through."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from benchmarks.paper_cluster import PaperCluster
from benchmarks.worlds import CLUSTER, POOL, Size, World, group_name, world
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, COHORT, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.kueue.quota import RECOUNTED_ANNOTATION
from gpubank.domain.contract import (
    FAIL_SAFE_EPOCH_ANNOTATION,
    REVISION_ANNOTATION,
    Side,
    cohort_name,
    own_queue,
)
from gpubank.domain.errors import BackendError, ConflictError

GROUP = group_name(0)
QUEUE = own_queue(GROUP, POOL)
REVISION = 1_000_000


class Counted(PaperCluster):
    """Counts what is asked, and can keep what others do from the watches."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.read: list[str] = []
        self.written: list[str] = []
        self.meddled = 0
        """How many of the next writes somebody else comes before."""

        self._put(COHORT, {"metadata": {"name": cohort_name(POOL), "annotations": {}}, "spec": {}, "status": {}})

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        self.read.append(name)
        await asyncio.sleep(0)  # an answer takes a moment, and is of the moment when it was asked
        return await super().get(kind, name, namespace)

    async def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Object, *, version: str = "", subresource: str = ""
    ) -> Object:
        self.written.append(name)
        if self.meddled:
            self.meddled -= 1
            self.behind(kind, name)
        return await super().patch(kind, name, namespace, change, version=version, subresource=subresource)

    def behind(self, kind: Kind, name: str, **metadata_and_spec: dict[str, Any]) -> None:
        """Have somebody edit an object, of which no watch tells."""
        body = self._objects[kind]["", name]
        edited = {part: {**body[part], **change} for part, change in metadata_and_spec.items()}
        events, self._events = self._events, {}
        self._put(kind, {**body, **edited, "metadata": {**body["metadata"], **edited.get("metadata", {})}})
        self._events = events

    def stamp(self, name: str) -> int:
        return queues.stamp(self._objects[CLUSTER_QUEUE]["", name])


@pytest.fixture
async def cluster() -> Counted:
    return Counted(world(Size(groups=30, loans=0)))


@pytest.fixture
async def backend(cluster: Counted) -> AsyncIterator[KueueBackend]:
    connection: Any = cluster
    async with KueueBackend(connection, cluster=CLUSTER) as backend:
        await backend.observe(POOL)
        cluster.read.clear()
        yield backend


async def lower(backend: KueueBackend, group: str = GROUP, *, nominal: int = 0, revision: int = REVISION) -> None:
    await backend.write_quota(POOL, group, Side.OWN, nominal=nominal, revision=revision)


async def test_many_quotas_at_once_are_a_write_each_and_one_read_of_the_cohort(
    cluster: Counted, backend: KueueBackend
) -> None:
    groups = [group_name(index) for index in range(20)]
    await asyncio.gather(*(lower(backend, group) for group in groups))
    assert cluster.read == [cohort_name(POOL)]
    assert sorted(cluster.written) == sorted(own_queue(group, POOL) for group in groups)
    assert {cluster.nominal(group, Side.OWN) for group in groups} == {0}


async def test_a_later_write_reads_the_cohort_anew(cluster: Counted, backend: KueueBackend) -> None:
    await lower(backend)
    cluster.behind(COHORT, cohort_name(POOL), metadata={"annotations": {FAIL_SAFE_EPOCH_ANNOTATION: "7"}})
    with pytest.raises(ConflictError, match="fail-safe epoch 7"):
        await lower(backend, revision=REVISION + 1)
    assert cluster.stamp(QUEUE) == REVISION


async def test_a_queue_that_has_changed_unseen_is_read_and_written(cluster: Counted, backend: KueueBackend) -> None:
    cluster.behind(
        CLUSTER_QUEUE, QUEUE, metadata={"labels": cluster._objects[CLUSTER_QUEUE]["", QUEUE]["metadata"]["labels"]}
    )
    await lower(backend)
    assert cluster.read.count(QUEUE) == 1
    assert (cluster.nominal(GROUP, Side.OWN), cluster.stamp(QUEUE)) == (0, REVISION)


async def test_a_queue_that_others_keep_writing_to_is_read_anew_each_time(
    cluster: Counted, backend: KueueBackend
) -> None:
    cluster.meddled = 4
    await lower(backend)
    assert (cluster.read.count(QUEUE), cluster.written) == (4, [QUEUE] * 5)
    assert (cluster.nominal(GROUP, Side.OWN), cluster.stamp(QUEUE)) == (0, REVISION)


async def test_whoever_always_comes_too_late_says_so_and_has_written_nothing(
    cluster: Counted, backend: KueueBackend
) -> None:
    before = cluster.nominal(GROUP, Side.OWN)
    cluster.meddled = 5
    with pytest.raises(ConflictError):
        await lower(backend)
    assert (cluster.nominal(GROUP, Side.OWN), len(cluster.written)) == (before, 5)


async def test_a_queue_that_the_fail_safe_took_unseen_is_left_alone(cluster: Counted, backend: KueueBackend) -> None:
    before = cluster.nominal(GROUP, Side.OWN)
    cluster.behind(CLUSTER_QUEUE, QUEUE, spec={"cohortName": cohort_name(POOL)})
    with pytest.raises(ConflictError, match="stands in Cohort"):
        await lower(backend)
    assert cluster.nominal(GROUP, Side.OWN) == before


async def test_a_later_revision_that_was_written_unseen_stays(cluster: Counted, backend: KueueBackend) -> None:
    cluster.behind(CLUSTER_QUEUE, QUEUE, metadata={"annotations": {REVISION_ANNOTATION: str(REVISION + 1)}})
    with pytest.raises(ConflictError, match=f"bears revision {REVISION + 1}"):
        await lower(backend)
    assert cluster.stamp(QUEUE) == REVISION + 1


async def test_a_quota_that_seems_to_stand_already_is_looked_up(cluster: Counted, backend: KueueBackend) -> None:
    await lower(backend)
    resource = queues.resource_of(cluster._objects[CLUSTER_QUEUE]["", QUEUE])
    cluster.behind(CLUSTER_QUEUE, QUEUE, spec={"resourceGroups": queues.resource_groups(POOL, resource, 5)})
    await lower(backend)
    assert cluster.nominal(GROUP, Side.OWN) == 0


async def test_a_queue_that_left_the_fail_safe_unseen_is_written(cluster: Counted, backend: KueueBackend) -> None:
    body = cluster._objects[CLUSTER_QUEUE]["", QUEUE]
    cluster._put(CLUSTER_QUEUE, {**body, "spec": {**body["spec"], "cohortName": cohort_name(POOL)}})
    await asyncio.sleep(0.05)  # the watch tells it
    cluster.behind(CLUSTER_QUEUE, QUEUE, spec={"cohortName": None})
    await lower(backend)
    assert cluster.nominal(GROUP, Side.OWN) == 0


async def test_a_queue_that_is_not_there_is_an_error_in_words(backend: KueueBackend) -> None:
    with pytest.raises(BackendError, match="lay the pool out first"):
        await lower(backend, "nobody")


async def test_a_count_is_asked_for_by_one_write_and_every_one_is_another(
    cluster: Counted, backend: KueueBackend
) -> None:
    before = cluster.nominal(GROUP, Side.OWN), cluster.stamp(QUEUE)
    seen = set()
    for _ in range(3):
        await backend.recount(POOL, GROUP, Side.OWN)
        seen.add(cluster._objects[CLUSTER_QUEUE]["", QUEUE]["metadata"]["annotations"][RECOUNTED_ANNOTATION])
    assert (cluster.read, cluster.written) == ([], [QUEUE] * 3)
    assert len(seen) == 3, "what does not change is no change, and Kueue would not hear of it"
    assert (cluster.nominal(GROUP, Side.OWN), cluster.stamp(QUEUE)) == before


async def test_nobody_elses_queue_is_touched_for_its_count(cluster: Counted, backend: KueueBackend) -> None:
    body = cluster._objects[CLUSTER_QUEUE]["", QUEUE]
    cluster._put(CLUSTER_QUEUE, {**body, "spec": {**body["spec"], "cohortName": cohort_name(POOL)}})
    await asyncio.sleep(0.05)  # the watch tells it
    await backend.recount(POOL, GROUP, Side.OWN)
    await backend.recount(POOL, "nobody", Side.OWN)
    assert cluster.written == []


async def test_a_count_that_cannot_be_asked_for_comes_by_itself(
    cluster: Counted, backend: KueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Object:
        raise BackendError("the API server is away")

    monkeypatch.setattr(cluster, "patch", away)
    await backend.recount(POOL, GROUP, Side.OWN)
