"""What scenarios of races share: pools in which research runs on what serving lends, and looks at them."""

import itertools
from datetime import timedelta
from typing import Any

from gpubank.domain.contract import Side
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase, ReclaimPhase, ReclaimState
from gpubank.simulation.clock import Timing
from gpubank.simulation.workloads import Workload
from tests.contract.world import JobRequest
from tests.fakes.bank import HOOK, FakeBank
from tests.fakes.branches import TIMING, ManyBanks
from tests.fakes.trainer import Mood

_numbers = itertools.count(1)


class Race:
    """A pool of two nodes; serving is guaranteed all of it, and research borrows."""

    def __init__(self, bank: FakeBank, number: int) -> None:
        self.bank, self._number = bank, number

    @classmethod
    async def open(cls, banks: ManyBanks, *, timing: Timing = TIMING, **terms: Any) -> "Race":
        number = next(_numbers)
        guarantees = {"serving": 16, "research": 0}
        bank = await banks.open(f"race{number}", guarantees, timing=timing)
        bank.look = 0.1
        bank.terms.set(**terms)
        return cls(bank, number)

    def job(self, name: str) -> str:
        """Return a name that no other pool has."""
        return f"{name}-{self._number}"

    def mood(self, name: str, mood: Mood) -> None:
        """Tell the trainer of a job how to take requests."""
        self.bank.trainers.moods[self.job(name)] = mood

    async def trains(self, name: str, *, mood: Mood = Mood.SAVES, grace: int = 5) -> WorkloadFacts:
        """Have research train on 8 borrowed GPUs."""
        self.mood(name, mood)
        return await self._borrow(name, grace, {"platform.aik8s.run/retryable": "false"}, HOOK)

    async def batch(self, name: str, *, grace: int = 5) -> WorkloadFacts:
        """Have research run what may be stopped without a checkpoint."""
        return await self._borrow(name, grace, {}, {})

    async def _borrow(self, name: str, grace: int, labels: Any, annotations: Any) -> WorkloadFacts:
        request = JobRequest(
            "research",
            self.job(name),
            side=Side.BORROW,
            labels=labels,
            annotations=annotations,
            termination_grace=grace,
        )
        await self.bank.world.submit_job(request)
        return await self.bank.placed(self.job(name))

    async def wants(self, name: str = "serve", gpus: int = 8) -> None:
        """Have serving want some of its GPUs back."""
        await self.bank.own("serving", self.job(name), gpus, pods=gpus // 8)

    async def served(self, name: str = "serve") -> None:
        """See serving's pods on nodes, and its demand met."""
        await self.bank.placed(self.job(name))
        await self.bank.until(self._no_demand, "no demand is live")

    async def _no_demand(self) -> bool:
        return not await self.bank.demands()

    async def asked(self, workload: WorkloadFacts) -> None:
        """See a trainer asked for its checkpoint."""
        await self.bank.loan_in(workload, LoanPhase.CHECKPOINTING)

    async def runs_on(self, name: str, before: WorkloadFacts) -> None:
        """See a job as it was: never stopped, and with all of its lines."""
        now = await self.bank.workload(self.job(name))
        assert now is not None
        assert (now.key, now.active, now.mark) == (before.key, True, None), await self.bank.story()
        assert [pod.uid for pod in now.pod_facts] == [pod.uid for pod in before.pod_facts]
        assert {line.state for line in await self.lines(before)} == {LineState.GRANTED}

    async def lines(self, workload: WorkloadFacts) -> list[Any]:
        """Open lines of a Workload."""
        return [line for line in await self.bank.lines() if line.workload.uid == workload.key.uid]

    def record(self, workload: WorkloadFacts) -> Workload:
        """Return the cluster's own record of a Workload."""
        found = self.bank.world.simulated._jobs.workload(workload.key.uid)
        assert found is not None
        return found

    def hold(self, workload: WorkloadFacts, held: bool = True) -> None:
        """Let its pods stay although they have ended, or let them go."""
        for pod in workload.pod_facts:
            self.bank.world.simulated._kubelet.hold(pod.uid, held)

    async def ended(self, *phases: ReclaimPhase) -> ReclaimState:
        """See serving's Reclaim in one of the phases."""
        return await self.bank.reclaim_where("serving", lambda state: state.phase in phases)


SOON = timedelta(seconds=1)
