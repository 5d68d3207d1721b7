"""A whole bank in one process: simulated cluster, ledger in memory, the real controller, workers and Temporal."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from gpubank.client import BankClient
from gpubank.controller.pool_loop import PoolLoop
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line
from gpubank.domain.policy import Approval, OnCheckpointFailure
from gpubank.domain.pool import DEFAULT_RESOURCE, Freeze, OnOverdue
from gpubank.domain.recall import LoanPhase, LoanState, ReclaimState, loan_id, reclaim_id
from gpubank.domain.terms import GroupTerms, PoolTerms
from gpubank.simulation.clock import SystemClock, Timing
from gpubank.simulation.cluster import SimulatedCluster
from tests.contract.simulated_world import SimulatedWorld
from tests.contract.world import JobRequest, job_of, layout
from tests.fakes.ledger import MemoryLedger
from tests.fakes.trainer import Trainers
from workers.wiring import Ports, make_workers

POOL = "h100"
LOOK = 0.03
T = TypeVar("T")

HOOK: Mapping[str, str] = {
    "checkpoint.platform.aik8s.run/transport": "http",
    "checkpoint.platform.aik8s.run/endpoint": "http://127.0.0.1:1",
    "checkpoint.platform.aik8s.run/storage": "mem://checkpoints/run",
}


class TermsBoard:
    """Implements `TermsSource`; tests change what it says."""

    def __init__(self, cluster: str, guarantees: Mapping[str, int], pool: str = POOL) -> None:
        self.now = PoolTerms(
            cluster=cluster,
            pool=pool,
            resource_name=DEFAULT_RESOURCE,
            capacity=sum(guarantees.values()),
            groups=tuple(
                GroupTerms(
                    group=name,
                    guaranteed=gpus,
                    borrow_limit=64,
                    lending_limit=gpus,
                    grace_period=timedelta(seconds=30),
                    namespaces=(f"team-{name}",),
                )
                for name, gpus in guarantees.items()
            ),
            max_grace_period=timedelta(minutes=10),
            max_termination=timedelta(seconds=60),
            max_time_to_return=timedelta(minutes=20),
            resume_after=timedelta(milliseconds=200),
            min_run_time=timedelta(0),
            fail_safe_after=timedelta(minutes=5),
        )

        self.gone = False
        """Whether the pool's object is gone."""

    async def terms(self, pool: str) -> PoolTerms | None:
        return self.now if pool == self.now.pool and not self.gone else None

    def set(self, **update: Any) -> None:
        """Change terms of the pool."""
        self.now = self.now.model_copy(update=update)

    def set_group(self, name: str, **update: Any) -> None:
        """Change terms of one group."""
        groups = tuple(g.model_copy(update=update) if g.group == name else g for g in self.now.groups)
        self.set(groups=groups)

    def freeze(self) -> None:
        self.set(freeze=Freeze(by="ops", reason="an incident"))

    def thaw(self) -> None:
        self.set(freeze=None)


class FakeBank:
    """What a test does with a bank."""

    def __init__(
        self,
        world: SimulatedWorld,
        client: BankClient,
        guarantees: Mapping[str, int],
        *,
        ledger: MemoryLedger | None = None,
        trainers: Trainers | None = None,
    ) -> None:
        self.world, self.client = world, client
        self.cluster, self.pool = world.cluster, world.pool
        self.ledger, self.trainers = ledger or MemoryLedger(), trainers or Trainers()
        self.terms = TermsBoard(world.cluster, guarantees, self.pool)
        simulated = world.simulated
        self.ports = Ports(
            quota=simulated,
            ledger=self.ledger,
            terms=self.terms,
            notifier=simulated.notices,
            hook=self.trainers,
            storage=self.trainers,
            leases=simulated.leases,
            nodes=simulated.servicing,
        )
        self.loop = PoolLoop(
            world.cluster,
            self.pool,
            backend=simulated,
            ledger=self.ledger,
            processes=client,
            notifier=simulated.notices,
            terms=lambda: None if self.terms.gone else self.terms.now,
            now=lambda: datetime.now(UTC),
            leases=simulated.leases,
            resync=timedelta(seconds=2),
        )
        self.look = LOOK
        """Seconds between two looks."""

        self._workers: tuple[Worker, ...] = ()
        self._tasks: list[asyncio.Task[Any]] = []

    # ---- processes

    async def start_workers(self) -> None:
        self._workers = make_workers(self.client.temporal, self.cluster, self.ports, self.client)
        self._tasks = [asyncio.create_task(worker.run()) for worker in self._workers]

    async def stop_workers(self) -> None:
        await asyncio.gather(*(worker.shutdown() for worker in self._workers))
        await asyncio.gather(*self._tasks)
        self._workers, self._tasks = (), []

    # ---- jobs

    async def borrow(self, group: str, name: str, gpus: int = 8, *, hook: bool = False, pods: int = 1) -> WorkloadFacts:
        """Submit a borrow job and see it placed."""
        await self.world.submit_job(
            JobRequest(
                group=group,
                name=name,
                side=Side.BORROW,
                pods=pods,
                gpus_per_pod=gpus // pods,
                labels={"platform.aik8s.run/retryable": "false"} if hook else {},
                annotations=HOOK if hook else {},
            )
        )
        return await self.placed(name)

    async def own(
        self,
        group: str,
        name: str,
        gpus: int = 8,
        *,
        pods: int = 1,
        priority: int = 0,
        hook: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Submit an own job."""
        await self.world.submit_job(
            JobRequest(
                group=group,
                name=name,
                pods=pods,
                gpus_per_pod=gpus // pods,
                priority=priority,
                labels=labels or {},
                annotations=HOOK if hook else {},
            )
        )

    async def placed(self, name: str, timeout: float = 60) -> WorkloadFacts:
        """See a job's pods on nodes."""

        async def look() -> WorkloadFacts | None:
            workload = job_of(await self.world.backend.observe(self.pool), name)
            return workload if workload is not None and workload.placed else None

        return await self.until(look, f"{name} is placed", timeout)

    async def workload(self, name: str) -> WorkloadFacts | None:
        return job_of(await self.world.backend.observe(self.pool), name)

    # ---- books and processes

    async def demands(self) -> tuple[Demand, ...]:
        return (await self.ledger.books(self.cluster, self.pool)).demands

    async def lines(self) -> tuple[Line, ...]:
        return (await self.ledger.books(self.cluster, self.pool)).lines

    async def nothing_open(self) -> bool:
        """Whether no line is open."""
        return not await self.lines()

    def reasons(self, job: str) -> set[str]:
        """Reasons of all events about a job or its Workload."""
        return {event.reason for event in self.world.simulated.events.on() if job in event.name}

    def loan(self, workload: WorkloadFacts) -> str:
        return loan_id(self.cluster, workload.key.uid)

    def reclaim(self, lender: str) -> str:
        return reclaim_id(self.cluster, self.pool, lender)

    async def loan_in(self, workload: WorkloadFacts, *phases: LoanPhase, timeout: float = 60) -> LoanState:
        """See a Loan in one of the phases."""

        async def look() -> LoanState | None:
            with contextlib.suppress(Exception):
                state = await self.client.loan_state(self.loan(workload))
                return state if state.phase in phases else None
            return None

        return await self.until(look, f"loan of {workload.key.job} is {' or '.join(phases)}", timeout)

    async def reclaim_where(
        self, lender: str, holds: Callable[[ReclaimState], bool], timeout: float = 60
    ) -> ReclaimState:
        """See a Reclaim for which something holds."""

        async def look() -> ReclaimState | None:
            with contextlib.suppress(Exception):
                state = await self.client.reclaim_state(self.reclaim(lender))
                return state if holds(state) else None
            return None

        return await self.until(look, f"reclaim of {lender}", timeout)

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str, timeout: float = 60) -> T:
        """Look until there is something to see; fail, saying what was waited for.

        What a worker had in hand when it died is handed out again after 30 s.
        """
        end = asyncio.get_running_loop().time() + timeout
        while True:
            found = await look()
            if found:
                return found
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"not within {timeout} s: {what}\n{await self.story()}")
            await asyncio.sleep(self.look)

    async def holds(self, check: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """See that something stays true."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            assert await check(), await self.story()
            await asyncio.sleep(self.look)

    async def story(self) -> str:
        """Everything that helps to understand a failed test."""
        books = await self.ledger.books(self.cluster, self.pool)
        facts = await self.world.backend.observe(self.pool)
        lines = [f"loop: {self.loop.problem}", "transactions:"]
        lines += [f"  {tx.at:%H:%M:%S.%f} {tx.actor}: {tx.note or tx.key}" for tx in self.ledger.history]
        lines += ["open lines:"] + [f"  {x.line_id} {x.lender}->{x.borrower} {x.gpus} {x.state}" for x in books.lines]
        lines += ["demands:"] + [f"  {d.demand_id} {d.state} idle={d.idle} of {d.gpus}" for d in books.demands]
        lines += ["queues:"] + [
            f"  {q.name} {q.reserved}/{q.nominal} stamp={q.stamp} fenced={q.fenced}" for q in facts.queues
        ]
        lines += ["workloads:"]
        lines += [
            f"  {w.key.job} active={w.active} reserved={w.reserved} placed={w.placed} {w.wait} mark={w.mark}"
            for w in facts.workloads
        ]
        lines += [
            f"{event.kind} {event.name}: {event.reason} {event.message}" for event in self.world.simulated.events.on()
        ]
        async for found in self.client.temporal.list_workflows():
            handle: WorkflowHandle[Any, Any] = self.client.temporal.get_workflow_handle(found.id)
            description = await handle.describe()
            lines.append(f"{found.id}: {found.status and found.status.name} {found.typed_search_attributes}")
            lines += [
                f"    pending {pending.activity_type.name} attempt {pending.attempt}: {pending.last_failure.message}"
                for pending in description.raw_description.pending_activities
            ]
        return "\n".join(lines)


async def in_charge(bank: FakeBank, *, scheduler: bool) -> None:
    async def look() -> bool:
        return (await bank.world.backend.observe(POOL)).in_fail_safe is scheduler

    await bank.until(look, "the scheduler is in charge" if scheduler else "the bank is in charge again", 60)


@asynccontextmanager
async def fake_bank(
    client: BankClient, guarantees: Mapping[str, int], *, nodes: tuple[int, ...] = (8, 8), cluster: str = "local"
) -> AsyncIterator[FakeBank]:
    """Open a bank; its workers run from the start and stop with the block."""
    timing = Timing(batch=0.3, termination=0.1)
    simulated = SimulatedCluster(SystemClock(), name=cluster, timing=timing)
    async with simulated.running():
        world = SimulatedWorld(simulated, POOL)
        await world.add_nodes(*nodes)
        await simulated.lay_out(layout(world, *guarantees))
        bank = FakeBank(world, client, guarantees)
        await bank.start_workers()
        controller = asyncio.create_task(bank.loop.run())
        try:
            yield bank
        finally:
            controller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await controller
            await bank.stop_workers()


__all__ = ["POOL", "Approval", "FakeBank", "Mapping", "OnCheckpointFailure", "OnOverdue", "fake_bank", "in_charge"]
