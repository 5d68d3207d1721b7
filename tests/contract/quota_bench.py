"""What the tests of a quota backend share: a pool laid out, a bank whose books are a counter, questions to facts."""

from collections.abc import Awaitable, Callable

from gpubank.domain.contract import Side
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import Mark, PoolFacts, QueueFacts, WorkloadFacts
from tests.contract.world import JobRequest, World, job_of, the

GROUPS = ("ads", "maps", "search")
LOAN = "loan/local/7"


def mark(step: str, term: int = 1, loan: str = LOAN) -> Mark:
    return Mark(loan=loan, term=term, step=step)


def queue(facts: PoolFacts, group: str, side: Side = Side.OWN) -> QueueFacts:
    found = facts.queue(group, side)
    assert found is not None, f"no {side} queue of {group!r}"
    return found


def reserved(name: str) -> Callable[[PoolFacts], bool]:
    return lambda facts: (found := job_of(facts, name)) is not None and found.reserved


def waits(name: str) -> Callable[[PoolFacts], bool]:
    return lambda facts: (found := job_of(facts, name)) is not None and not found.reserved


def placed(name: str) -> Callable[[PoolFacts], bool]:
    return lambda facts: (found := job_of(facts, name)) is not None and found.placed


def gone(name: str) -> Callable[[PoolFacts], bool]:
    return lambda facts: (found := job_of(facts, name)) is None or found.gone


class Bench:
    """A pool laid out, and a bank whose books are a counter."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.backend = world.backend
        self.revision = 0

    async def quotas(self, **wanted: int) -> int:
        """Write quotas, as `ads=16` or `ads_borrow=8`, as one revision; return the revision."""
        self.revision += 1
        for name, nominal in wanted.items():
            group, _, side = name.partition("_")
            kind = Side(side or "own")
            await self.backend.write_quota(self.world.pool, group, kind, nominal=nominal, revision=self.revision)
        return self.revision

    async def fenced(self, group: str, side: Side = Side.OWN) -> PoolFacts:
        """Wait until no cycle can use an older quota of this queue."""
        revision = self.revision
        return await self.world.wait_until(
            lambda facts: queue(facts, group, side).fenced >= revision, what=f"fence of {group}.{side} at {revision}"
        )

    async def job(self, group: str, name: str, *, side: Side = Side.OWN, pods: int = 1, priority: int = 0) -> None:
        await self.world.submit_job(JobRequest(group, name, side=side, pods=pods, priority=priority))

    async def until(self, holds: Callable[[PoolFacts], object], timeout: float = 10.0) -> PoolFacts:
        return await self.world.wait_until(holds, timeout=timeout)

    async def never(self, holds: Callable[[PoolFacts], object], seconds: float = 2.5) -> PoolFacts:
        """Look for a while, longer than any batch of the scheduler; fail if it ever holds."""
        facts = await self.backend.observe(self.world.pool)
        for _ in range(int(seconds / 0.1)):
            assert not holds(facts)
            await self.world.pause(0.1)
            facts = await self.backend.observe(self.world.pool)
        return facts

    async def change(self, name: str, act: Callable[[WorkloadFacts], Awaitable[None]], *, attempts: int = 20) -> None:
        """Read, then write; read again when the Workload moved on in between, as the bank does."""
        for _ in range(attempts):
            try:
                await act(the(await self.backend.observe(self.world.pool), name))
            except ConflictError:
                await self.world.pause(0.05)
            else:
                return
        raise AssertionError(f"workload of {name!r} never stood still")

    async def stop(self, name: str, term: int = 1) -> None:
        await self.change(
            name,
            lambda seen: self.backend.stop(self.world.pool, seen.key, mark("stop", term), seen=seen.version),
        )

    async def resume(self, name: str, term: int = 2) -> None:
        await self.change(
            name,
            lambda seen: self.backend.resume(self.world.pool, seen.key, mark("resume", term), seen=seen.version),
        )
