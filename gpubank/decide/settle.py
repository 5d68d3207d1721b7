"""The books after the scheduler was in charge: what ran, since when, and until when; and how the queues come back.

    withdrawn   every offer: nobody was given what it promised
    kept        lines of Workloads that run on
    ended       lines of Workloads that hold no quota, at the time that their conditions tell
    dropped     lines of own work that was to make room, and runs on; what was stopped already has left
    adopted     what runs without lines, since its admission: of the group itself, of the surplus, of others; within
                the limits as far as they reach, beyond them where they do not, for it runs whatever they say

All of it in the order of time, so that no GPU is ever billed twice. It goes on while the epoch stands, for the books
are to be true whoever lends. Once it is cleared the own queues come back first, lowered to what the books leave them;
after their fence what was admitted meanwhile is adopted too, and then the borrow queues are raised to their loans.
"""

from datetime import datetime
from typing import NamedTuple

from gpubank.decide.compile import QuotaWrite, nominals, revisions
from gpubank.decide.demand import TRY_AGAIN, change, demand_id, end_stale
from gpubank.decide.desk import FENCE_POLL, Desk, line_order
from gpubank.decide.offers import withdraw
from gpubank.decide.slack import Source, borrow_room, borrowed
from gpubank.decide.use import backing, unbacked
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import PoolFacts, QueueFacts, WorkloadFacts
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.transaction import DemandOpening, GuaranteeChange, Move, Offer

IN_CHARGE = "the scheduler was in charge"


def settle(desk: Desk) -> None:
    """Bring the books to what runs; changes nothing where they say it already."""
    withdraw(desk, desk.lines(LineState.OFFERED), IN_CHARGE)
    _drop_own(desk)
    _let_go(desk)
    _follow_time(desk)
    if not desk.facts.fail_safe_epoch:
        if not desk.frozen:
            _recall_beyond(desk)
        desk.wake(desk.now + FENCE_POLL)


def _let_go(desk: Desk) -> None:
    """Keep nothing for anybody: what is free is lent by the scheduler. Who still waits is served afterwards."""
    for guarantee in desk.books.guarantees:
        if guarantee.releasing:
            row = GuaranteeChange(group=guarantee.group, version=guarantee.version, in_force=guarantee.in_force)
            desk.write(
                f"settle/{guarantee.group}", f"{guarantee.group} gives nothing up: {IN_CHARGE}", guarantees=[row]
            )
    end_stale(desk)
    for demand in desk.books.demands:
        if demand.is_open and demand.idle:
            change(desk, demand, demand.state, f"nothing is kept for it: {IN_CHARGE}", idle=0)
        elif demand.state is DemandState.PARTIAL and desk.lasted(demand.moved_at or demand.opened_at, TRY_AGAIN):
            change(desk, demand, DemandState.OPEN, "it is tried again when the bank is back")


def _drop_own(desk: Desk) -> None:
    """Let own work go on that was to make room: nobody is stopped for anybody now, and nobody owes anybody for it.

    Of what is being stopped already the Loan sees the end.
    """
    for line in desk.lines(LineState.RECALLED):
        workload = desk.workload(line.workload.uid)
        stops = workload is not None and workload.parked and not workload.gone
        if line.is_own and not stops:
            moves = [_move(line, line.state, LineState.RETURNED, f"it makes no room: {IN_CHARGE}")]
            note = f"{line.workload.title} of {line.lender} makes no room: {IN_CHARGE}"
            desk.write(f"settle/{line.line_id}", note, moves=moves)


# ---- lines, in the order of time


class _End(NamedTuple):
    """A Workload that holds no quota any more, and its lines."""

    at: datetime
    uid: str
    lines: tuple[Line, ...]
    reason: str


def _follow_time(desk: Desk) -> None:
    _regrant(desk)
    ends = sorted(_ends(desk), key=lambda end: (end.at, end.uid))
    started = sorted(unbacked(desk), key=lambda item: (_admitted(desk, item[0]), item[0].key.uid))
    waiting: list[tuple[WorkloadFacts, int]] = []
    while ends or started:
        if ends and (not started or ends[0].at <= _admitted(desk, started[0][0])):
            end = ends.pop(0)
            _end(desk, end)
            waiting = [item for item in waiting if not _adopt(desk, *item, at=end.at)]
        else:
            workload, lack = started.pop(0)
            if not _adopt(desk, workload, lack, at=_admitted(desk, workload)):
                waiting.append((workload, lack))


def _admitted(desk: Desk, workload: WorkloadFacts) -> datetime:
    return min(workload.admitted_at or desk.now, desk.now)


def _regrant(desk: Desk) -> None:
    """Lines that were closing serve their Workload again if it runs on them; what it does not need closes later."""
    for workload, lack in unbacked(desk):
        moves = []
        for line in desk.books.lines_of(workload.key.uid):
            if line.state is LineState.CLOSING and lack > 0:
                moves.append(_move(line, LineState.CLOSING, LineState.GRANTED, "its Workload runs on it"))
                lack -= line.gpus
        desk.write(f"settle/{workload.key.uid}", f"{workload.key.title} runs on lines that were closing", moves=moves)


def _ends(desk: Desk) -> list[_End]:
    found: dict[str, list[Line]] = {}
    for line in desk.lines(LineState.GRANTED, LineState.CLOSING, LineState.RECALLED):
        if not line.is_own:
            found.setdefault(line.workload.uid, []).append(line)
    ends = []
    for uid, lines in sorted(found.items()):
        workload = desk.workload(uid)
        if workload is not None and workload.reserved and not workload.finished:
            over = backing(desk, uid) >= workload.gpus
            if closing := tuple(line for line in lines if line.state is LineState.CLOSING and over):
                ends.append(_End(desk.now, uid, closing, "its Workload needs less"))
            continue
        if workload is not None and not workload.finished and _is_leaving(desk, workload):
            continue
        at, reason = _ended(desk, workload)
        begun = max((line.granted_at or line.offered_at for line in lines), default=at)
        ends.append(_End(min(max(at, begun), desk.now), uid, tuple(lines), reason))
    return ends


def _is_leaving(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether pods of a Workload that has lost its quota are still on nodes, and may be for a while."""
    return bool(workload.pod_facts) and not desk.lasted(workload.waiting_since, desk.terms.max_termination)


def _ended(desk: Desk, workload: WorkloadFacts | None) -> tuple[datetime, str]:
    """Return when a Workload lost its quota, and how.

    Of one that is gone nobody can tell. Until the switch its GPUs were no one else's, so until then it is billed.
    """
    if workload is None:
        return desk.facts.fail_safe_since or desk.now, "its Workload is gone, nobody knows since when"
    if workload.finished:
        return workload.waiting_since, "its Workload finished"
    return workload.waiting_since, f"its Workload lost its quota ({workload.evicted or 'waits'})"


def _end(desk: Desk, end: _End) -> None:
    moves = []
    for line in sorted(end.lines, key=line_order):
        state = line.state
        if state is LineState.GRANTED:
            moves.append(_move(line, state, LineState.CLOSING, end.reason))
            state = LineState.CLOSING
        moves.append(_move(line, state, LineState.RETURNED, end.reason))
    name = end.lines[0].workload.title
    desk.write(f"settle/{end.uid}", f"lines of {name} ended while {IN_CHARGE}: {end.reason}", at=end.at, moves=moves)


def _move(line: Line, before: LineState, after: LineState, reason: str) -> Move:
    return Move(
        line_id=line.line_id, version=line.version, from_state=before, to_state=after, release=True, reason=reason
    )


# ---- adoption


def _adopt(desk: Desk, workload: WorkloadFacts, lack: int, *, at: datetime) -> bool:
    """Give a running Workload lines since `at`; False, and nothing is done, where no lender has the quota free."""
    parts, beyond = _sources(desk, workload.group, lack)
    if sum(part.gpus for part in parts) < lack:
        return False
    offers, moves = [], []
    for number, part in enumerate(parts, start=desk.books.next_line):
        offers.append(
            Offer(
                lender=part.lender,
                borrower=workload.group,
                gpus=part.gpus,
                workload=workload.key,
                term=workload.next_term,
            )
        )
        moves.append(
            Move(
                line_id=f"{desk.books.pool}-{number}",
                version=1,
                from_state=LineState.OFFERED,
                to_state=LineState.GRANTED,
                reason="beyond a limit: it is recalled" if beyond else IN_CHARGE,
            )
        )
    flag = ", beyond a limit" if beyond else ""
    note = f"{workload.key.title} of {workload.group} runs on {lack} GPUs{flag}: adopted, for {IN_CHARGE}"
    desk.write(f"adopt/{workload.key.uid}", note, at=at, offers=offers, moves=moves)
    return True


def _sources(desk: Desk, borrower: str, gpus: int) -> tuple[list[Source], bool]:
    """Return who lends, and whether any of it is beyond a limit."""
    free = {group: max(desk.free(group), 0) for group in desk.groups} | {SURPLUS: max(desk.books.surplus, 0)}
    taken: dict[str, int] = {}
    room = borrow_room(desk, borrower)
    others = sorted((name for name in free if name != borrower), key=lambda name: (name != SURPLUS, -free[name], name))
    for beyond in (False, True):
        for lender in [borrower, *others]:
            part = min(free.get(lender, 0) - taken.get(lender, 0), gpus)
            if lender != borrower and not beyond:
                part = min(part, room, _may_lend(desk, lender) - taken.get(lender, 0))
            if part <= 0:
                continue
            taken[lender] = taken.get(lender, 0) + part
            gpus -= part
            room -= part if lender != borrower else 0
        if gpus <= 0:
            return [Source(lender, part) for lender, part in taken.items()], beyond
    return [], False


def _may_lend(desk: Desk, lender: str) -> int:
    """GPUs that the lender may still lend to others by its policy; surplus has no limit but what there is."""
    if lender == SURPLUS:
        return max(desk.books.surplus, 0)
    terms = desk.group(lender)
    return max(terms.lending_limit - desk.books.lent_to_others(lender), 0) if terms is not None else 0


def _recall_beyond(desk: Desk) -> None:
    """Open demands for what a group borrows beyond its borrowLimit, newest work first; lenders' limits have theirs."""
    for group in desk.groups:
        terms = desk.group(group)
        over = borrowed(desk, group) - (terms.borrow_limit if terms is not None else 0)
        lines = [line for line in desk.lines(LineState.GRANTED) if line.borrower == group and not line.is_self_loan]
        over -= sum(line.gpus for line in desk.books.lines if line.borrower == group and _leaves(desk, line))
        for line in sorted(
            lines, key=lambda each: (each.granted_at or each.offered_at, line_order(each)), reverse=True
        ):
            if over <= 0:
                break
            if not _leaves(desk, line):
                _recall(desk, line, f"{group} borrows {over} GPUs beyond its borrowLimit")
                over -= line.gpus


def _leaves(desk: Desk, line: Line) -> bool:
    """Whether a line comes back already."""
    if line.is_self_loan:
        return False
    asked = demand_id(desk, line.lender, DemandKind.RETURN, line.workload.uid)
    return line.state is not LineState.GRANTED or line.demand is not None or desk.books.demand(asked) is not None


def _recall(desk: Desk, line: Line, reason: str) -> None:
    name = demand_id(desk, line.lender, DemandKind.RETURN, line.workload.uid)
    opening = DemandOpening(
        demand_id=name,
        lender=line.lender,
        kind=DemandKind.RETURN,
        gpus=line.gpus,
        workload=line.workload,
        due_at=desk.now + desk.terms.max_time_to_return,
        reason=reason,
    )
    desk.write(f"demand/{name}", f"{line.gpus} GPUs are to come back: {reason}", openings=[opening])


# ---- queues


def return_writes(books: Books, facts: PoolFacts) -> tuple[QuotaWrite, ...]:
    """Return the quotas with which queues leave the Cohort; nothing while the epoch stands, or a fence is awaited.

    Own queues first, for they are lowered: while borrow queues are still in a Cohort that has nothing to lend, nobody
    new is admitted there. They come out when every own queue is fenced, raised to what the books have granted.
    """
    if facts.fail_safe_epoch or not facts.in_fail_safe:
        return ()
    own = _due(books, facts, Side.OWN)
    if own or not all(_is_fenced(queue) for queue in facts.queues if queue.kind is Side.OWN):
        return own
    return _due(books, facts, Side.BORROW)


def _due(books: Books, facts: PoolFacts, side: Side) -> tuple[QuotaWrite, ...]:
    """Return the writes of one side's queues that are in the Cohort, or not as the books say; lowering first."""
    quotas, latest = nominals(books), revisions(books)
    found = []
    for queue in (each for each in facts.queues if each.kind is side):
        nominal = quotas.get((queue.group, side), 0)
        if queue.fail_safe or nominal != queue.nominal or queue.stamp < latest.get((queue.group, side), 0):
            write = QuotaWrite(group=queue.group, kind=side, nominal=nominal, revision=books.revision)
            found.append((nominal > queue.nominal, queue.group, write))
    return tuple(write for _, _, write in sorted(found, key=lambda item: item[:2]))


def _is_fenced(queue: QueueFacts) -> bool:
    return queue.fenced >= queue.stamp
