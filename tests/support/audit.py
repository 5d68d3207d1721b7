"""What watches a scenario's pool in the background, and what is told when it goes wrong."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.decide import compile as compiler
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.errors import BankError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.recall import ReclaimState, loan_id, reclaim_id
from tests.contract.world import World

EVERY: Final = 0.03
"""Seconds between two looks at the quotas."""

Rule = tuple[Callable[[PoolFacts], object], str]
"""What must not be seen, and how to say it."""


class Auditor:
    """Looks at one pool all the time: its quotas never exceed it, and nothing of `forbidden` happens."""

    def __init__(self, world: World, capacity: int, every: float = EVERY) -> None:
        self._world, self._capacity, self._every = world, capacity, every
        self.forbidden: list[Rule] = []
        self.violations: list[str] = []
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An auditor that is blind has seen nothing go wrong: that is a violation too."""
        if not task.cancelled():
            self.violations.append(f"nobody looks any more: {task.exception()!r}")

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(BankError):
                self._look(await self._world.backend.observe(self._world.pool))
            await asyncio.sleep(self._every)

    def _look(self, facts: PoolFacts) -> None:
        total = sum(queue.nominal for queue in facts.queues)
        if total > self._capacity:
            quotas = {queue.name: queue.nominal for queue in facts.queues}
            self.violations.append(f"quotas of {total} in a pool of {self._capacity}: {quotas}")
        self.violations += [what for happens, what in self.forbidden if happens(facts)]


def drift(books: Books, facts: PoolFacts) -> dict[str, tuple[int, int]]:
    """Return the queues whose quota is not what the books say: what it is (-1: no queue), and what it should be."""
    wanted = {key: gpus for key, gpus in compiler.nominals(books).items() if gpus}
    found = {(queue.group, queue.kind): queue.nominal for queue in facts.queues}
    return {
        f"{group}/{kind}": (found.get((group, kind), -1), wanted.get((group, kind), 0))
        for group, kind in wanted.keys() | found.keys()
        if found.get((group, kind), -1) != wanted.get((group, kind), 0)
    }


def unbacked(books: Books, facts: PoolFacts) -> dict[str, tuple[int, int]]:
    """Return the running borrow jobs that other loans back than they use: what they use, and what they have."""
    borrowers = [each for each in facts.workloads if each.kind is Side.BORROW and each.reserved]
    found = {each.key.job: (each.gpus, sum(line.gpus for line in books.lines_of(each.key.uid))) for each in borrowers}
    return {job: (uses, has) for job, (uses, has) in found.items() if uses != has}


async def story(world: World, ledger: SqlLedger, client: BankClient, groups: Iterable[str]) -> str:
    """Everything that helps to understand a failed scenario."""
    books, facts = await ledger.books(world.cluster, world.pool), await world.backend.observe(world.pool)
    rows = ["committed:"]
    rows += [
        f"  {event.at:%H:%M:%S.%f} {event.actor}: {event.detail.get('note')}"
        for event in reversed(await ledger.audit(limit=400))
        if world.pool in event.subject and event.action == "Committed"
    ]
    rows += ["guarantees:"] + [f"  {g.group} {g.in_force} releasing {g.releasing}" for g in books.guarantees]
    rows += ["open lines:"] + [f"  {x.line_id} {x.lender}->{x.borrower} {x.gpus} {x.state}" for x in books.lines]
    rows += ["demands:"] + [f"  {d.demand_id} {d.state} {d.idle} of {d.gpus}: {d.reason}" for d in books.demands]
    rows += [f"drift: {drift(books, facts)}", f"unbacked: {unbacked(books, facts)}"]
    rows += ["queues:"] + [f"  {q.name} {q.reserved}/{q.nominal} {q.stamp} {q.fenced}" for q in facts.queues]
    rows += ["workloads:"]
    for w in facts.workloads:
        state = f"active={w.active} reserved={w.reserved} placed={w.placed} finished={w.finished} {w.wait}"
        rows.append(f"  {w.key.job} of {w.group} {w.kind} {w.gpus}: {state} evicted={w.evicted!r} mark={w.mark}")
        with contextlib.suppress(BankError):
            loan = await client.loan_state(loan_id(world.cluster, w.key.uid))
            rows.append(f"    loan {loan.phase} term {loan.term}: {loan.note}")
    for group in groups:
        with contextlib.suppress(BankError):
            reclaim: ReclaimState = await client.reclaim_state(reclaim_id(world.cluster, world.pool, group))
            rows += [f"  reclaim of {group}: {demand!r}" for demand in reclaim.demands]
    return "\n".join(rows)
