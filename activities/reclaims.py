"""What a Reclaim does for one demand: plan and pledge, give the whole set back at once, see the owner placed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import not_yet, settled
from activities.interfaces import ReclaimCalls
from activities.pools import Pools, groups_of, in_state
from gpubank.decide.demand import has_slipped
from gpubank.decide.recall import RecallPlan, Victim, plan_recall
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import WHOLE, Demand, DemandKind, DemandState
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import PoolFacts, QueueFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.pool import OnOverdue
from gpubank.domain.steps import (
    DemandStep,
    DemandView,
    EndDemand,
    PlacedOutcome,
    PlacedResult,
    PlannedRecall,
    PlannedVictim,
    PlanStep,
    RaiseOutcome,
    RaiseResult,
)
from gpubank.domain.transaction import DemandChange, Transaction

END_POLL: Final = timedelta(seconds=1)
"""How often a Reclaim makes sure that somebody still waits."""


GONE_AFTER: Final = timedelta(minutes=1)
"""How long a plan waits for the terms of a pool that has none, before the pool counts as gone."""

Ended = Callable[[Demand, DemandState, datetime], None]
"""Hears of a demand, as it stood, that came to be in a state at a time."""


def unheard(demand: Demand, state: DemandState, at: datetime) -> None:
    """Hear of a demand and do nothing, where nobody counts."""


class ReclaimActivities(ReclaimCalls):
    """Implements `ReclaimCalls` on a pool's books and its scheduler."""

    def __init__(self, pools: Pools, *, ended: Ended = unheard) -> None:
        self._pools = pools
        self._ended = ended

    @activity.defn(name="reclaim.view")
    async def view(self, step: DemandStep) -> DemandView:
        """Return the demand as it stands."""
        demand = (await self._pools.books(step.pool)).demand(step.demand)
        if demand is None:
            return DemandView()
        terms = await self._pools.terms_now(step.pool)
        return DemandView(
            state=demand.state,
            kind=demand.kind,
            gpus=demand.gpus,
            workload=demand.workload,
            reason=demand.reason,
            opened_at=demand.opened_at,
            due_at=demand.due_at,
            # Without a pool nothing is decided on it: the next plan ends the demand.
            on_overdue=terms.on_overdue if terms is not None else OnOverdue.PROTECT,
        )

    @activity.defn(name="reclaim.plan")
    async def plan(self, plan: PlanStep) -> PlannedRecall:
        """Plan what is given up, pledge it in one transaction and write the quotas; waits while frozen."""
        step = plan.step

        async def attempt() -> tuple[RecallPlan, set[str]] | PlannedRecall:
            async with self._pools.turns.turn(step.pool):
                facts, books = await self._read(step)
                await self._pools.check_in_force(facts)
                demand = books.demand(step.demand)
                if demand is None or demand.state not in (DemandState.OPEN, DemandState.RAISED):
                    return PlannedRecall(live=False)
                if demand.state is DemandState.RAISED:
                    return PlannedRecall(raised=True, complete=True)
                if await self._is_gone(step):
                    await self._change(step, books, demand, DemandState.CANCELLED, reason=f"pool {step.pool!r} is gone")
                    return PlannedRecall(live=False)
                found = await self._decide(step, facts, books, frozenset(plan.spared))
                if found.transaction is None or not _helps(found, demand):
                    return found, set()
                after = await self._pools.commit(found.transaction)
                moved = {line.line_id: line for line in (*books.lines, *after.lines)}
                same = {line.line_id for line in after.lines if line.revision <= books.revision}
                return found, {step.lender} | groups_of(moved[each] for each in moved.keys() - same)

        planned = await settled(attempt)
        if isinstance(planned, PlannedRecall):
            return planned
        found, groups = planned
        if groups:
            await settled(lambda: self._pools.write_quotas(step.pool, groups))
        terms = await self._pools.terms(step.pool)
        return PlannedRecall(
            complete=found.complete,
            need=found.need,
            covered=found.covered,
            victims=tuple(_victim(victim) for victim in found.victims),
            approval_required=found.approval_required,
            reason=found.reason,
            leased=found.leased,
            retry_at=found.retry_at,
            max_time_to_return=terms.max_time_to_return,
            max_grace=terms.max_grace_period,
            max_checkpoint_age=terms.max_checkpoint_age,
        )

    @activity.defn(name="reclaim.raise_queue")
    async def raise_queue(self, step: DemandStep) -> RaiseResult:
        """Look, patiently: give the lender the whole set when nothing pledged is outstanding, else "not yet"."""
        written = False

        async def attempt() -> RaiseResult:
            nonlocal written
            if written:  # the books alone say that it is too early, and cost less than everything
                _check_on_their_way(await self._pools.books(step.pool), step.demand)
            facts, books = await self._read(step)
            await self._pools.check_in_force(facts)
            demand = books.demand(step.demand)
            if demand is None or demand.state not in (DemandState.OPEN, DemandState.RAISED):
                return RaiseResult(outcome=RaiseOutcome.ENDED)
            if demand.state is DemandState.OPEN:
                waiting = _outstanding(books, demand)
                if waiting is None:
                    return RaiseResult(outcome=RaiseOutcome.REPLAN, reason="a pledged line was not given up after all")
                if waiting:
                    if not written:  # whoever moved a line may have died before its quota was written
                        pledged = (line for line in books.lines if line.demand == step.demand)
                        await self._pools.write_quotas(step.pool, {step.lender} | groups_of(pledged))
                        written = True
                    raise _on_their_way(waiting)
                found = await self._decide(step, facts, books, frozenset())
                if found.victims or not found.complete:
                    return RaiseResult(outcome=RaiseOutcome.REPLAN, reason=found.reason or "more is needed than came")
                if found.transaction is not None:  # more of its own has become idle meanwhile
                    await self._pools.commit(found.transaction)
                    raise ConflictError(f"demand {demand.demand_id!r} has just been planned anew")
                await self._change(step, books, demand, DemandState.RAISED, reason="its whole set is back")
            await self._pools.write_quotas(step.pool, [step.lender])
            if demand.workload is not None:
                await self._pools.quota.nudge(step.pool, demand.workload)
            return RaiseResult(outcome=RaiseOutcome.RAISED)

        return await self._pools.patiently(step.pool, lambda: settled(attempt))

    @activity.defn(name="reclaim.await_placed")
    async def await_placed(self, step: DemandStep) -> PlacedResult:
        """Look, patiently: "not yet" until the owner's pods are on nodes, or somebody slipped in."""

        async def attempt() -> PlacedResult:
            facts, books = await self._read(step)
            demand = books.demand(step.demand)
            if demand is None or demand.state not in (DemandState.OPEN, DemandState.RAISED):
                return PlacedResult(outcome=PlacedOutcome.ENDED, reason="the demand has ended")
            if demand.state is DemandState.OPEN:
                return PlacedResult(outcome=PlacedOutcome.SLIPPED, reason=demand.reason)
            if demand.workload is None or demand.kind is DemandKind.RETURN:
                return PlacedResult(outcome=PlacedOutcome.PLACED)
            workload = facts.workload(demand.workload.uid)
            if workload is None:
                return PlacedResult(outcome=PlacedOutcome.ENDED, reason="its Workload is gone")
            if workload.placed or workload.finished:
                return PlacedResult(outcome=PlacedOutcome.PLACED)
            if workload.reserved:
                raise not_yet(f"workload {workload.key.name!r} is admitted; its pods are not all on nodes")
            queue = facts.queue(demand.lender, Side.OWN)
            if queue is not None and queue.fenced >= demand.revision and has_slipped(facts, books, queue, workload):
                idle = min(max(_free(queue) - _promised(facts, books, demand), 0), demand.gpus)
                reason = "somebody else was admitted first"
                await self._change(step, books, demand, DemandState.OPEN, idle=idle, reason=reason)
                await self._pools.write_quotas(step.pool, [step.lender])
                return PlacedResult(outcome=PlacedOutcome.SLIPPED, reason=reason)
            await self._pools.write_quotas(step.pool, [step.lender])
            await self._pools.quota.nudge(step.pool, demand.workload)
            raise not_yet(f"workload {workload.key.name!r} waits for its admission")

        demand = (await self._pools.books(step.pool)).demand(step.demand)
        about = demand.workload if demand is not None else None
        return await self._pools.patiently(step.pool, lambda: settled(attempt), about=about)

    @activity.defn(name="reclaim.await_ended")
    async def await_ended(self, step: DemandStep) -> bool:
        """Look once whether the demand has ended, or is of another amount than `step.gpus`; else "not yet"."""
        demand = (await self._pools.books(step.pool)).demand(step.demand)
        live = demand is not None and demand.state in (DemandState.OPEN, DemandState.RAISED)
        if demand is not None and live and step.gpus in (None, demand.gpus):
            raise not_yet(f"demand {step.demand!r} is {demand.state}", again=END_POLL)
        return True

    @activity.defn(name="reclaim.end_demand")
    async def end_demand(self, end: EndDemand) -> None:
        """End the demand in the books and write the quotas that follow; an ended one stays as it ended."""
        step = end.step

        async def attempt() -> None:
            books = await self._pools.books(step.pool)
            demand = books.demand(step.demand)
            if demand is not None and demand.state is not end.state:
                await self._change(step, books, demand, end.state, reason=step.reason)
            await self._pools.write_quotas(step.pool, [step.lender])

        await settled(attempt)

    async def _is_gone(self, step: DemandStep) -> bool:
        """Whether the pool has had no terms for a while: its object is gone, not just being mended."""
        if await self._pools.terms_now(step.pool) is not None:
            return False
        return self._pools.now() - activity.info().scheduled_time >= GONE_AFTER

    async def _read(self, step: DemandStep) -> tuple[PoolFacts, Books]:
        return await self._pools.quota.observe(step.pool), await self._pools.books(step.pool)

    async def _decide(self, step: DemandStep, facts: PoolFacts, books: Books, spared: frozenset[str]) -> RecallPlan:
        terms = await self._pools.terms(step.pool)
        return plan_recall(facts, books, terms, step.demand, now=self._pools.now(), spared=spared)

    async def _change(
        self,
        step: DemandStep,
        books: Books,
        demand: Demand,
        state: DemandState,
        *,
        idle: int | None = None,
        reason: str = "",
    ) -> None:
        change = DemandChange(demand_id=demand.demand_id, version=demand.version, state=state, idle=idle, reason=reason)
        now = self._pools.now()
        await self._pools.commit(
            Transaction(
                key=f"{step.reclaim}/{demand.demand_id}/{state}@{books.revision}",
                cluster=step.cluster,
                pool=step.pool,
                at=now,
                actor=step.reclaim,
                note=f"demand {demand.demand_id} is {state}: {reason or demand.reason}",
                demands=(change,),
            )
        )
        self._ended(demand, state, now)


def _helps(plan: RecallPlan, demand: Demand) -> bool:
    """Whether a plan is carried out: half a gang's GPUs help nobody, while every GPU over a limit counts."""
    return plan.complete or demand.kind not in WHOLE


def _check_on_their_way(books: Books, name: str) -> None:
    """Raise "not yet" while lines that are pledged to an open demand are on their way back."""
    demand = books.demand(name)
    if demand is not None and demand.state is DemandState.OPEN and (waiting := _outstanding(books, demand)):
        raise _on_their_way(waiting)


def _on_their_way(lines: tuple[str, ...]) -> ApplicationError:
    return not_yet(f"{len(lines)} pledged lines are on their way: {', '.join(lines)}")


def _outstanding(books: Books, demand: Demand) -> tuple[str, ...] | None:
    """Pledged lines that are on their way back; None if one of them is not coming, so that a new plan is due."""
    novated = {line.replaces for line in books.lines if line.state is LineState.OFFERED and line.replaces}
    pledged = tuple(line for line in books.lines if line.demand == demand.demand_id)
    if any(_stays(line, novated) for line in in_state(pledged, LineState.GRANTED)):
        return None
    return tuple(line.line_id for line in pledged)


def _stays(line: Line, novated: set[str]) -> bool:
    """Whether nobody is taking a granted line back: no offer stands to take its place."""
    return line.line_id not in novated


def _promised(facts: PoolFacts, books: Books, demand: Demand) -> int:
    """GPUs in the lender's queue that were raised for others of its demands, and that they have not taken yet."""
    others = (d for d in books.demands if d.lender == demand.lender and d.state is DemandState.RAISED and d != demand)
    waiting = ((d, facts.workload(d.workload.uid)) for d in others if d.workload is not None)
    return sum(d.gpus for d, workload in waiting if workload is not None and not workload.reserved)


def _free(queue: QueueFacts) -> int:
    return queue.nominal - queue.reserved


def _victim(victim: Victim) -> PlannedVictim:
    return PlannedVictim(
        workload=victim.workload,
        borrower=victim.borrower,
        gpus=victim.gpus,
        line_ids=victim.line_ids,
        reclaim_class=victim.reclaim_class,
        needs_checkpoint=victim.needs_checkpoint,
        on_checkpoint_failure=victim.on_checkpoint_failure,
        grace=victim.grace,
    )
