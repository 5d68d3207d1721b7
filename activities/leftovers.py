"""What a recalled Workload leaves: whether others of its group came in on it while the queue was being lowered."""

from collections.abc import Iterable

from activities.failures import not_yet
from activities.pools import Pools, in_state
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, QueueFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.steps import LoanStep


class Leftovers:
    """What one Workload leaves, for as long as one step waits to know."""

    def __init__(self, pools: Pools, step: LoanStep) -> None:
        self._pools, self._step = pools, step
        self._asked = False

    async def are_taken(self, facts: PoolFacts, books: Books, lines: Iterable[Line]) -> bool:
        """Hold until no admission cycle can know the old quota; then say whether somebody has taken what it leaves.

        Raises "not yet" until both can be told.
        """
        step = self._step
        queue = facts.queue(step.borrower, Side.BORROW)
        lines = tuple(line for line in lines if not line.is_own)
        if queue is None or not lines:
            return False
        revision = max(line.revision for line in lines)
        if queue.fenced < revision:
            if queue.stamp < revision:
                await self._pools.write_quotas(step.pool, [step.borrower])
            raise not_yet(f"queue {queue.name!r} is fenced at revision {queue.fenced}, not yet at {revision}")
        # Other recalled Workloads of the group may still run on quota that its queue no longer shows.
        running = {workload.key.uid for workload in facts.workloads if workload.reserved}
        still_running = sum(
            line.gpus
            for line in in_state(books.lines, LineState.RECALLED)
            if line.borrower == step.borrower and not line.is_own and line.workload.uid in running - {step.workload.uid}
        )
        if queue.reserved <= queue.nominal + still_running:
            return False
        if not any(_lacks(workload, books) for workload in facts.workloads if workload.group == step.borrower):
            await self._have_counted(queue)
            raise not_yet(f"queue {queue.name!r} has {queue.reserved} GPUs reserved over {queue.nominal} of quota")
        return True

    async def _have_counted(self, queue: QueueFacts) -> None:
        """Have the queue's count brought up to date, once: most likely it still has the one in it who has just left."""
        if not self._asked:
            self._asked = True
            await self._pools.quota.recount(self._step.pool, queue.group, queue.kind)


def _lacks(workload: WorkloadFacts, books: Books) -> bool:
    """Whether a borrow Workload holds quota that no line backs."""
    lines = in_state(books.lines_of(workload.key.uid), LineState.GRANTED, LineState.RECALLED)
    holds = workload.kind is Side.BORROW and workload.reserved and not workload.finished
    return holds and sum(line.gpus for line in lines) < workload.gpus
