"""One pool as the activities see it: books, facts, terms and quotas behind one door."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from activities.failures import not_yet
from gpubank.decide import compile as compiler
from gpubank.domain.books import Books
from gpubank.domain.errors import BackendError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction
from gpubank.ports import LedgerStore, QuotaBackend, TermsSource

Clock = Callable[[], datetime]
"""Tells the time, with its zone."""

FREEZE_POLL: Final = timedelta(seconds=1)
"""How often a step that a freeze or the fail-safe holds up looks again."""


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

    async def books(self, pool: str) -> Books:
        """Return the pool's open books."""
        return await self.ledger.books(self.cluster, pool)

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

    async def commit(self, transaction: Transaction) -> Books:
        """Write one transaction; an empty one writes nothing."""
        if transaction.is_empty:
            return await self.books(transaction.pool)
        return await self.ledger.commit(transaction)

    async def write_quotas(self, pool: str) -> None:
        """Bring every quota of the pool to what the books say now, lowering before raising.

        Nothing is written under the fail-safe. `ConflictError` means that somebody wrote a newer revision.
        """
        facts = await self.quota.observe(pool)
        if facts.in_fail_safe:
            return
        for write in compiler.writes(await self.books(pool), facts):
            await self.quota.write_quota(pool, write.group, write.kind, nominal=write.nominal, revision=write.revision)


def in_state(lines: tuple[Line, ...], *states: LineState) -> tuple[Line, ...]:
    """Return the lines that are in one of the states."""
    return tuple(line for line in lines if line.state in states)
