"""One step of the bank for one pool: facts and books in, what is to be written and said out.

    who runs on what ─▶ overdrafts ─▶ demands ─▶ offers ─▶ unused loans ─▶ guarantees ─▶ new loans

A step is a function of its arguments and remembers nothing. Its transactions apply in order, each to the books after
the one before; each is one decision, so that a crash between two of them leaves quota idle and never lent twice.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from pydantic import AwareDatetime

from gpubank.decide.comeback import may_come_back
from gpubank.decide.demand import end_stale, follow_own_work
from gpubank.decide.desk import FENCE_POLL, Desk
from gpubank.decide.guarantee import follow_capacity, follow_targets, rest_lenders
from gpubank.decide.lapsed import follow_lapsed
from gpubank.decide.lend import offer_loans
from gpubank.decide.limits import cure_overdraft, follow_limits
from gpubank.decide.memo import Memo
from gpubank.decide.offers import settle_novations, settle_offers, whole_offer
from gpubank.decide.parked import MISSING_FOR, NOBODY, Parked, missing, parked
from gpubank.decide.placement import follow_placement
from gpubank.decide.settle import settle
from gpubank.decide.use import close_unused, reattach, settle_closing
from gpubank.decide.waiting import WaitingNote, notes
from gpubank.domain.base import GpuCount, Message
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandState
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction


class SignalKind(StrEnum):
    """What a Loan is told."""

    GRANTED = "granted"
    """Its lines are granted and it is admitted."""

    OFFERED = "offered"
    """GPUs for all of it lie ready, or it is own work that fits the guarantee again: resume it."""

    ENDED = "ended"
    """Its Workload finished or is gone."""


class LoanSignal(Message):
    """What one Loan is told; repeated by every step as long as it holds, so the sender folds repetitions."""

    workload: WorkloadKey
    borrower: str
    gpus: GpuCount
    kind: SignalKind
    term: int
    """Term that runs or that it would run in."""

    lenders: tuple[str, ...] = ()
    """Of its lines; at its end of those that only its Loan can return. Without any, the end starts no Loan."""

    at: AwareDatetime | None = None
    """When it was admitted or offered; an end is seen when it is said."""

    own: bool = False
    """Whether it is own work of its group."""


class LenderNeeds(Message):
    """Demands of one lender that its Reclaim works on."""

    lender: str
    demand_ids: tuple[str, ...]


class Step(Message):
    """What one step decided."""

    transactions: tuple[Transaction, ...] = ()
    """To be committed in order; where one conflicts, the rest is dropped and the step taken anew."""

    signals: tuple[LoanSignal, ...] = ()
    needs: tuple[LenderNeeds, ...] = ()
    waiting: tuple[WaitingNote, ...] = ()
    lapsed: tuple[str, ...] = ()
    """uids of Workloads that did not take what was lent for them."""

    parked: Parked = NOBODY
    """What the next step is told of parked Workloads."""

    wake_at: datetime | None = None
    """When time alone changes a decision; None where only new facts do."""


def step(
    facts: PoolFacts,
    books: Books,
    terms: PoolTerms,
    now: datetime,
    *,
    resting: frozenset[str] = frozenset(),
    before: Parked = NOBODY,
    memo: Memo | None = None,
) -> Step:
    """Decide everything that can be decided about one pool now.

    `resting` are uids of Workloads that let a loan lapse a short while ago (`Step.lapsed`): they are offered none, or
    work that the scheduler never admits would keep its GPUs from everybody else for ever.

    `before` are the parked Workloads of the step before (`Step.parked`): where one of them is gone, its Loan is told.

    `memo`, handed from step to step of one pool, spares the next one what has not changed; it decides nothing.

    Under the fail-safe nothing is decided: the scheduler is in charge, and the books are settled by what runs.
    """
    desk = Desk(facts, books, terms, now, resting=resting, memo=memo)
    if facts.in_fail_safe:
        settle(desk)
        return _said(desk, before)
    follow_capacity(desk)
    reattach(desk)
    settle_closing(desk)
    cure_overdraft(desk)
    end_stale(desk)
    follow_own_work(desk)
    follow_limits(desk)
    follow_lapsed(desk)
    settle_novations(desk)
    settle_offers(desk)
    close_unused(desk)
    follow_targets(desk)
    follow_placement(desk)
    rest_lenders(desk)
    offer_loans(desk)
    _wake_for_fences(desk)
    if desk.frozen and terms.freeze is not None and terms.freeze.until is not None:
        desk.wake(terms.freeze.until)
    return _said(desk, before, notes(desk))


def _said(desk: Desk, before: Parked, waiting: tuple[WaitingNote, ...] = ()) -> Step:
    gone = missing(desk, before)
    over = [each.workload for each in gone if desk.lasted(each.since, MISSING_FOR)]
    return Step(
        transactions=tuple(desk.transactions),
        signals=_signals(desk, over),
        needs=_needs(desk),
        waiting=waiting,
        lapsed=tuple(sorted(desk.lapsed)),
        parked=parked(desk, gone),
        wake_at=min(desk.wakes, default=None),
    )


def _wake_for_fences(desk: Desk) -> None:
    """Look again soon while a fence is awaited: it passes with time, not with an event."""
    lowered = desk.lines(LineState.OFFERED, LineState.CLOSING)
    releasing = [guarantee for guarantee in desk.books.guarantees if guarantee.releasing]
    raised = [demand for demand in desk.books.demands if demand.state is DemandState.RAISED]
    if lowered or releasing or raised:
        desk.wake(desk.now + FENCE_POLL)


def _needs(desk: Desk) -> tuple[LenderNeeds, ...]:
    found: dict[str, list[str]] = {}
    for demand in desk.books.demands:
        if demand.state in (DemandState.OPEN, DemandState.RAISED):
            found.setdefault(demand.lender, []).append(demand.demand_id)
    return tuple(LenderNeeds(lender=lender, demand_ids=tuple(sorted(ids))) for lender, ids in sorted(found.items()))


def _signals(desk: Desk, over: Iterable[WorkloadFacts]) -> tuple[LoanSignal, ...]:
    """Say what holds; `over` are parked Workloads that are gone."""
    lines = desk.books.line_index.by_workload
    running = [(workload, lines[workload.key.uid]) for workload in desk.at_rest(Side.BORROW)]
    own = [w for w in desk.stirring(Side.OWN) if w.parked]
    own += [w for w in desk.finished(Side.OWN) if desk.books.lines_of(w.key.uid) or w.stopped]
    stirring = (*desk.stirring(Side.BORROW), *desk.finished(Side.BORROW), *own)
    others = [_signal(desk, workload) for workload in stirring]
    signals = desk.memo.each("granted", running, _granted) + [signal for signal in others if signal is not None]
    signals.sort(key=lambda signal: signal.workload.uid)
    gone = {line.workload.uid: line for line in desk.stirring_lines() if desk.workload(line.workload.uid) is None}
    ended = [
        LoanSignal(
            workload=line.workload,
            borrower=line.borrower,
            gpus=sum(other.gpus for other in desk.books.lines_of(uid)),
            kind=SignalKind.ENDED,
            term=line.term,
            lenders=_left_behind(desk.books.lines_of(uid)),
            own=line.is_own,
        )
        for uid, line in sorted(gone.items())
    ]
    ended += [_say(workload, SignalKind.ENDED, workload.next_term) for workload in over]
    return (*signals, *ended)


def _signal(desk: Desk, workload: WorkloadFacts) -> LoanSignal | None:
    lines = desk.books.lines_of(workload.key.uid)
    granted = tuple(line for line in lines if line.state is LineState.GRANTED)
    if workload.finished:
        return _say(workload, SignalKind.ENDED, workload.next_term, _left_behind(lines))
    if workload.reserved and workload.active and sum(line.gpus for line in granted) >= workload.gpus > 0:
        return _granted(workload, granted)
    if workload.kind is Side.OWN:
        return _say(workload, SignalKind.OFFERED, workload.next_term) if may_come_back(desk, workload) else None
    if workload.parked and whole_offer(desk, workload):
        lenders = tuple(sorted({line.lender for line in lines}))
        return _say(workload, SignalKind.OFFERED, workload.next_term, lenders, lines[0].offered_at)
    return None


def _granted(workload: WorkloadFacts, lines: tuple[Line, ...]) -> LoanSignal:
    lenders = tuple(sorted({line.lender for line in lines}))
    return _say(workload, SignalKind.GRANTED, lines[0].term, lenders, workload.admitted_at)


def _left_behind(lines: Iterable[Line]) -> tuple[str, ...]:
    """Lenders of recalled lines: all others are closed here, whether a Loan runs or not."""
    return tuple(sorted({line.lender for line in lines if line.state is LineState.RECALLED}))


def _say(
    workload: WorkloadFacts,
    kind: SignalKind,
    term: int,
    lenders: tuple[str, ...] = (),
    at: datetime | None = None,
) -> LoanSignal:
    return LoanSignal(
        workload=workload.key,
        borrower=workload.group,
        gpus=workload.gpus,
        kind=kind,
        term=term,
        lenders=lenders,
        at=at,
        own=workload.kind is Side.OWN,
    )
