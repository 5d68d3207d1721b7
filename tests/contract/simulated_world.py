"""The simulation as a `World`: on time moved by hand, or on the machine's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gpubank.domain.contract import Side, borrow_queue, own_queue
from gpubank.domain.facts import PoolFacts
from gpubank.ports import ObjectStore, QuotaBackend
from gpubank.simulation.clock import Clock, ManualClock, Timing
from gpubank.simulation.cluster import SimulatedCluster
from tests.contract.world import DeploymentRequest, JobRequest, priority_class, story

LOOK = 0.02
"""Seconds between two looks at the facts."""


class SimulatedWorld:
    """One pool on a cluster in memory."""

    def __init__(self, simulated: SimulatedCluster, pool: str = "h100") -> None:
        self.simulated = simulated
        self.backend: QuotaBackend = simulated
        self.objects: ObjectStore = simulated.objects
        self.cluster = simulated.name
        self.pool = pool
        self._nodes = 0

    def namespace(self, group: str) -> str:
        return f"team-{group}"

    async def submit_job(self, job: JobRequest) -> None:
        self._submit(job.manifest(self), job.priority)

    async def submit_deployment(self, deployment: DeploymentRequest) -> None:
        self._submit(deployment.manifest(self), deployment.priority)

    async def scale_deployment(self, group: str, name: str, replicas: int) -> None:
        assert self.simulated.scale_deployment(name, replicas, self.namespace(group))

    async def delete_job(self, group: str, name: str) -> None:
        assert self.simulated.delete_job(name, self.namespace(group))

    async def finish_job(self, group: str, name: str) -> None:
        assert self.simulated.finish_job(name, self.namespace(group))

    async def add_nodes(self, *gpus: int) -> None:
        for each in gpus:
            self._nodes += 1
            self.simulated.add_node(f"{self.pool}-node-{self._nodes}", each, pool=self.pool)

    async def lose_node(self, name: str) -> None:
        self.simulated.remove_node(name)

    async def add_foreign_queue(self, group: str, side: Side) -> None:
        self.simulated.add_foreign_queue(self._queue(group, side), pool=self.pool, nominal=3)

    async def quota(self, group: str, side: Side) -> int | None:
        return self.simulated.quota_of(self._queue(group, side))

    async def set_fail_safe(self, epoch: int) -> None:
        self.simulated.set_fail_safe(self.pool, epoch)

    async def pause(self, seconds: float) -> None:
        if isinstance(self.simulated.clock, ManualClock):
            await self.simulated.advance(seconds)
        else:
            await asyncio.sleep(seconds)

    async def wait_until(
        self, holds: Callable[[PoolFacts], object], *, timeout: float = 10.0, what: str = ""
    ) -> PoolFacts:
        end = self.simulated.clock.monotonic() + timeout
        while True:
            facts = await self.backend.observe(self.pool)
            if holds(facts):
                return facts
            if self.simulated.clock.monotonic() >= end:
                raise AssertionError(f"not within {timeout} s: {what or holds}\n{story(facts)}")
            await self.pause(LOOK)

    def _submit(self, manifest: dict[str, Any], priority: int) -> None:
        self.simulated.priority_classes[priority_class(priority)] = priority
        self.simulated.submit(manifest)

    def _queue(self, group: str, side: Side) -> str:
        return own_queue(group, self.pool) if side is Side.OWN else borrow_queue(group, self.pool)


@asynccontextmanager
async def simulated_world(
    clock: Clock | None = None, *, timing: Timing | None = None, pool: str = "h100"
) -> AsyncIterator[SimulatedWorld]:
    """Make a world that ends with the block; on time moved by hand unless a clock is given."""
    cluster = SimulatedCluster(clock or ManualClock(), timing=timing)
    if isinstance(cluster.clock, ManualClock):
        try:
            yield SimulatedWorld(cluster, pool)
        finally:
            await cluster.close()
    else:
        async with cluster.running():
            yield SimulatedWorld(cluster, pool)
