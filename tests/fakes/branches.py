"""Many banks in one: pools on clusters in memory of their own, one worker, one Temporal server, one ledger.

Scenarios that run at the same time do not wake each other: every pool has a cluster, and the worker's ports find it by
the pool's name.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from temporalio.worker import Worker

from gpubank.client import BankClient
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.contract import Side
from gpubank.domain.errors import BackendError
from gpubank.domain.facts import Mark, PoolFacts
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.terms import PoolTerms
from gpubank.ports import CheckpointHook, CheckpointStorage
from gpubank.simulation.clock import SystemClock, Timing
from gpubank.simulation.cluster import SimulatedCluster
from tests.contract.simulated_world import SimulatedWorld
from tests.contract.world import layout
from tests.fakes.bank import FakeBank
from tests.fakes.ledger import MemoryLedger
from tests.fakes.trainer import Trainers
from workers.wiring import make_workers

TIMING = Timing(batch=0.3, termination=0.1)


class Branches:
    """Implements `QuotaBackend`, `TermsSource` and `Notifier` for many pools."""

    def __init__(self) -> None:
        self.banks: dict[str, FakeBank] = {}

    def cluster(self, pool: str) -> SimulatedCluster:
        """Return the pool's cluster."""
        if pool not in self.banks:
            raise BackendError(f"no pool {pool!r}")
        return self.banks[pool].world.simulated

    async def lay_out(self, layout: PoolLayout) -> LayoutReport:
        return await self.cluster(layout.pool).lay_out(layout)

    async def remove(self, pool: str) -> LayoutReport:
        return await self.cluster(pool).remove(pool)

    async def check_settings(self) -> Sequence[LayoutProblem]:
        return ()

    async def observe(self, pool: str) -> PoolFacts:
        return await self.cluster(pool).observe(pool)

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        await self.cluster(pool).write_quota(pool, group, kind, nominal=nominal, revision=revision)

    async def take_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        await self.cluster(pool).take_back(pool, group, kind, nominal=nominal, revision=revision)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        await self.cluster(pool).stop(pool, workload, mark, seen=seen)

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        await self.cluster(pool).resume(pool, workload, mark, seen=seen)

    async def nudge(self, pool: str, workload: WorkloadKey) -> None:
        await self.cluster(pool).nudge(pool, workload)

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        await self.cluster(pool).recount(pool, group, kind)

    async def changes(self, pool: str, about: WorkloadKey | None = None) -> AsyncGenerator[None, None]:
        async with contextlib.aclosing(self.cluster(pool).changes(pool, about)) as changes:
            async for _ in changes:
                yield

    async def terms(self, pool: str) -> PoolTerms | None:
        return await self.banks[pool].terms.terms(pool) if pool in self.banks else None

    async def notify(self, *, key: str, pool: str, workload: WorkloadKey, reason: str, message: str) -> None:
        notices = self.cluster(pool).notices
        await notices.notify(key=key, pool=pool, workload=workload, reason=reason, message=message)


class ManyBanks:
    """Opens pools for scenarios that run at the same time."""

    def __init__(
        self,
        client: BankClient,
        *,
        hook: CheckpointHook | None = None,
        storage: CheckpointStorage | None = None,
        attest: AttestPolicy | None = None,
    ) -> None:
        self.client, self.branches, self.ledger = client, Branches(), MemoryLedger()
        self.trainers = Trainers()
        self._hook, self._storage = hook or self.trainers, storage or self.trainers
        self._attest = attest or AttestPolicy()
        self._workers: tuple[Worker, ...] = ()
        self._runs: list[asyncio.Task[Any]] = []
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def running(self, cluster: str = "local") -> AsyncIterator["ManyBanks"]:
        """Run the workers until the block ends, and every pool that was opened in it."""
        # What no scenario asks for is as a bank of one pool has it.
        nobody = FakeBank(SimulatedWorld(SimulatedCluster(SystemClock(), name=cluster)), self.client, {})
        self._ports = replace(
            nobody.ports,
            quota=self.branches,
            ledger=self.ledger,
            terms=self.branches,
            notifier=self.branches,
            hook=self._hook,
            storage=self._storage,
            attest=self._attest,
        )
        self._cluster = cluster
        await self.start_workers()
        try:
            async with self._stack:
                yield self
        finally:
            await self.stop_workers()

    async def start_workers(self) -> None:
        self._workers = make_workers(self.client.temporal, self._cluster, self._ports, self.client)
        self._runs = [asyncio.create_task(worker.run()) for worker in self._workers]

    async def stop_workers(self) -> None:
        await asyncio.gather(*(worker.shutdown() for worker in self._workers))
        await asyncio.gather(*self._runs)

    async def open(
        self, pool: str, guarantees: Mapping[str, int], *, nodes: tuple[int, ...] = (8, 8), timing: Timing = TIMING
    ) -> FakeBank:
        """Open a pool with a controller; it runs until the end."""
        simulated = SimulatedCluster(SystemClock(), name=self._cluster, timing=timing)
        await self._stack.enter_async_context(simulated.running())
        world = SimulatedWorld(simulated, pool)
        await world.add_nodes(*nodes)
        await simulated.lay_out(layout(world, *guarantees))
        bank = self.branches.banks[pool] = FakeBank(
            world, self.client, guarantees, ledger=self.ledger, trainers=self.trainers
        )
        controller = asyncio.create_task(bank.loop.run(), name=f"controller of {pool}")
        self._stack.push_async_callback(_end, controller)
        return bank


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
