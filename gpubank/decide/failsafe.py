"""The switch to the scheduler's own borrowing, one stage at a time; what is done already is seen, never remembered.

    epoch on the Cohort ─▶ every borrow queue in, acknowledged ─▶ surplus on the Cohort, every own queue in

A watchdog that dies anywhere leaves a pool that its next run, or another watchdog, finishes from what stands. Before
the own queues come in nobody can borrow anything, so nothing is ever lent twice on the way.
"""

from collections.abc import Mapping
from datetime import datetime

from gpubank.domain.contract import Side
from gpubank.domain.failsafe import Begin, CohortFacts, CohortQueue, End, Enter, FailSafeWrite, Lend
from gpubank.domain.terms import PoolTerms


def switch(
    facts: CohortFacts,
    terms: PoolTerms,
    promises: Mapping[str, int],
    now: datetime,
    *,
    stale: bool,
    well: bool,
) -> tuple[FailSafeWrite, ...]:
    """Return the writes that are due now, in any order; the next stage is due once they are seen to stand.

    Args:
        facts: the Cohort and its queues as they stand.
        terms: what the pool's groups are guaranteed and may borrow.
        promises: guarantees in force that differ from `terms`, as the bank said last.
        now: the time, for people.
        stale: whether the bank gave no sign of life for failSafeAfter.
        well: whether it has given unbroken ones for as long.

    """
    if not facts.epoch:
        # A frozen pool is left as it is: somebody is at work there, and nothing new is lent or recalled anyway.
        return (Begin(facts.last_epoch + 1, now),) if stale and not terms.frozen(now) else ()
    if well:
        return (End(facts.epoch),)
    guarantees = own_quotas(facts, terms, promises)
    borrow = [queue for queue in facts.queues if queue.kind is Side.BORROW]
    own = [queue for queue in facts.queues if queue.kind is Side.OWN]
    entries = _missing(facts.epoch, [_borrow_entry(facts.epoch, queue, terms) for queue in borrow])
    if entries or not all(queue.acknowledged for queue in borrow):
        return entries
    entries = _lower_first(_missing(facts.epoch, [_own_entry(facts.epoch, queue, guarantees) for queue in own]))
    surplus = max(terms.capacity - sum(guarantees.values()), 0)
    # Ahead of the own queues, which would take back from borrowers what the surplus has for them.
    return (Lend(surplus, facts.epoch), *entries) if facts.surplus != surplus else entries


def own_quotas(facts: CohortFacts, terms: PoolTerms, promises: Mapping[str, int]) -> dict[str, int]:
    """Return the quota of every own queue, in GPUs.

    Whoever runs more than its guarantee, which has yet to fall, keeps that: own work never pays. As long as the
    capacity allows, everybody has its guarantee in force, then what its policy asks beyond that.
    """
    quotas = {queue.group: queue.reserved for queue in facts.queues if queue.kind is Side.OWN}
    targets = {name: (group.guaranteed if (group := terms.group(name)) else 0) for name in quotas}
    left = max(terms.capacity - sum(quotas.values()), 0)
    for limits in ({name: min(promises.get(name, target), target) for name, target in targets.items()}, targets):
        for name in sorted(quotas):
            more = min(max(limits[name] - quotas[name], 0), left)
            quotas[name] += more
            left -= more
    return quotas


def _borrow_entry(epoch: int, queue: CohortQueue, terms: PoolTerms) -> Enter:
    group = terms.group(queue.group)
    limit = group.borrow_limit + group.guaranteed if group is not None else 0
    return Enter(queue, nominal=0, borrowing_limit=limit, reclaims=False, epoch=epoch)


def _own_entry(epoch: int, queue: CohortQueue, quotas: Mapping[str, int]) -> Enter:
    return Enter(queue, nominal=quotas[queue.group], borrowing_limit=0, reclaims=True, epoch=epoch)


def _missing(epoch: int, entries: list[Enter]) -> tuple[Enter, ...]:
    """Leave out what stands already."""
    return tuple(entry for entry in entries if not _stands(entry, epoch))


def _stands(entry: Enter, epoch: int) -> bool:
    queue = entry.queue
    return (
        queue.in_cohort
        and queue.best_effort
        and (queue.epoch, queue.nominal, queue.borrowing_limit, queue.reclaims)
        == (epoch, entry.nominal, entry.borrowing_limit, entry.reclaims)
    )


def _lower_first(entries: tuple[Enter, ...]) -> tuple[Enter, ...]:
    """Of queues that stand in the Cohort already, lower before any is raised."""
    lowered = tuple(e for e in entries if e.queue.in_cohort and e.nominal < e.queue.nominal)
    return lowered or entries
