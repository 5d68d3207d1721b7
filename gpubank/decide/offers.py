"""What becomes of an offer: granted once its lender is fenced, or withdrawn.

    withdrawn   an own job of the lender came first; the Workload is gone, was admitted otherwise or needs another
                amount; frozen; 30 s old; its nodes are taken
    granted     every line fenced, the whole request together, the Workload pending (a parked one is resumed first)
    novation    the new line granted and the old one returned in one transaction, so that no job notices

One that gathers keeps what it has until it is whole or its time is over.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from gpubank.decide.desk import Desk, line_order, waits_for_quota
from gpubank.decide.fit import pod_size
from gpubank.decide.lend import gathering, room_for
from gpubank.decide.use import backing, spare
from gpubank.domain.contract import Side
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import Move, Pledge

STALE_OFFER: Final = timedelta(seconds=30)
"""How long an offer stands that nobody can take."""


def offers_of(desk: Desk, uid: str) -> list[Line]:
    """Lines that are offered to a Workload, novations left out."""
    return [line for line in desk.lines(LineState.OFFERED) if line.workload.uid == uid and line.replaces is None]


def whole_offer(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether the Workload is offered exactly what it lacks, and every lender's queue is fenced."""
    lines = offers_of(desk, workload.key.uid)
    lack = workload.gpus - backing(desk, workload.key.uid)
    return sum(line.gpus for line in lines) == lack > 0 and all(
        desk.fenced(line.lender, Side.OWN, line.revision) for line in lines
    )


def withdraw(desk: Desk, lines: Iterable[Line], reason: str, *, alone: frozenset[str] = frozenset()) -> None:
    """Withdraw offers, and with each line the rest of its loan, for it is granted whole or not at all.

    Workloads in `alone` (one that gathers) lose only the line itself. The line that a novation would have replaced
    is pledged to nobody any more.
    """
    gone: dict[str, Line] = {}
    for line in lines:
        whole = line.replaces is None and line.workload.uid not in alone
        for other in offers_of(desk, line.workload.uid) if whole else [line]:
            gone[other.line_id] = other
    if not gone:
        return
    replaced = [desk.books.line(line.replaces) for line in gone.values() if line.replaces is not None]
    pledges = [
        Pledge(line_id=old.line_id, version=old.version, demand=None)
        for old in replaced
        if old is not None and old.demand is not None and old.state is LineState.GRANTED
    ]
    moves = [
        Move(
            line_id=line.line_id,
            version=line.version,
            from_state=LineState.OFFERED,
            to_state=LineState.WITHDRAWN,
            reason=reason,
        )
        for line in sorted(gone.values(), key=line_order)
    ]
    names = ", ".join(move.line_id for move in moves)
    desk.write(f"withdraw/{moves[0].line_id}", f"offers {names} withdrawn: {reason}", moves=moves, pledges=pledges)


def withdraw_for(desk: Desk, lender: str, gpus: int, reason: str) -> int:
    """Withdraw the lender's newest offers until `gpus` GPUs are back in its queue; return how many are."""
    gang = gathering(desk)
    alone = frozenset({gang.key.uid}) if gang is not None else frozenset()
    back = 0
    for line in sorted(desk.lines(LineState.OFFERED), key=line_order, reverse=True):
        if back >= gpus:
            break
        if line.lender != lender or desk.books.line(line.line_id) is None:
            continue
        before = desk.books.lent(lender)
        withdraw(desk, [line], reason, alone=alone)
        back += before - desk.books.lent(lender)
    return back


def settle_offers(desk: Desk) -> None:
    """Grant what can be granted, and withdraw what cannot."""
    gang = gathering(desk)
    for uid in sorted({line.workload.uid for line in desk.lines(LineState.OFFERED) if line.replaces is None}):
        lines = offers_of(desk, uid)
        workload = desk.workload(uid)
        gathers = gang is not None and gang.key.uid == uid
        reason = _refusal(desk, workload, lines, gathers)
        if reason or workload is None:
            withdraw(desk, lines, reason)
        elif _can_take(workload) and whole_offer(desk, workload):
            if workload.reserved or room_for(desk, but=uid).holds(workload.pods, pod_size(workload)):
                _grant(desk, workload, lines)
            elif not gathers:
                withdraw(desk, lines, "its nodes are taken")


def _can_take(workload: WorkloadFacts) -> bool:
    """Whether a grant would be used at once: it is pending, or runs already without enough lines."""
    return workload.reserved or waits_for_quota(workload)


def _refusal(desk: Desk, workload: WorkloadFacts | None, lines: list[Line], gathers: bool) -> str:
    """Why an offer cannot stand; empty while it can."""
    if desk.frozen:
        return "the pool is frozen"
    if workload is None or workload.finished:
        return "its Workload is gone"
    lack = workload.gpus - backing(desk, workload.key.uid)
    if lack <= 0:
        return "its Workload was admitted on other lines"
    if not workload.active and not workload.parked:
        return "its Workload was switched off"
    offered = sum(line.gpus for line in lines)
    if offered > lack or (offered < lack and not gathers):
        return f"its Workload needs {lack} GPUs, not {offered}"
    if not gathers and desk.lasted(max(line.offered_at for line in lines), STALE_OFFER):
        desk.lapsed.add(workload.key.uid)
        return "nobody took it in time"
    return ""


def _grant(desk: Desk, workload: WorkloadFacts, lines: list[Line]) -> None:
    moves = [_granted(line, "") for line in lines]
    note = f"{workload.key.title} of {workload.group} is granted {sum(line.gpus for line in lines)} GPUs"
    desk.write(f"grant/{workload.key.uid}/{lines[0].term}", note, moves=moves)


def _granted(line: Line, reason: str) -> Move:
    return Move(
        line_id=line.line_id,
        version=line.version,
        from_state=LineState.OFFERED,
        to_state=LineState.GRANTED,
        reason=reason,
    )


def settle_novations(desk: Desk) -> None:
    """Put novating lines in the place of the old ones, or withdraw them."""
    for line in desk.lines(LineState.OFFERED):
        if line.replaces is None or desk.books.line(line.line_id) is None:
            continue
        old = desk.books.line(line.replaces)
        reason = _stale_novation(desk, line, old)
        if reason or old is None:
            withdraw(desk, [line], reason)
        elif desk.fenced(line.lender, Side.OWN, line.revision):
            moves = [
                _granted(line, f"in the place of {old.line_id}"),
                Move(
                    line_id=old.line_id,
                    version=old.version,
                    from_state=LineState.GRANTED,
                    to_state=LineState.RETURNED,
                    reason=f"{line.lender} lends in the place of {old.lender}",
                ),
            ]
            note = f"{line.lender} takes over {line.gpus} GPUs of {old.lender} for {line.workload.title}"
            desk.write(f"novate/{old.line_id}", note, moves=moves)


def _stale_novation(desk: Desk, line: Line, old: Line | None) -> str:
    if desk.frozen:
        return "the pool is frozen"
    if old is None or old.state is not LineState.GRANTED or old.gpus != line.gpus:
        return "the line that it would replace has changed"
    if old.workload.uid != line.workload.uid or spare(desk, line.workload.uid) > 0:
        return "its Workload does not use the line that it would replace"
    if old.demand is None:
        return "nobody needs it any more"
    if desk.lasted(line.offered_at, STALE_OFFER):
        return "it could not be fenced in time"
    return ""
