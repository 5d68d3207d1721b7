"""Signs of life: when the bank may give one, and what the watchdog makes of them.

the bank renews          the controller's loop turns, the ledger takes writes, and nobody waits without a Reclaim
the watchdog judges      stale   no change seen for failSafeAfter, a missing Lease included
                         well    renewals as long, none further from the last than the Lease's duration

The watchdog counts by its own monotonic clock, and only time in which it could look: an API server that was away
proves nothing about the bank.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from gpubank.decide.demand import TRY_AGAIN
from gpubank.domain.base import Message
from gpubank.domain.books import Books
from gpubank.domain.demand import Demand, DemandState
from gpubank.domain.failsafe import Beat
from gpubank.domain.terms import PoolTerms

UNSERVED: Final = timedelta(seconds=60)
"""How long a demand may be without a Reclaim before the bank counts as unable to serve it."""


# ---- the bank's side


def unserved(books: Books, terms: PoolTerms, reclaiming: Iterable[str], now: datetime) -> tuple[Demand, ...]:
    """Return the demands that nobody has worked on for too long; `reclaiming` are lenders whose Reclaim runs.

    One that ended PARTIAL counts as served until its restart is due. In a frozen pool nobody is to be served.
    """
    if terms.frozen(now):
        return ()
    served = frozenset(reclaiming)
    return tuple(demand for demand in books.demands if demand.lender not in served and now > _bearable(demand))


def waiting_lenders(books: Books, terms: PoolTerms, now: datetime) -> tuple[str, ...]:
    """Return the lenders whose Reclaims have to run for the heartbeat to go on."""
    return tuple(sorted({demand.lender for demand in unserved(books, terms, (), now)}))


def _bearable(demand: Demand) -> datetime:
    """Until when a demand may be without a Reclaim."""
    since = max(demand.opened_at, demand.moved_at or demand.opened_at)
    return since + UNSERVED + (TRY_AGAIN if demand.state is DemandState.PARTIAL else timedelta(0))


def promises(books: Books, terms: PoolTerms) -> dict[str, int]:
    """Return the guarantees in force that are not what their policies ask: what the watchdog cannot know."""
    groups = {group.group: group.guaranteed for group in terms.groups}
    return {
        guarantee.group: guarantee.in_force
        for guarantee in books.guarantees
        if guarantee.in_force != groups.get(guarantee.group, 0)
    }


# ---- the watchdog's side


class Pulse(Message):
    """What one watchdog has seen of one Lease; seconds of its own monotonic clock."""

    beat: Beat | None
    """As last seen; None while it is missing."""

    looked_at: float
    changed_at: float
    """When it last changed as far as was seen, or was first looked at."""

    unseen: float = 0.0
    """Seconds since `changed_at` in which nobody could look."""

    chain_since: float | None = None
    """When the first of an unbroken chain of renewals was seen."""

    last_beat: Beat | None = None
    """The last one that was there."""

    def silence(self) -> float:
        """Seconds without a change, as of the last look; those in which nobody could look do not count."""
        return max(self.looked_at - self.changed_at - self.unseen, 0.0)

    def chain(self) -> float:
        """Length in seconds of the unbroken chain of renewals, from the first to the last one seen."""
        return 0.0 if self.chain_since is None else self.changed_at - self.chain_since

    def is_stale(self, after: timedelta) -> bool:
        """Whether there was no sign of life for `after`."""
        return self.silence() > after.total_seconds()

    def is_well(self, after: timedelta) -> bool:
        """Whether there were unbroken signs of life for `after`."""
        return self.chain() >= after.total_seconds()


def looked(before: Pulse | None, beat: Beat | None, now: float, *, blind: bool = False) -> Pulse:
    """Return the pulse after a look at `now`; `blind` says that looks before it have failed."""
    if before is None:
        return Pulse(beat=beat, looked_at=now, changed_at=now, last_beat=beat)
    if beat is None or (before.last_beat is not None and beat.token == before.last_beat.token):
        away = now - before.looked_at if blind else 0.0
        broken = beat is None or now - before.changed_at > beat.duration.total_seconds()
        return before.model_copy(
            update={
                "beat": beat,
                "looked_at": now,
                "unseen": before.unseen + away,
                "chain_since": None if broken else before.chain_since,
            }
        )
    unbroken = before.chain_since is not None and now - before.changed_at <= beat.duration.total_seconds()
    return Pulse(
        beat=beat,
        looked_at=now,
        changed_at=now,
        chain_since=before.chain_since if unbroken else now,
        last_beat=beat,
    )
