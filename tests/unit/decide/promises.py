"""What must hold of every transaction and at every moment, whoever acts."""

from collections.abc import Callable, Iterable
from datetime import datetime

from gpubank.decide.bill import follow
from gpubank.decide.compile import nominals
from gpubank.decide.desk import Desk
from gpubank.decide.parked import MISSING_FOR, TOLD_FOR, Parked
from gpubank.decide.slack import borrowed
from gpubank.decide.step import SignalKind, Step
from gpubank.domain.books import Applied, Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.policy import WithinGroup
from gpubank.domain.transaction import Transaction


def check_transaction(transaction: Transaction, applied: Applied, desk: Callable[[], Desk]) -> None:
    """Assert that a transaction that was applied keeps what was promised; `desk` stands after it."""
    if transaction.offers or transaction.swaps:
        _check_promises(desk(), transaction)
    if any(move.from_state is LineState.OFFERED for move in transaction.moves):
        _check_granted_whole(desk(), transaction)
    if transaction.choices:
        _check_choices(desk(), transaction)
    for line in applied.lines:
        assert not line.is_own or not follow(None, line, transaction.at), "own work is billed"


def _check_promises(desk: Desk, transaction: Transaction) -> None:
    """Assert that whoever lends, borrows or swaps does so within its terms."""
    books, terms = desk.books, desk.terms
    for offer in transaction.offers:
        lender, borrower = terms.group(offer.lender), terms.group(offer.borrower)
        if offer.lender != SURPLUS:
            assert desk.free(offer.lender) >= 0, f"{offer.lender} lends what it uses"
        if offer.lender != offer.borrower:
            limit = books.surplus if lender is None else lender.lending_limit
            lent = books.lent_to_others(offer.lender) if lender is not None else 0
            assert lent <= limit, f"{offer.lender} lends beyond its limit"
        if offer.lender != offer.borrower and offer.replaces is None:
            assert borrower is not None
            assert borrowed(desk, offer.borrower) <= borrower.borrow_limit, "borrowed beyond the limit"


def _check_granted_whole(desk: Desk, transaction: Transaction) -> None:
    for move in transaction.moves:
        line = desk.books.line(move.line_id)
        if line is not None and move.from_state is LineState.OFFERED and line.state is LineState.GRANTED:
            workload = desk.workload(line.workload.uid)
            assert workload is not None
            running = (LineState.GRANTED, LineState.RECALLED)
            held = sum(x.gpus for x in desk.books.lines_of(workload.key.uid) if x.state in running)
            assert held >= workload.gpus, "granted in part"


def _check_choices(desk: Desk, transaction: Transaction) -> None:
    """Assert that only less important own work makes room, where its policy says so, and never serving work."""
    for choice in transaction.choices:
        terms, demand = desk.group(choice.group), desk.books.demand(choice.demand)
        assert terms is not None
        assert demand is not None
        assert demand.workload is not None
        victim, owner = desk.workload(choice.workload.uid), desk.workload(demand.workload.uid)
        assert victim is not None
        assert owner is not None
        assert terms.within_group is WithinGroup.LOWER_PRIORITY, "somebody makes room against the policy"
        assert (victim.group, victim.kind) == (owner.group, owner.kind) == (demand.lender, Side.OWN)
        assert victim.priority < owner.priority, "equal or higher priority makes room"
        assert victim.contract.reclaim_class.preempt_class in terms.only_preempt, "serving work makes room"


def check_ends(said: Step, facts: PoolFacts, before: Parked, now: datetime) -> None:
    """Assert that an end is said once, of nobody who is there and has not finished, and of all who were parked."""
    ended = [signal.workload.uid for signal in said.signals if signal.kind is SignalKind.ENDED]
    assert len(set(ended)) == len(ended)
    for uid in ended:
        workload = facts.workload(uid)
        assert workload is None or workload.finished, f"{uid} is there"
    for workload in before.there:
        now_there = facts.workload(workload.key.uid)
        missed = workload.key.uid in {each.workload.key.uid for each in said.parked.missing}
        assert now_there is not None or missed or workload.key.uid in ended, "nobody tells of its end"
    for each in before.missing:
        over = now >= each.since + MISSING_FOR and facts.workload(each.workload.key.uid) is None
        assert not over or each.workload.key.uid in ended, "nobody tells of its end in time"
    assert all(now < each.since + TOLD_FOR for each in said.parked.missing), "remembered for ever"


def check_books(books: Books, quotas: Iterable[int], reserved: int, capacity: int) -> None:
    """Assert the invariants that hold at every moment."""
    assert sum(quotas) <= capacity, "quotas exceed the pool"
    assert reserved <= capacity, f"{reserved} GPUs reserved of {capacity}: something was lent twice"
    in_force = sum(g.in_force - g.releasing for g in books.guarantees)
    lines = [line for line in books.lines if not line.is_chosen]
    away = sum(x.gpus for x in lines if x.lender != SURPLUS and x.state is not LineState.GRANTED)
    surplus = sum(x.gpus for x in lines if x.lender == SURPLUS and x.state is LineState.GRANTED)
    idle = sum(d.idle for d in books.demands if d.is_open and d.lender != SURPLUS)
    compiled = nominals(books)
    assert sum(compiled.values()) == in_force - idle - away + surplus
    assert all(nominal >= 0 for nominal in compiled.values())
    lent = sum(books.lent(g) for g in (*books.groups, SURPLUS))
    assert lent == sum(x.gpus for x in lines)
