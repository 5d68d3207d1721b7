"""What the caches cost a real API server, and how they come through its failures; and who is told by Events."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.events import KubernetesNotifier
from gpubank.adapters.kubernetes.kinds import EVENT, POD, Object
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.domain.contract import Side
from gpubank.domain.errors import BackendError
from gpubank.domain.facts import PoolFacts
from gpubank.lab import Lab
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.world import JobRequest, job_of, layout, the
from tests.support.waiting import AFTER_AN_OUTAGE


@pytest.fixture
async def world(lab: Lab) -> AsyncIterator[KueueWorld]:
    async with kueue_world(lab, "ads") as world:
        await world.backend.lay_out(layout(world, "ads"))
        yield world


class Counting(Connection):
    """Counts calls by method; watches are none."""

    def count(self) -> dict[str, int]:
        return self.__dict__.setdefault("_calls", {})  # type: ignore[no-any-return]

    async def call(self, method: str, path: str, **arguments: object) -> Object:
        self.count()[method] = self.count().get(method, 0) + 1
        return await super().call(method, path, **arguments)  # type: ignore[arg-type]


async def test_looking_costs_no_call_and_laying_out_what_stands_neither(lab: Lab, world: KueueWorld) -> None:
    await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=8, revision=1)
    await world.wait_until(lambda facts: all(each.fenced == each.stamp for each in facts.queues))
    async with Counting.open(lab.kubeconfig) as connection, KueueBackend(connection, cluster="lab") as backend:
        await backend.observe(world.pool)
        await asyncio.sleep(1.0)
        await backend.observe(world.pool)  # the fence that this process has waited out is confirmed once
        connection.count().clear()
        for _ in range(20):
            await backend.observe(world.pool)
            report = await backend.lay_out(layout(world, "ads"))
            assert report.changed == ()
        assert connection.count() == {}


async def test_two_processes_see_what_one_of_them_writes(lab: Lab, world: KueueWorld) -> None:
    async with Connection.open(lab.kubeconfig) as connection, KueueBackend(connection, cluster="lab") as other:
        await other.observe(world.pool)
        await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=8, revision=3)
        for _ in range(100):
            (found,) = [each for each in (await other.observe(world.pool)).queues if each.kind is Side.OWN]
            if (found.nominal, found.stamp, found.fenced) == (8, 3, 3):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the other process still sees {found!r}")


async def test_an_event_tells_the_workload_and_its_job_once_per_key(world: KueueWorld) -> None:
    await world.submit_job(JobRequest("ads", "train"))
    facts = await world.wait_until(lambda facts: job_of(facts, "train"))
    key = the(facts, "train").key
    notifier = KubernetesNotifier(world.connection)
    for _ in range(2):
        await notifier.notify(key="recall/7", pool=world.pool, workload=key, reason="Recalled", message="save now")
    await notifier.notify(key="recall/8", pool=world.pool, workload=key, reason="Recalled", message="save now")
    events, _, _ = await world.connection.page(EVENT, selectors={"fieldSelector": "reason=Recalled"})
    told = sorted(
        (each["involvedObject"]["kind"], each["involvedObject"]["name"])
        for each in events
        if each["metadata"]["namespace"] == key.namespace
    )
    assert told == [("Job", "train")] * 2 + [("Workload", key.name)] * 2
    assert all(each["involvedObject"].get("uid") for each in events)


async def test_the_job_of_a_workload_that_is_gone_is_still_told(world: KueueWorld) -> None:
    await world.submit_job(JobRequest("ads", "train"))
    facts = await world.wait_until(lambda facts: job_of(facts, "train"))
    key = the(facts, "train").key.model_copy(update={"uid": str(uuid.uuid4())})
    await KubernetesNotifier(world.connection).notify(
        key="gone", pool=world.pool, workload=key, reason="Closed", message="it is over"
    )
    events, _, _ = await world.connection.page(EVENT, selectors={"fieldSelector": "reason=Closed"})
    kinds = [each["involvedObject"]["kind"] for each in events if each["metadata"]["namespace"] == key.namespace]
    assert sorted(kinds) == ["Job", "Workload"]


async def _seen(backend: KueueBackend, pool: str, jobs: int) -> PoolFacts:
    async with asyncio.timeout(AFTER_AN_OUTAGE):
        while True:
            facts = await backend.observe(pool)
            if len(facts.workloads) == jobs:
                return facts
            await asyncio.sleep(0.1)


@pytest.mark.lab
@pytest.mark.timeout(300)
async def test_the_caches_outlive_the_api_server_without_listing_again() -> None:
    """An API server that was away for a moment still serves the versions in between."""
    lab = Lab(f"outage-{uuid.uuid4().hex[:8]}", nodes=0)
    await asyncio.to_thread(lab.up)
    try:
        async with kueue_world(lab, "ads") as world:
            await world.backend.lay_out(layout(world, "ads"))
            await world.submit_job(JobRequest("ads", "before"))
            await _seen(world.kueue, world.pool, 1)
            await asyncio.to_thread(lab.kill, "kube-apiserver")
            with pytest.raises(BackendError, match="check that the API server is up"):
                await world.connection.get(POD, "nobody", "default")
            assert len((await world.backend.observe(world.pool)).workloads) == 1  # late, not wrong
            await asyncio.to_thread(lab.start, "kube-apiserver")
            await world.submit_job(JobRequest("ads", "after"))
            await _seen(world.kueue, world.pool, 2)
    finally:
        await asyncio.to_thread(lab.clean)
