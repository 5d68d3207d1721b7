"""The recall plan: what meets a demand and hurts least.

    own idle quota ─▶ unused loans ─▶ novation ─▶ victims

A plan commits nothing. Its transaction pledges what is given up, so that each GPU is pledged to one demand; planning
anew on the same facts changes nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpubank.decide.cuts import Cuts
from gpubank.decide.desk import Desk, kueue_order
from gpubank.decide.fit import Room, pod_size, unplaced
from gpubank.decide.repay import Repayment, Teller
from gpubank.decide.use import novated
from gpubank.decide.victims import Candidate, Most, choose_from, grace, held, needs_checkpoint, on_failure
from gpubank.domain.base import Duration, GpuCount, Message, clock
from gpubank.domain.books import Books
from gpubank.domain.contract import ReclaimClass, Side
from gpubank.domain.demand import WHOLE, Demand, DemandKind, DemandState
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.policy import Approval, OnCheckpointFailure
from gpubank.domain.recall import reclaim_id
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction

MOST_SAID: Final = 3
"""Leases that a reason names."""


class Victim(Message):
    """One Workload that is to be stopped."""

    workload: WorkloadKey
    borrower: str
    gpus: GpuCount
    line_ids: tuple[str, ...]
    """All of its lines, for it stops whole; those of the demanding lender are pledged to the demand."""

    reclaim_class: ReclaimClass
    needs_checkpoint: bool
    on_checkpoint_failure: OnCheckpointFailure
    grace: Duration
    """Longest notice."""


class RecallPlan(Message):
    """What is given up for one demand."""

    transaction: Transaction | None = None
    """What must be committed before anybody is told; None where nothing changes."""

    victims: tuple[Victim, ...] = ()
    """Everybody whom the demand rests on now, those asked before included; whoever was asked before and is not here
    any more is to be released."""

    need: GpuCount = 0
    """GPUs that the demand asks for."""

    covered: GpuCount = 0
    """GPUs of them that are kept free, on their way, or planned."""

    complete: bool = False
    """Whether all of it can be had, on nodes where the owner's pods fit."""

    approval_required: bool = False
    reason: str = ""
    """Why it is not complete."""

    leased: tuple[str, ...] = ()
    """uids of those whom only a CapacityLease keeps: if they were asked before, they are to be let go."""

    retry_at: datetime | None = None
    """When time alone makes more possible, as at the end of a minRunTime."""


def plan_recall(
    facts: PoolFacts,
    books: Books,
    terms: PoolTerms,
    demand_id: str,
    *,
    now: datetime,
    spared: frozenset[str] = frozenset(),
) -> RecallPlan:
    """Plan what is given up for an open demand, in the order of what it hurts.

    1. The lender's own idle quota is kept for it.
    2. Loans that nobody uses are closed for it.
    3. Free slack of others, or surplus, takes over running lines; never of a lender with own demand.
    4. Victims are taken in order until the rest is repaid and the owner's pods fit their nodes, last of all less
       important own work where the policy says so; then, from the last backwards, whoever is unnecessary is spared.
       One who was stopped and does not go, as on a dead node, is passed over if others can be had: it stays stopped,
       and its GPUs come back whenever they do.

    A demand for a Workload is met whole or not at all: if it cannot be, there are no victims. `spared` are uids that
    have refused.
    """
    desk = Desk(facts, books, terms, now)
    demand = books.demand(demand_id)
    if demand is None or demand.state is not DemandState.OPEN:
        return RecallPlan(complete=demand is not None, reason="" if demand is not None else "the demand has ended")
    if desk.frozen or facts.in_fail_safe:
        why = "the pool is frozen" if desk.frozen else "the scheduler is in charge until the fail-safe ends"
        return RecallPlan(need=demand.gpus, covered=min(demand.idle, demand.gpus), reason=why)
    planner = _Planner(desk, demand, spared)
    if planner.waits_for_stuck:
        without = _Planner(desk, demand, spared, pass_over_stuck=True).plan()
        if without.complete:
            return without
    return planner.plan()


class _Planner:
    """Plans for one demand."""

    def __init__(self, desk: Desk, demand: Demand, spared: frozenset[str], *, pass_over_stuck: bool = False) -> None:
        self._desk = desk
        self._demand = demand
        self._cuts = Cuts(desk.books)
        self._teller = Teller(desk, demand)
        self._owner = desk.workload(demand.workload.uid) if demand.workload is not None else None
        self._choice = choose_from(desk, demand, spared)
        self.waits_for_stuck = any(each.stuck for each in self._choice.candidates)
        """Whether somebody who was stopped for whomever does not go."""

        if pass_over_stuck:
            going = tuple(each for each in self._choice.candidates if not each.stuck)
            self._choice = replace(self._choice, candidates=going)
        self._unready = frozenset(node.name for node in desk.facts.nodes if not node.ready)
        self._coming = 0
        self._on_their_way: set[str] = set()
        self._idle = demand.idle

    @property
    def _left(self) -> int:
        """GPUs that have yet to be repaid."""
        if self._demand.kind is DemandKind.PLACEMENT:
            return 0
        return max(self._demand.gpus - self._idle - self._coming, 0)

    def plan(self) -> RecallPlan:
        if self._demand.kind in WHOLE and self._owner is None:
            return RecallPlan(need=self._demand.gpus, reason="the Workload that waited is gone")
        self._keep_idle()
        self._count_coming()
        self._close_unused()
        self._room = self._free_room()
        chosen = self._choose()
        left = self._left
        repayment = self._teller.repay(chosen, left)
        to_be_had = repayment.total
        complete = to_be_had >= left and self._fits(chosen)
        if not complete and self._demand.kind in WHOLE:
            chosen = [candidate for candidate in chosen if self._bound(candidate)]
            bound = self._teller.repay(chosen, left)
            repayment = Repayment(direct=bound.direct, own=bound.own)
        self._write(chosen, repayment)
        covered = self._demand.gpus - left + to_be_had
        return RecallPlan(
            transaction=self._transaction(),
            victims=tuple(self._victim(candidate) for candidate in chosen),
            need=self._demand.gpus,
            covered=min(covered, self._demand.gpus),
            complete=complete,
            approval_required=bool(chosen) and self._approval(),
            reason="" if complete else self._why_not(left - to_be_had),
            leased=tuple(workload.key.uid for workload, _ in self._choice.leased),
            retry_at=None if complete else self._choice.protected_until,
        )

    # ---- what is there without anybody's loss

    def _keep_idle(self) -> None:
        if self._demand.kind is not DemandKind.WORKLOAD:
            return
        free = max(self._desk.free(self._demand.lender) - self._desk.raised(self._demand.lender), 0)
        self._idle += min(free, max(self._demand.gpus - self._idle, 0))
        self._cuts.keep_idle(self._demand, self._idle)

    def _count_coming(self) -> None:
        """Count lines that are on their way: closing, about to be novated, or recalled of work that has ended."""
        replaced = novated(self._desk)
        self._on_their_way = {
            line.line_id
            for line in self._desk.books.lines
            if line.demand == self._demand.demand_id
            and (line.state is LineState.CLOSING or line.line_id in replaced or self._left_behind(line))
        }
        self._coming = sum(line.gpus for line in self._desk.books.lines if line.line_id in self._on_their_way)

    def _left_behind(self, line: Line) -> bool:
        """Whether the line is recalled and its Workload ended by itself; what was only chosen is free then."""
        workload = self._desk.workload(line.workload.uid)
        recalled = line.state is LineState.RECALLED and not line.is_chosen
        return recalled and (workload is None or workload.finished)

    def _close_unused(self) -> None:
        """Pledge what is closing, and close what nobody uses, as far as it is needed."""
        for line in self._desk.lines(LineState.CLOSING, LineState.RECALLED, LineState.GRANTED):
            unused = line.state is LineState.CLOSING or self._left_behind(line) or self._unused(line)
            part = min(line.gpus, self._left)
            if part <= 0 or not unused or not self._teller.counts(line):
                continue
            # What was pledged to this demand and ended by itself comes back too: nobody is stopped in its place.
            if line.line_id in self._on_their_way or not self._teller.free_of(line):
                continue
            piece = line.line_id if line.is_own else self._cuts.cut(line.line_id, part)
            self._on_their_way.add(piece)
            if line.state is not LineState.GRANTED:
                self._cuts.pledge(piece, self._demand.demand_id)
            else:
                self._cuts.close(piece, self._demand.demand_id, f"{self._demand.lender} needs it, nobody uses it")
            self._coming += part

    def _unused(self, line: Line) -> bool:
        workload = self._desk.workload(line.workload.uid)
        gone = workload is None or workload.finished or workload.gone
        return gone and line.state is LineState.GRANTED and line.line_id not in novated(self._desk)

    # ---- victims

    def _choose(self) -> list[Candidate]:
        """Take in order until it is enough; then spare, from the last backwards, whoever is unnecessary."""
        chosen: list[Candidate] = [candidate for candidate in self._choice.candidates if self._bound(candidate)]
        taken = {candidate.uid for candidate in chosen}
        most = Most(self._room, self._teller.novatable, chosen, self._unready)
        for candidate in self._choice.candidates:
            if self._may_be_enough(most) and self._enough(chosen):
                break
            if candidate.uid not in taken:
                chosen.append(candidate)
                most.add(candidate)
        worth = self._worth(chosen)
        if self._demand.kind in WHOLE and worth < (True, self._left):
            return chosen  # nobody is stopped for a part of it
        for candidate in reversed(chosen.copy()):
            if self._bound(candidate) or most.gpus - held(candidate) < worth[1]:
                continue
            rest = [other for other in chosen if other is not candidate]
            if self._worth(rest) >= worth:
                chosen = rest
                most.gpus -= held(candidate)
        return chosen

    def _may_be_enough(self, most: Most) -> bool:
        """Whether it is worth a closer look: what the chosen free and repay at most is looked at without effort."""
        if most.gpus < self._left:
            return False
        if self._demand.kind not in WHOLE or self._owner is None:
            return True
        return most.room.holds(unplaced(self._owner), pod_size(self._owner))

    def _bound(self, candidate: Candidate) -> bool:
        """Whether it is stopped already, for this demand."""
        return candidate.sunk and any(line.demand == self._demand.demand_id for line in candidate.lines)

    def _worth(self, chosen: Sequence[Candidate]) -> tuple[bool, int]:
        return self._fits(chosen), self._teller.repay(chosen, self._left).total

    def _enough(self, chosen: Sequence[Candidate]) -> bool:
        return self._worth(chosen) >= (True, self._left)

    def _fits(self, chosen: Sequence[Candidate]) -> bool:
        """Whether the owner's pods have room once the chosen are gone."""
        if self._demand.kind not in WHOLE or self._owner is None:
            return True
        room = self._room.copy()
        gone = {candidate.uid for candidate in chosen}
        for candidate in chosen:
            room.give(candidate.workload.pod_facts, unready=self._unready)
        for workload in self._waiting:
            if workload.key.uid not in gone:
                room.take(unplaced(workload), pod_size(workload))
        return room.holds(unplaced(self._owner), pod_size(self._owner))

    def _free_room(self) -> Room:
        """Return what the nodes have free, with what other demands free and take; borrow work that waits is left out.

        What is on its way to other demands is neither theirs nor ours twice: their victims' GPUs come, their own
        Workloads go there first.
        """
        desk, mine = self._desk, self._demand.demand_id
        room = Room.of(desk.facts.nodes)
        placed: list[WorkloadFacts] = []
        self._waiting: list[WorkloadFacts] = []
        others = {d.workload.uid for d in desk.books.demands if d.workload is not None and d.demand_id != mine}
        leaving = {line.workload.uid for line in desk.books.lines if line.demand not in (None, mine)}
        soon = {line.workload.uid for line in desk.books.lines if line.line_id not in self._on_their_way}
        for workload in desk.facts.workloads:
            uid = workload.key.uid
            if workload.finished or (self._owner is not None and uid == self._owner.key.uid):
                continue
            if uid in leaving:
                room.give(workload.pod_facts, unready=self._unready)
            elif workload.kind is Side.OWN and (workload.reserved or uid in others):
                if unplaced(workload):
                    placed.append(workload)
            elif workload.parked:
                continue  # it is stopped, and needs no room
            elif workload.kind is Side.BORROW and (workload.reserved or uid in soon) and unplaced(workload):
                self._waiting.append(workload)
        self._waiting.sort(key=kueue_order)  # few of thousands
        for workload in sorted(placed, key=kueue_order):
            room.take(unplaced(workload), pod_size(workload))
        return room

    # ---- writing

    def _write(self, chosen: Sequence[Candidate], repayment: Repayment) -> None:
        mine, cuts = self._demand.demand_id, self._cuts
        kept: set[str] = set()
        for line, gpus in repayment.direct:
            kept.add(piece := cuts.cut(line.line_id, gpus))
            cuts.pledge(piece, mine)
        for line, other, gpus in repayment.swaps:
            piece = cuts.cut(line.line_id, gpus)
            cuts.swap(piece, cuts.cut(other.line_id, gpus))
            cuts.pledge(piece, mine)
        for line, source in repayment.novations:
            piece = cuts.cut(line.line_id, source.gpus)
            cuts.novate(piece, source.lender)
            cuts.pledge(piece, mine)
        for candidate in chosen:
            if not candidate.is_own:
                continue
            for line in candidate.lines:
                cuts.pledge(line.line_id, mine)
                kept.add(line.line_id)
            if not candidate.lines:
                cuts.choose(candidate.workload, mine)
        if self._demand.kind is DemandKind.PLACEMENT:
            for candidate in chosen:
                for line in candidate.lines:
                    if self._teller.free_of(line):
                        cuts.pledge(line.line_id, mine)
                        kept.add(line.line_id)
        for line in self._desk.lines(LineState.GRANTED, LineState.RECALLED):
            if line.demand == mine and line.line_id not in kept | self._on_their_way:
                cuts.pledge(line.line_id, None)

    def _transaction(self) -> Transaction | None:
        demand, books = self._demand, self._desk.books
        return self._cuts.transaction(
            f"plan/{demand.demand_id}/{books.revision}",
            reclaim_id(books.cluster, books.pool, demand.lender),
            f"{demand.lender} needs {demand.gpus} GPUs: {demand.reason or demand.kind}",
            self._desk.now,
        )

    def _victim(self, candidate: Candidate) -> Victim:
        workload = candidate.workload
        return Victim(
            workload=workload.key,
            borrower=workload.group,
            gpus=held(candidate),
            line_ids=self._cuts.lines_of(workload.key.uid),
            reclaim_class=workload.contract.reclaim_class,
            needs_checkpoint=needs_checkpoint(workload),
            on_checkpoint_failure=on_failure(self._desk, self._demand, workload.group),
            grace=grace(self._desk, workload.group),
        )

    def _approval(self) -> bool:
        terms = self._desk.group(self._demand.lender)
        return terms is not None and terms.approval is Approval.REQUIRED and self._demand.kind is not DemandKind.RETURN

    def _leases(self) -> str:
        """Say who is kept by a lease, and until when; of many the first few."""
        said = [
            f"{workload.key.title} of {workload.group} ({workload.gpus} GPUs) is protected by"
            f" CapacityLease {lease.name} until {clock(lease.until)}"
            for workload, lease in self._choice.leased
        ]
        more = len(said) - MOST_SAID
        return "; ".join(said[:MOST_SAID]) + (f"; and {more} more" if more > 0 else "")

    def _why_not(self, missing: int) -> str:
        if self._choice.leased:
            return f"{max(missing, 0)} of {self._demand.gpus} GPUs cannot be had: {self._leases()}"
        if self._choice.protected_until is not None:
            return f"borrowed work has just come back and is protected until {self._choice.protected_until:%H:%M:%S}"
        if missing > 0:
            return f"{missing} of {self._demand.gpus} GPUs cannot be had: nobody else may be stopped"
        return "the owner's pods have room on no nodes, whoever is stopped"
