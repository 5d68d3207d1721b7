"""Why somebody waits, in words for the owner of the job; the same facts give the same words."""

from gpubank.decide.comeback import may_come_back
from gpubank.decide.desk import Desk, kueue_order, waits_for_quota
from gpubank.decide.fit import Room, pod_size
from gpubank.decide.lease import protected
from gpubank.decide.lend import gathering, may_be_stopped, names_allowed_class, room_for
from gpubank.decide.slack import Till, borrow_room
from gpubank.domain.base import Message, clock
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import LineState, WorkloadKey


class WaitingNote(Message):
    """Why one Workload waits."""

    workload: WorkloadKey
    reason: str
    """CamelCase, as of an Event."""

    message: str


def notes(desk: Desk) -> tuple[WaitingNote, ...]:
    """Say, for everybody who waits for quota, why; own work first, then in the scheduler's order."""
    waiting = sorted(filter(waits_for_quota, desk.stirring(Side.OWN)), key=kueue_order)
    own = [_own_note(desk, workload) for workload in waiting]
    own += [_parked_note(desk, w) for w in sorted(desk.stirring(Side.OWN), key=kueue_order) if w.parked and w.gone]
    till, room, gang = Till.of(desk), room_for(desk), gathering(desk)
    asking = [w for w in desk.stirring(Side.BORROW) if waits_for_quota(w) or w.parked]
    borrow = [_borrow_note(desk, workload, till, room, gang) for workload in sorted(asking, key=kueue_order)]
    return tuple(note for note in (*own, *borrow) if note is not None)


def _note(workload: WorkloadFacts, reason: str, message: str) -> WaitingNote:
    return WaitingNote(workload=workload.key, reason=reason, message=message)


def _own_note(desk: Desk, workload: WorkloadFacts) -> WaitingNote | None:
    group = workload.group
    demand = next(
        (
            d
            for d in desk.demands_of(group, DemandKind.WORKLOAD)
            if d.workload is not None and d.workload.uid == workload.key.uid
        ),
        None,
    )
    if all(other is not workload for other in desk.owed(group)):
        guaranteed = min(desk.books.guarantee(group).in_force, desk.target(group))
        message = (
            f"{workload.gpus} GPUs do not fit what is left of the guarantee of {group} ({guaranteed}); own work waits"
            f" for own work to end, or submit it to the borrow queue"
        )
        return _note(workload, "AboveGuarantee", message)
    if desk.frozen and desk.terms.freeze is not None and (demand is None or demand.state is not DemandState.RAISED):
        freeze = desk.terms.freeze
        message = f"the pool is frozen by {freeze.by} ({freeze.reason}): nothing is recalled until the freeze ends"
        return _note(workload, "Frozen", message)
    if demand is None:
        return None
    if demand.state is DemandState.PARTIAL:
        message = f"not all of {demand.gpus} GPUs could be had ({demand.reason}); it is tried again within minutes"
        return _note(workload, "RecallIncomplete", message)
    message = (
        f"{demand.gpus} GPUs are being recalled for it, due at {clock(demand.due_at)} at the latest"
        f"{_kept_by_leases(desk, group)}"
    )
    return _note(workload, "Recalling", message)


def _parked_note(desk: Desk, workload: WorkloadFacts) -> WaitingNote | None:
    """Say of own work that made room what it waits for; nothing once it is about to come back."""
    if may_come_back(desk, workload):
        return None
    left = max(desk.left_of(workload.group) - desk.books.stopping(workload.group), 0)
    message = (
        f"it made room for more important work of {workload.group}; it needs {workload.gpus} GPUs of the"
        f" guarantee, which has {left} left for it and for what waits before it"
    )
    return _note(workload, "MadeRoom", message)


def _kept_by_leases(desk: Desk, lender: str) -> str:
    """Say which leases keep borrowed work on GPUs of the lender; empty where none does."""
    kept = {
        lease.name: lease.until
        for uid, lease in protected(desk).items()
        if any(line.lender == lender for line in desk.books.lines_of(uid))
    }
    if not kept:
        return ""
    last = max(kept.values())
    return f"; of what it lent, CapacityLease {', '.join(sorted(kept))} keeps a part until {clock(last)}"


def _borrow_note(
    desk: Desk, workload: WorkloadFacts, till: Till, room: Room, gang: WorkloadFacts | None
) -> WaitingNote | None:
    group = workload.group
    states = {line.state for line in desk.books.lines_of(workload.key.uid)}
    if desk.frozen and desk.terms.freeze is not None:
        freeze = desk.terms.freeze
        return _note(workload, "Frozen", f"the pool is frozen by {freeze.by} ({freeze.reason}): nothing is lent")
    if gang is not None and gang.key.uid == workload.key.uid:
        have = sum(line.gpus for line in desk.books.lines_of(workload.key.uid))
        return _note(workload, "Gathering", f"{have} of {workload.gpus} GPUs are set aside for it")
    if states & {LineState.OFFERED, LineState.GRANTED}:
        return None
    if desk.group(group) is None:
        return _note(workload, "NoPolicy", f"group {group!r} has no policy in force in pool {desk.terms.pool!r}")
    if not may_be_stopped(desk, workload):
        kind = workload.contract.reclaim_class
        message = (
            f"work of class {kind!r} is not lent to: the policy of {group!r} does not let the bank stop it;"
            " label it retryable, give it a checkpoint hook, or name its class in onlyPreempt"
        )
        return _note(workload, "NotReclaimable", message)
    if not names_allowed_class(desk, workload):
        allowed = ", ".join(sorted(desk.terms.allowed_priority_classes))
        message = (
            f"work of priority class {workload.priority_class!r} is not lent to: pool {desk.terms.pool!r} allows"
            f" {allowed}; submit it anew with one of them, or with none"
        )
        return _note(workload, "PriorityClassNotAllowed", message)
    if workload.key.uid in desk.resting:
        message = "GPUs were lent for it and it did not start on them; it is offered some again within minutes"
        return _note(workload, "NotTaken", message)
    have = till.available(group, workload.gpus)
    if have < workload.gpus:
        without_limit = till.available(group, workload.gpus, room=workload.gpus)
        if without_limit >= workload.gpus:
            message = f"it needs {workload.gpus} GPUs; {group!r} may borrow {borrow_room(desk, group)} more at most"
            return _note(workload, "BorrowLimit", message)
        message = f"it needs {workload.gpus} GPUs; {have} are idle and may be lent to {group!r}"
        return _note(workload, "NoSlack", message)
    if not room.holds(workload.pods, pod_size(workload)):
        message = f"enough GPUs are idle, but no nodes have room for {workload.pods} pods of {pod_size(workload)} GPUs"
        return _note(workload, "NoRoom", message)
    return None
