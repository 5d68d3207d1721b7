"""Who has what in a pool, per group, as `gpubank quota` shows it."""

from collections import Counter

from gpubank.decide.desk import Desk
from gpubank.decide.serving import kept_for_serving
from gpubank.domain.base import Message
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import SURPLUS
from gpubank.domain.terms import GroupTerms, PoolTerms


class QuotaRow(Message):
    """One group in one pool; all numbers are GPUs."""

    pool: str
    group: str
    guaranteed: int
    """What its policy asks and its share allows."""

    in_force: int
    """What of it is in force; it follows the policy as use allows."""

    used: int
    """Reserved by its own work."""

    borrowed: int
    """Held of others and of the surplus."""

    borrow_limit: int
    lent: int
    """Lent to others."""

    lendable: int
    """What it could lend to others now."""

    lending_limit: int
    pledged: int
    """Own quota kept free for work that waits."""

    pending: int
    """Own work that waits."""

    pending_borrow: int
    """Work in its borrow queue that waits."""


def overview(facts: PoolFacts, books: Books, terms: PoolTerms) -> tuple[QuotaRow, ...]:
    """Return one row for every group with terms or books in the pool, by name; the surplus has none."""
    names = sorted(({group.group for group in terms.groups} | set(books.groups)) - {SURPLUS})
    pending = _pending(facts)
    desk = Desk(facts, books, terms, facts.at)
    idle = {name: _idle(desk, name, pending[name, Side.OWN]) for name in names}
    kept = kept_for_serving(desk, idle)
    return tuple(_row(facts, books, terms, name, idle[name] - kept.get(name, 0), pending) for name in names)


def _idle(desk: Desk, name: str, pending: int) -> int:
    """GPUs of the guarantee that are neither lent nor used, nor waited for."""
    books, used = desk.books, desk.reserved(name, Side.OWN)
    wanted = max(pending, books.pledged(name))
    return books.guarantee(name).in_force - books.lent(name) - used - wanted


def _row(
    facts: PoolFacts, books: Books, terms: PoolTerms, name: str, idle: int, pending: Counter[tuple[str, Side]]
) -> QuotaRow:
    group = terms.group(name) or GroupTerms(group=name, guaranteed=0, borrow_limit=0, lending_limit=0)
    queue = facts.queue(name, Side.OWN)
    used = queue.reserved if queue else 0
    in_force = books.guarantee(name).in_force
    lent = books.lent_to_others(name)
    return QuotaRow(
        pool=terms.pool,
        group=name,
        guaranteed=group.guaranteed,
        in_force=in_force,
        used=used,
        borrowed=books.borrowed(name),
        borrow_limit=group.borrow_limit,
        lent=lent,
        lendable=max(min(group.lending_limit - lent, idle), 0),
        lending_limit=group.lending_limit,
        pledged=books.pledged(name),
        pending=pending[name, Side.OWN],
        pending_borrow=pending[name, Side.BORROW],
    )


def _pending(facts: PoolFacts) -> Counter[tuple[str, Side]]:
    """GPUs of work that waits, by group and queue."""
    waiting: Counter[tuple[str, Side]] = Counter()
    for workload in facts.workloads:
        if workload.active and not workload.reserved and not workload.finished:
            waiting[workload.group, workload.kind] += workload.gpus
    return waiting
