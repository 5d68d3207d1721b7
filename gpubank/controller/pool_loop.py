"""One pool's loop: see, decide, write the books, write the quotas, tell the processes.

    observe ──▶ decide.step ──▶ ledger.commit… ──▶ write_quota… ──▶ signals
       ▲                                                              │
       └───────────── on a change, at `wake_at`, or after a resync ───┘

Quotas are written and processes are told beside the loop (`quotas`, `words`): what takes its time holds no look up.
Nothing is remembered between turns but what was said to whom and who rests or is parked, so a turn can be cut off
anywhere and simply begins anew. One turn decides until nothing is left to decide, for a grant may make the next offer
possible.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from gpubank.controller.notes import Notes
from gpubank.controller.observer import Observer
from gpubank.controller.quotas import Quotas
from gpubank.controller.words import Words
from gpubank.decide.memo import Memo
from gpubank.decide.parked import NOBODY
from gpubank.decide.step import Step, step
from gpubank.domain.books import Books
from gpubank.domain.errors import BackendError, BankError, ConflictError, LedgerError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.failsafe import loop_lease
from gpubank.domain.recall import loan_id, reclaim_id
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Choose, Offer, Reattach, Transaction
from gpubank.ports import Leases, LedgerStore, Notifier, Processes, QuotaBackend

log = logging.getLogger(__name__)

MAX_ROUNDS = 50
"""Decisions in one turn before it yields to others; each is a ledger transaction."""

MAX_TURN: Final = 5.0
"""Seconds after which a turn is over although something is left: under steady traffic something always is, and a turn
that lasts is told of, and shows that the loop lives, only at its end."""

LONGEST_BREATH: Final = 0.25
"""Most seconds that a loop rests between two turns: as long as the last one kept the processor busy.

In a pool of 1,000 groups a turn takes 75 ms of it, and something changes all the time: without a rest such a loop would
take a core for itself, and Kueue and the API server would have what is left.
"""

BEAT_EVERY = timedelta(seconds=5)
"""Least time between two signs of life of a loop that turns all the time."""

FIRST_REST, LONGEST_REST = timedelta(seconds=30), timedelta(minutes=10)
"""How long a Workload that did not take its loan is offered none, the first time and at most; others come first."""


class PoolLoop:
    """Runs the bank for one pool of one cluster."""

    def __init__(
        self,
        cluster: str,
        pool: str,
        *,
        backend: QuotaBackend,
        ledger: LedgerStore,
        processes: Processes,
        notifier: Notifier,
        terms: Callable[[], PoolTerms | None],
        now: Callable[[], datetime],
        leases: Leases | None = None,
        observer: Observer | None = None,
        resync: timedelta = timedelta(seconds=15),
    ) -> None:
        self.cluster, self.pool = cluster, pool
        self._observer = observer
        self._backend, self._ledger = backend, ledger
        self._terms, self._now, self._resync = terms, now, resync
        self._leases = leases
        self._beat_at: datetime | None = None
        self._gets_on = False
        """Whether something that the last turn decided came into the books."""

        self._wake = asyncio.Event()
        self._quotas = Quotas(pool, backend, self._wake.set)
        self._words = Words(cluster, pool, processes, first_pause=resync, wake=self._wake.set)
        self._notes = Notes(pool, notifier)
        self._memo = Memo()
        self._parked = NOBODY
        """Who is parked, and who of them is missing."""

        self._resting: dict[str, tuple[datetime, timedelta]] = {}
        """When Workloads let a loan lapse, and how long they are offered none."""

        self.facts: PoolFacts | None = None
        self.books: Books | None = None
        self.problem = ""

    def poke(self) -> None:
        """Have the loop look now, as after a change of terms."""
        self._wake.set()

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Turn until cancelled; a failed turn is logged, kept in `problem`, and tried again with back-off."""
        watcher = asyncio.create_task(self._watch())
        failures = 0
        try:
            while True:
                self._wake.clear()
                began, busy = time.monotonic(), time.thread_time()
                try:
                    wait = await self.turn()
                    failures, self.problem = 0, ""
                    if self._observer is not None:
                        took = time.monotonic() - began
                        self._observer.turned(self.pool, took, self.facts, self.books, self._terms())
                    await self._beat(wait)
                except (BankError, OSError) as error:
                    failures += 1
                    self.problem = str(error)
                    if self._observer is not None:
                        self._observer.failed(self.pool, time.monotonic() - began)
                    level = logging.ERROR if isinstance(error, LedgerError) else logging.WARNING
                    log.log(level, "pool %s: turn failed: %s", self.pool, error)
                    wait = timedelta(seconds=min(0.2 * 2 ** min(failures, 6), 10))
                busy = time.thread_time() - busy
                await self._sleep(wait, sleep)
                await asyncio.sleep(min(busy, LONGEST_BREATH))
        finally:
            for beside in (self._notes, self._quotas, self._words):
                await beside.stop()
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _beat(self, wait: timedelta) -> None:
        """Give a sign of life after a turn that came to an end, or whose decisions came into the books.

        Under steady traffic there is always one more thing to decide, and no turn comes to an end: were that no life,
        the watchdog would take a pool from a bank that works. A loop that decides and cannot write is none.
        """
        now = self._now()
        if not wait and not self._gets_on:
            return
        if self._leases is None or (self._beat_at is not None and now - self._beat_at < BEAT_EVERY):
            return
        try:
            await self._leases.renew(
                loop_lease(self.cluster, self.pool), holder="gpubank", duration=max(3 * self._resync, 6 * BEAT_EVERY)
            )
        except (BackendError, ConflictError) as error:
            log.warning("pool %s: its loop's lease: %s", self.pool, error)
        else:
            self._beat_at = now

    async def _sleep(self, wait: timedelta, sleep: Callable[[float], Awaitable[None]]) -> None:
        timer = asyncio.ensure_future(sleep(wait.total_seconds()))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({timer, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (timer, woken):
                task.cancel()
            await asyncio.gather(timer, woken, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                async for _ in self._backend.changes(self.pool):
                    self._wake.set()
            except BackendError as error:
                log.warning("pool %s: watch failed: %s", self.pool, error)
            await asyncio.sleep(1)

    async def turn(self) -> timedelta:
        """Decide and act until nothing is left; return how long nothing needs to be looked at."""
        self._gets_on, end = False, time.monotonic() + MAX_TURN
        for _ in range(MAX_ROUNDS):
            terms = self._terms()
            if terms is None:
                return self._resync
            facts = await self._backend.observe(self.pool)
            books = await self._ledger.books(self.cluster, self.pool)
            now = self._now()
            resting = self._rests(facts, now)
            decided = step(facts, books, terms, now, resting=resting, before=self._parked, memo=self._memo)
            self._parked = decided.parked
            committed, books = await self._commit(decided, books, now)
            self._rest(decided.lapsed, now)
            if facts.in_fail_safe:
                wrote = await self._quotas.take_back(books, facts)
            else:
                wrote = await self._quotas.want(books, facts)
            self.facts, self.books = facts, books
            await self._words.tell(decided.signals, decided.needs, now)
            self._notes.tell(decided.waiting, partial(_exists, facts))
            if not committed and not wrote:
                return self._until(decided, now)
            if time.monotonic() >= end:
                break
        return timedelta(0)

    def _rests(self, facts: PoolFacts, now: datetime) -> frozenset[str]:
        """Uids of Workloads that are offered nothing now; whoever was admitted, or is gone, begins anew."""
        asked = ((uid, facts.workload(uid)) for uid in self._resting)
        waiting = {uid for uid, workload in asked if workload is not None and not workload.reserved}
        self._resting = {uid: rest for uid, rest in self._resting.items() if uid in waiting}
        return frozenset(uid for uid, (since, pause) in self._resting.items() if now < since + pause)

    def _rest(self, uids: Sequence[str], now: datetime) -> None:
        for uid in uids:
            _, pause = self._resting.get(uid, (now, FIRST_REST / 2))
            self._resting[uid] = now, min(pause * 2, LONGEST_REST)

    def _until(self, decided: Step, now: datetime) -> timedelta:
        if decided.wake_at is None:
            return self._resync
        return min(max(decided.wake_at - now, timedelta(milliseconds=20)), self._resync)

    async def _commit(self, decided: Step, books: Books, now: datetime) -> tuple[int, Books]:
        """Commit in order; a lost compare-and-set ends the round, for its rest was decided on old books.

        Many are written at a time. Reclaims are told of their demands as soon as those are in the books: they begin to
        plan while offers and grants are still committed, and while the quotas are written.
        """
        opened = max((n for n, transaction in enumerate(decided.transactions, 1) if transaction.openings), default=0)
        count = 0
        for part, opens in ((decided.transactions[:opened], True), (decided.transactions[opened:], False)):
            while part:
                try:
                    after = await self._ledger.commit_all(part)
                except ConflictError as error:
                    log.info("pool %s: %s", self.pool, error)
                    return count + 1, await self._ledger.books(self.cluster, self.pool)
                self._gets_on = True
                for transaction, result in zip(part, after, strict=False):
                    if self._observer is not None:
                        self._observer.committed(books, transaction)
                    about = _about(transaction, books)
                    log.info("pool %s: %s", self.pool, transaction.note or transaction.key, extra=about)
                    books = result
                part, count = part[len(after) :], count + len(after)
            if opens:
                self._words.tell_needs(decided.needs, now)
                await asyncio.sleep(0)  # they go out before the next commit does
        return count, books


def _about(transaction: Transaction, books: Books) -> dict[str, object]:
    """Return what the log names beside the note: the Loans and Reclaims that the transaction is about."""
    cluster, pool = transaction.cluster, transaction.pool
    named: tuple[Offer | Choose | Reattach, ...] = (
        *transaction.offers,
        *transaction.choices,
        *transaction.reattachments,
    )
    line_ids = {take.line_id for take in transaction.takes} | {move.line_id for move in transaction.moves}
    moved = map(books.line, line_ids)
    jobs = {each.workload.uid for each in named} | {line.workload.uid for line in moved if line is not None}
    lenders = {each.lender for each in transaction.openings}
    return {
        "pool": pool,
        "transaction": transaction.key,
        "loans": sorted(loan_id(cluster, uid) for uid in jobs) or None,
        "reclaims": sorted(reclaim_id(cluster, pool, lender) for lender in lenders) or None,
    }


def _exists(facts: PoolFacts, uid: str) -> bool:
    return facts.workload(uid) is not None
