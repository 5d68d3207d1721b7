"""Lending: who gets a loan next, from whom, and whether it would run.

    candidates   pending borrow Workloads that wait for nothing but quota, and parked ones
    order        groups by borrowed ÷ weight ascending; within a group parked before newcomers, then the scheduler's
                 order (priority, creation, uid)
    a loan       whole or not at all, within the borrowLimit, onto nodes where it fits

So that a big gang is not starved by small ones, the oldest candidate that has waited ten minutes may gather slack in
OFFERED lines: one per pool, in the first ten minutes of every hour of its further wait. The times follow from the
wait itself, so that nothing has to be remembered.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from fractions import Fraction
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import Final

from gpubank.decide.desk import Desk, kueue_order, waits_for_quota
from gpubank.decide.fit import Room, pod_size, unplaced
from gpubank.decide.slack import Source, Till, borrowed, headroom, overhang, surplus_limit
from gpubank.decide.use import unbacked
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import LineState
from gpubank.domain.transaction import Offer

GATHER_AFTER: Final = timedelta(minutes=10)
"""How long a candidate must have waited before it may gather."""

MOST_BEGINNING: Final = 32
"""Loans of a pool that may be beginning at a time: offered, or granted and not admitted yet.

Each takes some writes and a fence. Hundreds at once, as after a large job has ended, would keep each other so long that
offers go stale before they are granted, and are made again; a few at a time are all taken.
"""

GATHER_FOR: Final = timedelta(minutes=10)
GATHER_EVERY: Final = timedelta(hours=1)


def may_be_stopped(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether its group's policy lets the bank stop it; what cannot be stopped is lent nothing."""
    terms = desk.group(workload.group)
    stopping = workload.contract.reclaim_class.preempt_class
    return terms is not None and workload.suspendable and stopping in terms.only_preempt


def names_allowed_class(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether the pool allows the priority class that it names; what has run before is not judged by a newer list."""
    return came_back(workload) or desk.terms.allows_class(workload.priority_class)


def would_start(workload: WorkloadFacts) -> bool:
    """Whether a loan would start it: it waits for nothing but quota, or the bank has parked it and will resume it.

    What the scheduler deactivated by itself, as after too many requeues, stays so although the bank had stopped it
    before: an offer to it would only keep GPUs from others.
    """
    resumable = workload.parked and workload.gpus > 0 and not workload.given_up
    return waits_for_quota(workload) or resumable


def candidates(desk: Desk) -> tuple[WorkloadFacts, ...]:
    """Borrow Workloads that a loan would start: pending or parked, stoppable, and without lines."""
    return tuple(
        workload
        for workload in _startable(desk)
        if not desk.books.lines_of(workload.key.uid) and workload.key.uid not in desk.resting
    )


def _startable(desk: Desk) -> tuple[WorkloadFacts, ...]:
    """Borrow Workloads that a loan would start, and that may be stopped again."""

    def found() -> tuple[WorkloadFacts, ...]:
        borrow = desk.stirring(Side.BORROW)
        startable = (w for w in borrow if would_start(w) and may_be_stopped(desk, w))
        return tuple(workload for workload in startable if names_allowed_class(desk, workload))

    return desk.fixed("startable", found)


def came_back(workload: WorkloadFacts) -> bool:
    """Whether it has run before and was stopped by the bank; such work goes before newcomers."""
    return workload.mark is not None


# ---- room on the nodes


def room_for(desk: Desk, *, but: str | None = None) -> Room:
    """Return what the nodes have free for new loans, not counting the Workload `but`.

    Free is what is allocatable, less what runs, less what is admitted and not placed yet, less what own work and
    granted loans are about to take.
    """
    if but is None:
        return desk.once("room", lambda: _room_for(desk, None)).copy()
    return _room_for(desk, but)


def _room_for(desk: Desk, but: str | None) -> Room:
    room = desk.fixed("free room", lambda: Room.of(desk.facts.nodes)).copy()
    for workload in desk.once("taking room", lambda: _taking_room(desk)):
        if workload.key.uid != but:
            room.take(unplaced(workload), pod_size(workload))
    return room


def _taking_room(desk: Desk) -> list[WorkloadFacts]:
    """Return whose pods are about to be placed, in turn."""
    found = [
        workload
        for group in _unplaced(desk)
        for workload in desk.of_group("taking room", group, partial(_taking_room_of, desk, group))
    ]
    return sorted(found, key=lambda w: (w.kind is not Side.OWN, not w.reserved, *kueue_order(w)))


def _taking_room_of(desk: Desk, group: str) -> list[WorkloadFacts]:
    return [workload for workload in _unplaced(desk)[group] if _takes_room(desk, workload)]


def _unplaced(desk: Desk) -> dict[str, list[WorkloadFacts]]:
    """Return whoever has pods that are on no node, by group."""

    def found() -> dict[str, list[WorkloadFacts]]:
        groups: dict[str, list[WorkloadFacts]] = {}
        for workload in (*desk.stirring(Side.OWN), *desk.stirring(Side.BORROW)):
            if unplaced(workload):
                groups.setdefault(workload.group, []).append(workload)
        return groups

    return desk.fixed("unplaced", found)


def _takes_room(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether its pods are about to be placed."""
    if workload.reserved or desk.books.lines_of(workload.key.uid):
        return True
    return workload.kind is Side.OWN and any(owed is workload for owed in desk.owed(workload.group))


# ---- the gang that gathers


def gathering(desk: Desk) -> WorkloadFacts | None:
    """Return the one candidate that may gather slack now."""
    return desk.once("gathering", lambda: _gathering(desk))


def _gathering(desk: Desk) -> WorkloadFacts | None:
    if desk.frozen:
        return None
    partly = {line.workload.uid for line in desk.lines(LineState.OFFERED) if line.replaces is None}
    for workload in desk.fixed("startable, longest first", lambda: _longest_first(desk)):
        uid = workload.key.uid
        held = any(line.state is not LineState.OFFERED for line in desk.books.lines_of(uid))
        if held or uid in desk.resting or not could_ever_run(desk, workload, partly):
            continue
        begins = workload.waiting_since + GATHER_AFTER
        if not desk.lasted(workload.waiting_since, GATHER_AFTER):
            return None
        into = (desk.now - begins) % GATHER_EVERY
        hour = desk.now - into
        desk.wake(hour + (GATHER_FOR if into < GATHER_FOR else GATHER_EVERY))
        return workload if into < GATHER_FOR else None
    return None


def _longest_first(desk: Desk) -> list[WorkloadFacts]:
    """Return who could be started if nobody else ran, the longest wait first."""
    emptied = Room.emptied(desk.facts.nodes)
    fitting = [workload for workload in _startable(desk) if emptied.holds(workload.pods, pod_size(workload))]
    return sorted(fitting, key=lambda w: (w.waiting_since, w.key.uid))


def could_ever_run(desk: Desk, workload: WorkloadFacts, partly: set[str]) -> bool:
    """Whether limits would let it run if nobody else did."""
    terms = desk.group(workload.group)
    if terms is None:
        return False
    mine = sum(
        line.gpus
        for line in desk.books.lines_of(workload.key.uid)
        if line.state is LineState.OFFERED and not line.is_self_loan
    )
    others = max(terms.borrow_limit - borrowed(desk, workload.group) + mine, 0)
    lent = desk.fixed("lending limits", lambda: sum(g.lending_limit for g in desk.terms.groups)) - terms.lending_limit
    potential = min(others, lent + surplus_limit(desk, desk.terms.capacity)) + terms.guaranteed
    return potential >= workload.gpus or workload.key.uid in partly


# ---- offers


def offer_loans(desk: Desk) -> None:
    """Offer what there is to who comes first."""
    if desk.frozen:
        return
    _back_running(desk)
    if overhang(desk):
        return  # nodes are missing: what room is left on the others is for whoever has lost its place
    gang = gathering(desk)
    if gang is not None:
        _gather(desk, gang)
    left = headroom(desk)
    room = room_for(desk)
    till = Till.of(desk)
    places = MOST_BEGINNING - _beginning(desk)
    # Nobody for whom there is not enough now could be offered anything later: what is there only becomes less.
    asking = [each for each in candidates(desk) if till.available(each.group, each.gpus) >= each.gpus]
    for workload in _in_turn(desk, [each for each in asking if gang is None or each.key.uid != gang.key.uid]):
        if places <= 0:
            return
        if till.available(workload.group, workload.gpus) < workload.gpus:
            continue
        if workload.gpus > left or not room.holds(workload.pods, pod_size(workload)):
            continue
        left -= workload.gpus
        places -= 1
        parts = till.sources(workload.group, workload.gpus)
        room.take(workload.pods, pod_size(workload))
        for part in parts:
            till.take(part, workload.group)
        _offer(desk, workload, parts)


def _beginning(desk: Desk) -> int:
    """Return for how many Workloads a loan is beginning."""
    return sum(
        any(line.state in (LineState.OFFERED, LineState.GRANTED) for line in desk.books.lines_of(workload.key.uid))
        for workload in desk.stirring(Side.BORROW)
        if not workload.reserved
    )


def _in_turn(desk: Desk, asking: Sequence[WorkloadFacts]) -> Iterator[WorkloadFacts]:
    """Yield those who ask in turn, each once."""
    queues: dict[str, list[WorkloadFacts]] = {}
    for workload in sorted(asking, key=lambda w: (not came_back(w), *kueue_order(w)), reverse=True):
        queues.setdefault(workload.group, []).append(workload)
    turns = [(_share(desk, group), group) for group in queues]
    heapify(turns)
    while turns:
        _, group = turns[0]
        yield queues[group].pop()
        # Whoever was asked may have been offered something; nobody else holds more than before.
        if queues[group]:
            heapreplace(turns, (_share(desk, group), group))
        else:
            heappop(turns)


def _share(desk: Desk, group: str) -> Fraction:
    """What the group holds of others, by its weight."""
    terms = desk.group(group)
    return Fraction(borrowed(desk, group), terms.weight if terms is not None else 1)


def _offer(desk: Desk, workload: WorkloadFacts, parts: list[Source]) -> None:
    offers = [
        Offer(
            lender=part.lender,
            borrower=workload.group,
            gpus=part.gpus,
            workload=workload.key,
            term=workload.next_term,
        )
        for part in parts
    ]
    lenders = ", ".join(f"{part.gpus} of {part.lender}" for part in parts)
    note = f"{workload.key.title} of {workload.group} is offered {lenders}"
    desk.write(f"offer/{workload.key.uid}/{workload.next_term}", note, offers=offers)


def _gather(desk: Desk, gang: WorkloadFacts) -> None:
    """Add to the gang's offers what slack there is, up to its request."""
    missing = min(gang.gpus - sum(line.gpus for line in desk.books.lines_of(gang.key.uid)), headroom(desk))
    parts = Till.of(desk).sources(gang.group, missing) if missing > 0 else []
    if parts:
        _offer(desk, gang, parts)


def _back_running(desk: Desk) -> None:
    """Give work that was admitted without enough lines, as after a race, lines of its own before anybody else."""
    for workload, lack in unbacked(desk):
        lack -= sum(
            line.gpus
            for line in desk.books.lines_of(workload.key.uid)
            if line.state is LineState.OFFERED and line.replaces is None
        )
        parts = Till.of(desk).sources(workload.group, lack) if lack > 0 else []
        if parts and sum(part.gpus for part in parts) == lack:
            _offer(desk, workload, parts)


def has_demand(desk: Desk, group: str) -> bool:
    """Whether own work of the group waits for its guarantee."""
    return bool(desk.owed(group)) or any(d.is_open for d in desk.demands_of(group, DemandKind.WORKLOAD))
