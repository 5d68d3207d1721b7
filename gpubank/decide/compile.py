"""The quotas are a function of the books: nothing else is remembered, and drift is repaired by recomputing."""

from collections.abc import Sequence
from typing import NamedTuple

from gpubank.domain.base import GpuCount, Message
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts

Queue = tuple[str, Side]
"""A queue: its group, and which of the two it is."""


class QuotaWrite(Message):
    """One queue's quota, to be written with the ledger revision that it was compiled from."""

    group: str
    kind: Side
    nominal: GpuCount
    revision: int


def nominals(books: Books) -> dict[Queue, int]:
    """Return the quota of every queue of the pool, in GPUs.

    * `own`: the guarantee in force, less what is being given up, what is lent (from OFFERED until RETURNED), what
      own work is being stopped on (from the moment that it is taken), and what is pledged to a demand;
    * `borrow`: the lines GRANTED to the group.

    Nothing is clamped: the books cannot hold what would make a quota negative (`Books.applied` refuses it).
    """
    quotas: dict[Queue, int] = {}
    for group in books.groups:
        quotas[group, Side.OWN] = books.own_nominal(group)
        quotas[group, Side.BORROW] = books.granted(group)
    return quotas


def revisions(books: Books) -> dict[Queue, int]:
    """Return, per queue, the latest revision of a row that its quota depends on; 0 where none does."""
    own = {guarantee.group: guarantee.revision for guarantee in books.guarantees}
    borrow: dict[str, int] = {}
    for demand in books.demands:
        own[demand.lender] = max(own.get(demand.lender, 0), demand.revision)
    for line in books.lines:
        if line.is_chosen:
            continue  # no quota depends on it
        revision = line.revision
        if revision > own.get(line.lender, 0):
            own[line.lender] = revision
        if not line.is_own and revision > borrow.get(line.borrower, 0):
            borrow[line.borrower] = revision
    sides = ((Side.OWN, own), (Side.BORROW, borrow))
    return {(group, side): revision for side, latest in sides for group, revision in latest.items()}


class Stages(NamedTuple):
    """Quota writes in the order in which they are made."""

    lowering: tuple[QuotaWrite, ...]
    """Everything that raises no quota."""

    raising: tuple[QuotaWrite, ...]
    """What does: only after all of the others."""


def stages(quota_writes: Sequence[QuotaWrite], facts: PoolFacts) -> Stages:
    """Return the writes in two parts; those of one part may go out at once: between them no quota is lent twice."""
    seen = {(queue.group, queue.kind): queue.nominal for queue in facts.queues}
    raises = tuple(write for write in quota_writes if write.nominal > seen.get((write.group, write.kind), 0))
    others = tuple(write for write in quota_writes if write.nominal <= seen.get((write.group, write.kind), 0))
    return Stages(others, raises)


def writes(books: Books, facts: PoolFacts) -> tuple[QuotaWrite, ...]:
    """Return what must be written so that the scheduler's quotas and stamps are those of the books.

    A queue is written when its quota differs, or when its stamp is older than a row that concerns it and whose fence
    somebody waits for. Lowerings come first, so that a writer that stops at the first failure has lent nothing
    twice; the rest is in the order of names. A queue with a higher stamp than the books is left alone (the books are
    stale), and so is everything while the fail-safe holds or queues are on their way back from it. Queues that the
    books do not know get nothing.
    """
    if facts.in_fail_safe:
        return ()
    quotas, latest = nominals(books), revisions(books)
    found: list[tuple[bool, str, Side, int]] = []
    for queue in facts.queues:
        if queue.stamp > books.revision:
            continue
        key = queue.group, queue.kind
        nominal = quotas.get(key, 0)
        if nominal != queue.nominal or queue.stamp < latest.get(key, 0):
            found.append((nominal > queue.nominal, *key, nominal))
    return tuple(
        QuotaWrite(group=group, kind=kind, nominal=nominal, revision=books.revision)
        for _, group, kind, nominal in sorted(found)
    )
