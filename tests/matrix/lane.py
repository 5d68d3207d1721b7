"""A pool through which one recall goes after another, each held at one spot while somebody is killed.

begin    vision's GPUs are lent to search, whose job trains on them; for the return: and it is parked already
provoke  vision wants them back; for the return: vision is done
held     the recall has come to the spot
end      all of it goes on to the end: vision served, search's job back from its checkpoint and done
judge    nobody can tell that anybody died
"""

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from gpubank.domain.faults import FaultPoint, Spot
from gpubank.domain.recall import LoanPhase
from gpubank.faultgate import FaultGate
from tests.contract.world import job_of
from tests.matrix import trainee
from tests.matrix.oracles import Recall, judge
from tests.support.bank import Bank

GPUS: Final = 8

RETURN: Final = frozenset({FaultPoint.OFFER, FaultPoint.RESUME, FaultPoint.GRANT})
"""Points of the borrower's return, which begins when the owner is done."""

PATIENCE: Final = 300.0
"""Longest wait for one thing, in seconds: to be late on a machine that does much else is no violation."""

LOOK: Final = 0.4
"""Seconds between two looks; a dozen lanes look at once, and those who recover need the machine more."""

AUDIT_EVERY: Final = 0.15

T = TypeVar("T")


class Lane:
    """One pool, with an owner `vision` and a borrower `search`."""

    def __init__(self, bank: Bank, gate: FaultGate) -> None:
        self.bank = bank
        self._gate = gate
        self._count = 0
        self._train = self._batch = self._workload = ""
        self._since = datetime.min.replace(tzinfo=UTC)
        self._spot: Spot | None = None

    async def open(self) -> None:
        """Make the pool and its agreements."""
        self.bank.audit_every = AUDIT_EVERY
        await self.bank.agree((GPUS,), vision=GPUS, search=0)

    async def begin(self, spot: Spot) -> None:
        """Bring a recall to where the step of `spot` is still to come, and shut its gate."""
        self._count += 1
        self._train, self._batch, self._spot = f"train-{self._count}", f"batch-{self._count}", spot
        storage = self.bank.folder / self._train
        storage.mkdir()
        command = [sys.executable, str(Path(trainee.__file__)), str(storage)]
        await self.bank.train("search", self._train, command, storage)
        await self._placed(self._train)
        await self.bank.answers(self._train)
        key = (await self.bank.workload(self._train)).key
        self._workload = f"{key.namespace}/{key.name}"
        await self._loan_in(LoanPhase.ACTIVE)
        self._since = datetime.now(UTC)
        if spot.point in RETURN:
            await self._own()
            await self._served()
        self._gate.shut(self.bank.world.pool, spot)

    async def provoke(self) -> None:
        """Set off what leads to the spot."""
        if self._returns:
            await self.bank.finish("vision", self._batch)
        else:
            await self._own()

    async def held(self) -> None:
        """See the recall come to the spot."""

        async def look() -> bool:
            return bool(self.waited)

        await self._until(look, f"the recall is held at {self._spot}")

    @property
    def waited(self) -> list[int]:
        """Process id of everybody who was held, the first one first."""
        assert self._spot is not None
        return self._gate.waited(self.bank.world.pool, self._spot)

    def let_go(self) -> None:
        """Hold nobody any more."""
        assert self._spot is not None
        self._gate.open(self.bank.world.pool, self._spot)

    async def end(self) -> None:
        """See the recall end, and the borrower come back and finish."""
        if not self._returns:
            await self._served()
            await self.bank.finish("vision", self._batch)
        await self._placed(self._train)

        async def back() -> bool:
            loan = await self.bank.loan(self._train)
            return loan.phase is LoanPhase.ACTIVE and loan.term > 1

        await self._until(back, f"{self._train} is back")
        await self.bank.answers(self._train)
        await self.bank.finish("search", self._train)
        await self._loan_in(LoanPhase.CLOSED)

    @property
    def workload(self) -> str:
        """`namespace/name` of the borrower's Workload."""
        return self._workload

    async def judge(self) -> list[str]:
        """Return what is not as if nothing had happened."""
        recall = Recall(self.bank, "vision", "search", self._train, self._batch, GPUS, self._since)
        return await judge(recall, PATIENCE)

    async def clear(self) -> None:
        """Delete the jobs of this recall, as their owners would."""
        await self.bank.drop("vision", self._batch)
        await self.bank.drop("search", self._train)

        async def gone() -> bool:
            return not (await self.bank.facts()).workloads

        await self._until(gone, "the jobs are gone")

    @property
    def _returns(self) -> bool:
        return self._spot is not None and self._spot.point in RETURN

    async def _own(self) -> None:
        await self.bank.own("vision", self._batch, GPUS)

    async def _served(self) -> None:
        """See the owner's pods on nodes and the borrower parked."""
        await self._placed(self._batch)
        await self._loan_in(LoanPhase.PARKED)

        async def met() -> bool:
            return not await self.bank.demand_open("vision")

        await self._until(met, "vision's demand is met")

    async def _placed(self, name: str) -> None:
        async def look() -> bool:
            found = job_of(await self.bank.facts(), name)
            return found is not None and found.reserved and found.placed

        await self._until(look, f"{name} is placed")

    async def _loan_in(self, phase: LoanPhase) -> None:
        async def look() -> bool:
            return (await self.bank.loan(self._train)).phase is phase

        await self._until(look, f"the loan of {self._train} is {phase}")

    async def _until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        return await self.bank.until(look, what, PATIENCE, LOOK)
