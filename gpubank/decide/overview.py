"""Who has what in a pool, per group, as `gpubank quota` shows it."""

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
    names = {group.group for group in terms.groups} | set(books.groups)
    return tuple(_row(facts, books, terms, name) for name in sorted(names - {SURPLUS}))


def _row(facts: PoolFacts, books: Books, terms: PoolTerms, name: str) -> QuotaRow:
    group = terms.group(name) or GroupTerms(group=name, guaranteed=0, borrow_limit=0, lending_limit=0)
    queue = facts.queue(name, Side.OWN)
    used = queue.reserved if queue else 0
    in_force = books.guarantee(name).in_force
    lent = books.lent_to_others(name)
    pending = _pending(facts, name, Side.OWN)
    idle = in_force - books.lent(name) - used - max(pending, books.pledged(name))
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
        pending=pending,
        pending_borrow=_pending(facts, name, Side.BORROW),
    )


def _pending(facts: PoolFacts, group: str, side: Side) -> int:
    return sum(
        workload.gpus
        for workload in facts.workloads
        if workload.group == group
        and workload.kind is side
        and workload.active
        and not workload.reserved
        and not workload.finished
    )
