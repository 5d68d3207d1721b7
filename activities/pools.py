"""One pool as the activities see it: books, facts, terms and quotas behind one door."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from temporalio.exceptions import ApplicationError

from activities.failures import NOT_YET, not_yet
from activities.turns import Groups, Rounds, Turns
from gpubank.decide import compile as compiler
from gpubank.decide.lease import protected_now
from gpubank.domain.books import Books
from gpubank.domain.errors import BackendError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction
from gpubank.ports import LedgerStore, QuotaBackend, TermsSource

Clock = Callable[[], datetime]
"""Tells the time, with its zone."""

FREEZE_POLL: Final = timedelta(seconds=1)
"""How often a step that a freeze or the fail-safe holds up looks again."""

LINGER: Final = 3.0
"""Seconds for which a look that found nothing yet looks again at every change, before the server starts another."""

FOLD, LONGEST_FOLD = 0.02, 1.0
"""Seconds in which changes become one look; some looks change something themselves.

In a pool where something changes all the time it is as long as all who linger would take for a look each: together they
leave half of the processor to others, however large the pool and however many they are. What a look waits for, as for
the database, costs nobody anything and does not count.
"""

MOST_LINGER: Final = 32
"""Looks that may linger at a time: more of them would keep a worker's places from work that can be done."""

RECALLED_ACTION: Final = "recall"
"""Action of the audit event of a recall; its count is the ordinal of the last one."""

T = TypeVar("T")


def utc_now() -> datetime:
    """Return the present, in UTC."""
    return datetime.now(UTC)


class Pools:
    """What a worker beside one cluster can read and write about its pools."""

    def __init__(
        self, cluster: str, *, quota: QuotaBackend, ledger: LedgerStore, terms: TermsSource, clock: Clock = utc_now
    ) -> None:
        self.cluster = cluster
        self.quota = quota
        self.ledger = ledger
        self._terms = terms
        self.now = clock
        self.turns = Turns()
        self._rounds = Rounds(self._write_quotas)
        self._lingering = 0

    async def books(self, pool: str) -> Books:
        """Return the pool's open books."""
        return await self.ledger.books(self.cluster, pool)

    async def terms_now(self, pool: str) -> PoolTerms | None:
        """Return the pool's terms; None where it has none."""
        return await self._terms.terms(pool)

    async def terms(self, pool: str) -> PoolTerms:
        """Return the pool's terms; raise `BackendError` where it has none, as while its object is being mended."""
        terms = await self._terms.terms(pool)
        if terms is None:
            raise BackendError(f"pool {pool!r} has no terms in force: create or mend its GPUPool")
        return terms

    async def check_in_force(self, facts: PoolFacts) -> None:
        """Raise "not yet" while a freeze or the fail-safe forbids every irreversible step."""
        if facts.in_fail_safe:
            state = f"epoch {facts.fail_safe_epoch}" if facts.fail_safe_epoch else "it is on its way back"
            raise not_yet(
                f"pool {facts.pool!r} is under its fail-safe ({state}): this step waits",
                again=FREEZE_POLL,
            )
        terms = await self._terms.terms(facts.pool)
        if terms is not None and terms.freeze is not None and terms.frozen(self.now()):
            raise not_yet(
                f"pool {facts.pool!r} is frozen by {terms.freeze.by}: {terms.freeze.reason}; this step waits",
                again=FREEZE_POLL,
            )

    async def is_leased(self, facts: PoolFacts, books: Books, uid: str) -> bool:
        """Whether a CapacityLease in force keeps the Workload from every recall."""
        return uid in protected_now(facts, books, await self.terms(facts.pool), self.now())

    async def recalls(self, loan: str) -> int:
        """How often a loan was recalled, by the audit trail."""
        events = await self.ledger.audit(subject=loan)
        return sum(event.action == RECALLED_ACTION for event in events)

    async def patiently(self, pool: str, look: Callable[[], Awaitable[T]], *, about: WorkloadKey | None = None) -> T:
        """Look, and while it is "not yet" once more at every change of the pool, for at most `LINGER`.

        What is waited for is seen when it comes and not when the server looks next; with `about` only changes that may
        concern that Workload count. Whoever finds too many waiting already looks once, as a poll does.
        """
        try:
            return await look()
        except ApplicationError as error:
            # One that says when to look again waits for time, not for a change.
            if error.type != NOT_YET or error.next_retry_delay is not None or self._lingering >= MOST_LINGER:
                raise
            last = error
        loop = asyncio.get_running_loop()
        end, fold = loop.time() + LINGER, FOLD
        self._lingering += 1
        try:
            async with aclosing(self.quota.changes(pool, about)) as changes:
                # Only the wait is cut off, never a look.
                while loop.time() < end and await _within(end - loop.time(), changes.__anext__()):
                    await asyncio.sleep(fold)
                    began = time.thread_time()
                    try:
                        return await look()
                    except ApplicationError as error:
                        if error.type != NOT_YET or error.next_retry_delay is not None:
                            raise
                        last = error
                    fold = fold_after(time.thread_time() - began, self._lingering)
        finally:
            self._lingering -= 1
        raise last

    async def commit(self, transaction: Transaction) -> Books:
        """Write one transaction; an empty one writes nothing."""
        if transaction.is_empty:
            return await self.books(transaction.pool)
        return await self.ledger.commit(transaction)

    async def write_quotas(self, pool: str, groups: Iterable[str] | None = None) -> None:
        """Bring quotas of the pool to what the books say now, lowering before raising; many who ask at once share it.

        With `groups` only theirs: a step writes what it has moved, and the controller everything. Were every step to
        write all that is not written yet, workers and controller would be in each other's way in a large pool. Nothing
        is written under the fail-safe. `ConflictError` means that somebody wrote a newer revision.
        """
        await self._rounds.after_now(pool, None if groups is None else frozenset(groups))

    async def _write_quotas(self, pool: str, groups: Groups) -> None:
        facts = await self.quota.observe(pool)
        if facts.in_fail_safe:
            return
        wanted = [
            each for each in compiler.writes(await self.books(pool), facts) if groups is None or each.group in groups
        ]
        for stage in compiler.stages(wanted, facts):
            written = await asyncio.gather(
                *(
                    self.quota.write_quota(pool, each.group, each.kind, nominal=each.nominal, revision=each.revision)
                    for each in stage
                ),
                return_exceptions=True,
            )
            # Nothing is raised before everything that was to be lowered is.
            for error in written:
                if error is not None:
                    raise error


def fold_after(took: float, lingering: int) -> float:
    """Return the seconds until the next look after one of so many of processor time, where so many linger."""
    return min(max(took * lingering, FOLD), LONGEST_FOLD)


async def _within(seconds: float, change: Awaitable[None]) -> bool:
    """Tell whether something changed in time; lets others work in any case, also where the change is there already."""
    # Neither wait_for, which before Python 3.12 swallows a cancellation that comes with the change, nor timeout, which
    # never ends what never waits: a look that changes something itself would go round without end.
    asked = asyncio.ensure_future(change)
    try:
        await asyncio.wait({asked}, timeout=max(seconds, 0))
    finally:
        if not asked.done():
            asked.cancel()
            await asyncio.wait({asked})
    if asked.cancelled() or isinstance(asked.exception(), StopAsyncIteration):
        return False
    await asked
    return True


def groups_of(lines: Iterable[Line]) -> set[str]:
    """Return the groups whose queues say something of the lines."""
    return {group for line in lines for group in (line.lender, line.borrower)}


def in_state(lines: tuple[Line, ...], *states: LineState) -> tuple[Line, ...]:
    """Return the lines that are in one of the states."""
    return tuple(line for line in lines if line.state in states)
