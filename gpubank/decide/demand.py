"""Demands of own work: when one begins, what is kept free for it, and when nobody waits any more.

owed work, in the scheduler's order; less important own work may make room for it (`decide.ownside`)
fits what its queue has free        nothing to do: it will be admitted
does not, for 500 ms                offers of its lender are withdrawn; then a demand, what is free pledged to it
OPEN       what becomes free is pledged to it, until its set is whole
RAISED     back to OPEN if somebody was admitted first
PARTIAL    tried again after five minutes, or as soon as nobody needs to be stopped for it
ended      its Workload is gone, finished, admitted, or owed nothing any more
"""

from datetime import datetime, timedelta
from typing import Final

from gpubank.decide.desk import Desk
from gpubank.decide.offers import withdraw_for
from gpubank.decide.recall import plan_recall
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.facts import PoolFacts, QueueFacts, Wait, WorkloadFacts
from gpubank.domain.pool import OnOverdue
from gpubank.domain.transaction import DemandChange, DemandOpening

SETTLE: Final = timedelta(milliseconds=500)
"""How long a Workload must have waited before it is a demand, where the scheduler has not refused it in so many words:
it considers waiting work every second, and what stands behind the head of its queue says nothing."""

ASTRAY: Final = timedelta(seconds=10)
"""How long a Workload must have waited for something unknown before nobody recalls for it any more.

A scheduler that has just started calls queues inactive that it has not read yet, on a busy cluster for some seconds.
"""

TRY_AGAIN: Final = timedelta(minutes=5)
"""How long after a PARTIAL end a demand is tried again."""


def demand_id(desk: Desk, lender: str, kind: DemandKind, about: str) -> str:
    """Name a demand by whom and what it is for."""
    return f"{desk.books.pool}/{lender}/{kind}/{about}"


def change(desk: Desk, demand: Demand, state: DemandState, reason: str = "", *, idle: int | None = None,
           gpus: int | None = None) -> None:  # fmt: skip
    """Write a change of a demand."""
    row = DemandChange(
        demand_id=demand.demand_id,
        version=demand.version,
        state=state,
        reason=reason,
        idle=idle,
        gpus=gpus,
        due_at=_due_again(desk, demand) if state is DemandState.OPEN else None,
    )
    note = f"demand {demand.demand_id} is {state}" + (f": {reason}" if reason else "")
    desk.write(f"demand/{demand.demand_id}/{state}", note, demands=[row])


def _due_again(desk: Desk, demand: Demand) -> datetime | None:
    """When a demand that is tried again is due; None where that stays.

    A pool that protects ends what is overdue as PARTIAL: without a time of its own, the next try would end before it
    began. In one that evicts it stays overdue, and nobody is spared.
    """
    late = demand.state is DemandState.PARTIAL and desk.now >= demand.due_at
    return desk.now + desk.terms.max_time_to_return if late and desk.terms.on_overdue is OnOverdue.PROTECT else None


def end_stale(desk: Desk) -> None:
    """End demands that nobody waits for, and reopen those whose set somebody else has taken."""
    for demand in desk.books.demands:
        workload = desk.workload(demand.workload.uid) if demand.workload is not None else None
        if demand.kind is DemandKind.WORKLOAD:
            _check_workload(desk, demand, workload)
        elif demand.kind is DemandKind.PLACEMENT:
            if workload is None or workload.finished or not workload.reserved:
                change(desk, demand, DemandState.CANCELLED, "its Workload holds no quota any more")
            elif workload.placed:
                change(desk, demand, DemandState.MET, "its pods are on nodes")
        elif demand.kind is DemandKind.RETURN and not (
            demand.workload is not None and desk.books.lines_of(demand.workload.uid)
        ):
            change(desk, demand, DemandState.MET, "its lines are returned")


def _check_workload(desk: Desk, demand: Demand, workload: WorkloadFacts | None) -> None:
    raised = demand.state is DemandState.RAISED
    if workload is None or workload.finished:
        change(desk, demand, DemandState.CANCELLED, "its Workload is gone")
    elif not workload.active:
        change(desk, demand, DemandState.CANCELLED, "its Workload was switched off")
    elif raised:
        _check_raised(desk, demand, workload)
    elif workload.reserved:
        change(desk, demand, DemandState.CANCELLED, "its Workload was admitted meanwhile")
    elif workload.wait is Wait.OTHER and not desk.lasted(workload.waiting_since, ASTRAY):
        pass  # nobody can tell yet
    elif workload.wait is not Wait.QUOTA:
        change(desk, demand, DemandState.CANCELLED, f"its Workload waits for something else ({workload.wait})")
    elif all(other.key.uid != workload.key.uid for other in desk.owed(demand.lender)):
        change(desk, demand, DemandState.CANCELLED, "the guarantee has no room for it any more")
    elif demand.is_open and workload.gpus != demand.gpus:
        change(desk, demand, demand.state, "it asks for another amount", gpus=workload.gpus)


def _check_raised(desk: Desk, demand: Demand, workload: WorkloadFacts) -> None:
    """Reopen a raised demand when its queue, as the scheduler has it, has no room for its Workload any more."""
    queue = desk.facts.queue(demand.lender, Side.OWN)
    if workload.reserved or queue is None or not desk.fenced(demand.lender, Side.OWN, demand.revision):
        return
    if has_slipped(desk.facts, desk.books, queue, workload) and desk.free(demand.lender) < workload.gpus:
        idle = min(max(desk.free(demand.lender), 0), demand.gpus)
        change(desk, demand, DemandState.OPEN, "somebody else was admitted first", idle=idle)


def has_slipped(facts: PoolFacts, books: Books, queue: QueueFacts, workload: WorkloadFacts) -> bool:
    """Whether others hold what was raised for a waiting Workload.

    The queue's count alone does not say: it may be of this very Workload, of whose admission another watch tells
    later, or of own work that is being stopped for somebody else.
    """
    if queue.nominal - queue.reserved >= workload.gpus:
        return False
    leaving = {line.workload.uid for line in books.own_lines(queue.group) if not line.is_chosen}
    others = sum(
        other.gpus
        for other in facts.workloads
        if (other.group, other.kind) == (queue.group, queue.kind)
        and other.reserved
        and not other.finished
        and other.key.uid not in leaving | {workload.key.uid}
    )
    return queue.nominal - others < workload.gpus


def follow_own_work(desk: Desk) -> None:
    """Withdraw offers that own work needs, pledge what is free, and open demands for the rest."""
    for group in desk.groups:
        left = _Left(max(desk.free(group) - desk.raised(group), 0))
        for workload in desk.owed(group):
            _serve(desk, group, workload, left)


class _Left:
    """GPUs of one queue that nobody before has a claim on."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def take(self, gpus: int) -> int:
        """Claim up to so many and return how many there were."""
        taken = min(self.gpus, max(gpus, 0))
        self.gpus -= taken
        return taken


def _serve(desk: Desk, group: str, workload: WorkloadFacts, left: _Left) -> None:
    demand = desk.books.demand(demand_id(desk, group, DemandKind.WORKLOAD, workload.key.uid))
    if demand is not None and demand.state is DemandState.RAISED:
        return
    have = demand.idle if demand is not None else 0
    short = workload.gpus - have - left.gpus
    if short > 0:
        left.gpus += withdraw_for(desk, group, short, f"own work of {group} needs it ({workload.key.title})")
    if demand is None:
        _open(desk, group, workload, left)
    elif demand.state is DemandState.PARTIAL:
        _try_again(desk, demand, left)
    elif (more := left.take(demand.gpus - demand.idle)) > 0:
        change(desk, demand, demand.state, "what has become free is kept for it", idle=demand.idle + more)


def _open(desk: Desk, group: str, workload: WorkloadFacts, left: _Left) -> None:
    if workload.gpus <= left.gpus:
        left.take(workload.gpus)
        return
    # Refused, it comes in with no later cycle either unless something is freed; else it may not have been looked at.
    if desk.frozen or not (workload.refused or desk.lasted(workload.waiting_since, SETTLE)):
        left.take(workload.gpus)
        return
    idle = left.take(workload.gpus)
    name = demand_id(desk, group, DemandKind.WORKLOAD, workload.key.uid)
    opening = DemandOpening(
        demand_id=name,
        lender=group,
        kind=DemandKind.WORKLOAD,
        gpus=workload.gpus,
        pods=workload.pods,
        workload=workload.key,
        idle=idle,
        due_at=desk.now + desk.terms.max_time_to_return,
        reason=f"{workload.key.title} of {group} waits for {workload.gpus} GPUs",
    )
    desk.write(f"demand/{name}", f"{opening.reason}, {idle} are free", openings=[opening])


def _try_again(desk: Desk, demand: Demand, left: _Left) -> None:
    if desk.frozen:
        return
    if not desk.lasted(demand.moved_at or demand.opened_at, TRY_AGAIN):
        opened = demand.model_copy(update={"state": DemandState.OPEN, "idle": left.gpus})
        trial = desk.books.model_copy(
            update={"demands": tuple(opened if d is demand else d for d in desk.books.demands)}
        )
        plan = plan_recall(desk.facts, trial, desk.terms, demand.demand_id, now=desk.now)
        if not plan.complete or plan.victims:
            return
    change(desk, demand, DemandState.OPEN, "it is tried again", idle=left.take(demand.gpus))
