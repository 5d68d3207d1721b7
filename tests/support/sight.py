"""What there is to see of a pool of a running bank, and how scenarios wait for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.books import Books
from gpubank.domain.contract import (
    CHECKPOINT_ENDPOINT_ANNOTATION,
    Side,
)
from gpubank.domain.demand import LIVE
from gpubank.domain.errors import BankError
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.recall import LoanPhase, LoanState, ReclaimState, loan_id, reclaim_id
from tests.contract.world import World, job_of, pods_of
from tests.support.audit import Auditor, drift, story, unbacked

LOOK: Final = 0.1
"""Seconds between two looks at the books and processes."""

PATIENCE: Final = 60.0
"""Longest wait for one thing, in seconds, on a machine that does much else; most take one or two."""

T = TypeVar("T")


class Sight:
    """Looks at one pool of a bank that runs, and waits for what is to be seen."""

    def __init__(self, world: World, client: BankClient, ledger: SqlLedger) -> None:
        self.world, self.client, self.ledger = world, client, ledger
        self.policies: dict[str, dict[str, Any]] = {}
        self._auditor: Auditor | None = None
        self.capacity = 0

    def name(self, group: str) -> str:
        """Return the group's name on the cluster."""
        return f"{group}-{self.world.pool}"

    # ---- what there is to see

    async def facts(self) -> PoolFacts:
        return await self.world.backend.observe(self.world.pool)

    async def books(self) -> Books:
        return await self.ledger.books(self.world.cluster, self.world.pool)

    async def lines(self, *, job: str = "") -> list[Line]:
        """Every line of the pool, or of one job, oldest first, ended ones included."""
        found = await self.ledger.lines(cluster=self.world.cluster, pool=self.world.pool)
        return [line for line in reversed(found) if not job or line.workload.job == f"Job/{job}"]

    async def workload(self, name: str) -> WorkloadFacts:
        found = job_of(await self.facts(), name)
        assert found is not None, f"no workload of job {name!r}"
        return found

    async def demand_open(self, group: str) -> bool:
        """Whether a demand of the group is live."""
        return any(d.lender == self.name(group) and d.state in LIVE for d in (await self.books()).demands)

    async def loan(self, name: str) -> LoanState:
        """Return the Loan of a job."""
        return await self.client.loan_state(loan_id(self.world.cluster, (await self.workload(name)).key.uid))

    async def reclaim(self, group: str) -> ReclaimState:
        """Return the group's last Reclaim."""
        return await self.client.reclaim_state(reclaim_id(self.world.cluster, self.world.pool, self.name(group)))

    # ---- waiting

    async def placed(self, name: str) -> WorkloadFacts:
        """See every pod of a job on a node."""

        def holds(facts: PoolFacts) -> bool:
            found = job_of(facts, name)
            return found is not None and found.reserved and found.placed

        await self.until_facts(holds, f"{name} is placed")
        return await self.workload(name)

    async def answers(self, name: str) -> None:
        """See a job say where its checkpoint hook listens."""
        await self.until_facts(lambda facts: _answers(job_of(facts, name)), f"{name} answers")

    async def gone(self, name: str) -> WorkloadFacts:
        """See a job hold neither quota nor pods."""

        def holds(facts: PoolFacts) -> bool:
            found = job_of(facts, name)
            return found is not None and found.gone

        await self.until_facts(holds, f"{name} is gone from the GPUs")
        return await self.workload(name)

    async def pods_placed(self, deployment: str, count: int) -> None:
        """See `count` pods of a Deployment on nodes."""
        await self.until_facts(
            lambda facts: sum(each.reserved and each.placed for each in pods_of(facts, deployment)) == count,
            f"{count} pods of {deployment} are placed",
        )

    async def loan_in(self, name: str, *phases: LoanPhase) -> LoanState:
        """See a job's Loan in one of the phases."""

        async def look() -> LoanState | None:
            state = await self.loan(name)
            return state if state.phase in phases else None

        return await self.until(look, f"the loan of {name} is {' or '.join(phases)}")

    async def demand_met(self, group: str) -> None:
        """See no demand of the group live any more."""

        async def look() -> bool:
            return not await self.demand_open(group)

        await self.until(look, f"no demand of {group} is live")

    async def until_facts(self, holds: Callable[[PoolFacts], object], what: str) -> None:
        async def look() -> bool:
            return bool(holds(await self.facts()))

        await self.until(look, what)

    async def until(
        self, look: Callable[[], Awaitable[T | None]], what: str, patience: float = PATIENCE, every: float = LOOK
    ) -> T:
        """Look until there is something to see; fail, saying what was waited for and how things stand."""
        clock = asyncio.get_running_loop()
        end, trouble = clock.time() + patience, ""
        while True:
            try:
                if found := await look():
                    return found
                trouble = ""
            except BankError as error:
                trouble = str(error)
            if clock.time() > end:
                raise AssertionError(f"not within {patience:.0f} s: {what}; {trouble}\n{await self.story()}")
            await asyncio.sleep(every)

    @contextlib.asynccontextmanager
    async def forbidden(self, happens: Callable[[PoolFacts], object], what: str) -> AsyncIterator[None]:
        """See that something does not happen while the block runs."""
        assert self._auditor is not None
        rule = happens, what
        self._auditor.forbidden.append(rule)
        yield
        self._auditor.forbidden.remove(rule)
        assert self._auditor.violations == [], f"{self._auditor.violations}\n{await self.story()}"

    # ---- the audit

    @property
    def violations(self) -> list[str]:
        """What must never be, and was seen all the same since the agreement."""
        return list(self._auditor.violations) if self._auditor is not None else []

    async def settled(self) -> None:
        """See all at rest, then judge the books, the quotas and the ledger: whatever happened, they must agree."""

        async def rests() -> bool:
            books, facts = await self.books(), await self.facts()
            quiet = not any(demand.state in LIVE for demand in books.demands)
            return quiet and not drift(books, facts) and not unbacked(books, facts) and all(map(_at_rest, books.lines))

        await self.until(rests, "the pool is at rest, its quotas are those of the books, and loans back every borrower")
        books, facts = await self.books(), await self.facts()
        assert sum(queue.nominal for queue in facts.queues) <= self.capacity
        for group, policy in self.policies.items():
            name = self.name(group)
            own = facts.queue(name, Side.OWN)
            assert own is not None
            assert books.lent_to_others(name) <= policy.get("lendingLimit", policy["guaranteed"])
            assert books.lent(name) + own.reserved <= books.guarantee(name).in_force
            assert books.borrowed(name) <= policy.get("borrowLimit", self.capacity - policy["guaranteed"])
        report = await self.ledger.verify()
        assert report.ok, report.findings
        assert self._auditor is not None
        assert self._auditor.violations == []

    async def story(self) -> str:
        """Everything that helps to understand a failed scenario."""
        return await story(self.world, self.ledger, self.client, map(self.name, self.policies))


def _answers(workload: WorkloadFacts | None) -> bool:
    """Whether the first pod says where its hook listens."""
    pods = workload.pod_facts if workload is not None else ()
    return any(CHECKPOINT_ENDPOINT_ANNOTATION in pod.annotations for pod in pods)


def _at_rest(line: Line) -> bool:
    return line.state is LineState.GRANTED and line.demand is None
