"""Brings a pool's quotas to what the books say, beside the loop that decides.

    books ──▶ the latest wanted ──▶ lower, all at once ──▶ raise, each by itself ──▶ the next wanted

Lowering is waited for, by what is raised after it and not by the loop: a server under load takes its time for twenty
writes, and who wants GPUs meanwhile should be heard. A raise that takes its time (it may wait a second for the
scheduler) holds up neither. Every write names the revision that it rests on, so one that comes late is refused where a
later one stands.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from gpubank.controller.beside import Beside
from gpubank.decide import compile as compiler
from gpubank.decide.compile import QuotaWrite
from gpubank.decide.settle import return_writes
from gpubank.domain.books import Books
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.ports import QuotaBackend

log: Final = logging.getLogger(__name__)

_ALL: Final = "all quotas"


class Quotas:
    """Writes the quotas of one pool."""

    def __init__(self, pool: str, backend: QuotaBackend, wake: Callable[[], None]) -> None:
        self._pool, self._backend = pool, backend
        self._beside = Beside(f"in pool {pool}:", wake)
        self._wanted: Books | None = None
        self._written = 0

    async def want(self, books: Books, facts: PoolFacts) -> int:
        """Have these books written, the latest last; return how many writes have been made, or begun, in a moment.

        Raises what an earlier write has raised. A lost race is left to the next look.
        """
        await self._beside.settle(0)
        before, self._wanted = self._written, books
        self._beside.begin(_ALL, partial(self._write_all, facts))
        await self._beside.settle()
        return self._written - before

    async def take_back(self, books: Books, facts: PoolFacts) -> int:
        """Take queues out of the fail-safe, in an order of their own, and wait for it; return how many writes it is."""
        writes = return_writes(books, facts)
        for each in writes:
            try:
                await self._backend.take_back(
                    self._pool, each.group, each.kind, nominal=each.nominal, revision=each.revision
                )
            except ConflictError as error:
                log.info("pool %s: %s", self._pool, error)
                break
        return len(writes)

    async def stop(self) -> None:
        """Write nothing any more."""
        await self._beside.stop()

    async def _write_all(self, facts: PoolFacts) -> None:
        while (books := self._wanted) is not None:
            self._wanted = None
            lowering, raising = compiler.stages(compiler.writes(books, facts), facts)
            kept = await asyncio.gather(*map(self._write, lowering), return_exceptions=True)
            self._written += len(lowering)
            errors = [error for error in kept if error is not None]
            for error in errors:
                if not isinstance(error, ConflictError):
                    raise error
            if errors:
                log.info("pool %s: %s", self._pool, errors[0])
                raising = ()
            for each in raising:
                self._written += self._beside.begin((each.group, each.kind), partial(self._raise, each))
            if self._wanted is not None:  # by a look that did not see what has been written here
                facts = await self._backend.observe(self._pool)

    async def _write(self, write: QuotaWrite) -> None:
        await self._backend.write_quota(
            self._pool, write.group, write.kind, nominal=write.nominal, revision=write.revision
        )

    async def _raise(self, write: QuotaWrite) -> None:
        try:
            await self._write(write)
        except ConflictError as error:
            log.info("pool %s: %s", self._pool, error)
