"""Watches the heartbeat of every pool, and switches those whose bank is dead to the scheduler's own borrowing.

    Lease ─▶ pulse ─▶ stale? well? ─▶ decide.failsafe.switch ─▶ one stage of writes ─▶ look again ─▶ …

What stands at the scheduler says how far a switch has got, so a watchdog that dies anywhere is finished by its next
run, and several of them do no harm: every write is a compare-and-set.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from gpubank.decide.failsafe import switch
from gpubank.decide.heartbeat import Pulse, looked
from gpubank.domain.errors import BackendError, BankError, ConflictError
from gpubank.domain.failsafe import Begin, CohortFacts, End, Enter, FailSafeWrite, Lend, heartbeat_lease
from gpubank.domain.terms import PoolTerms
from gpubank.ports import FailSafeBackend, Leases

log = logging.getLogger(__name__)

Tell = Callable[[str, str, str], Awaitable[None]]
"""Tells people about a pool: its name, a CamelCase reason, a sentence."""

LOOK_AT_ALL_EVERY: Final = 60.0
"""Seconds after which a pool's Cohort is looked at although nothing seems to be the matter."""

PAUSE: Final = 0.2
"""Seconds between two looks while a stage is taken in by the scheduler."""

PATIENCE: Final = 25
"""Looks without anything to write after which a switch is left to the next turn."""

_AT_ONCE: Final = 8
"""Pools that are switched, or queues that are written, at a time."""


def _now() -> datetime:
    return datetime.now(UTC)


async def _nobody(pool: str, reason: str, message: str) -> None:
    """Tell nobody but the log."""


class Watchdog:
    """Watches every pool of one cluster."""

    def __init__(
        self,
        cluster: str,
        *,
        terms: Callable[[], Awaitable[Mapping[str, PoolTerms]]],
        leases: Leases,
        backend: FailSafeBackend,
        tell: Tell = _nobody,
        now: Callable[[], datetime] = _now,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cluster = cluster
        self._terms, self._leases, self._backend, self._tell = terms, leases, backend, tell
        self._now, self._monotonic, self._pause = now, monotonic, pause
        self._pulses: dict[str, Pulse] = {}
        self._blind: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._looked_at: dict[str, float] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @property
    def pulses(self) -> Mapping[str, Pulse]:
        """What was last seen of every pool's heartbeat."""
        return self._pulses

    @property
    def epochs(self) -> Mapping[str, int]:
        """Fail-safe epoch of every pool as last seen; 0 while the bank is in charge."""
        return self._epochs

    async def run(self, poll: float) -> None:
        """Turn every `poll` seconds until cancelled; what fails is logged and tried again."""
        while True:
            try:
                await self.turn()
            except BankError as error:
                log.warning("watchdog: %s", error)
            await self._pause(poll)

    async def turn(self) -> None:
        """Look at every pool once and do what is due; a pool that cannot be looked at keeps no other waiting."""
        try:
            terms = await self._terms()
        except BankError:
            self._blind |= self._pulses.keys()
            raise
        for gone in self._pulses.keys() - terms.keys():
            del self._pulses[gone]
        await asyncio.gather(*(self._one(pool) for pool in terms.values()))

    async def _one(self, terms: PoolTerms) -> None:
        async with self._slots:
            try:
                await self._mind(terms)
            except BankError as error:
                log.warning("pool %s: %s", terms.pool, error)

    async def _mind(self, terms: PoolTerms) -> None:
        pool = terms.pool
        pulse = await self._feel(pool)
        stale, well = pulse.is_stale(terms.fail_safe_after), pulse.is_well(terms.fail_safe_after)
        if not stale and not self._epochs.get(pool) and not self._is_due(pool):
            return
        for _ in range(PATIENCE):
            facts = await self._backend.observe(pool)
            self._looked_at[pool] = self._monotonic()
            self._epochs[pool] = facts.epoch
            promises = pulse.last_beat.promises if pulse.last_beat is not None else {}
            writes = switch(facts, terms, promises, self._now(), stale=stale, well=well)
            if not writes and (not facts.epoch or _is_taken_in(facts)):
                return
            await self._write(terms, facts, writes)
            await self._pause(PAUSE)

    async def _feel(self, pool: str) -> Pulse:
        try:
            beat = await self._leases.read(heartbeat_lease(self.cluster, pool))
        except BackendError:
            self._blind.add(pool)
            raise
        pulse = looked(self._pulses.get(pool), beat, self._monotonic(), blind=pool in self._blind)
        self._blind.discard(pool)
        self._pulses[pool] = pulse
        return pulse

    def _is_due(self, pool: str) -> bool:
        last = self._looked_at.get(pool)
        return last is None or self._monotonic() - last >= LOOK_AT_ALL_EVERY

    async def _write(self, terms: PoolTerms, facts: CohortFacts, writes: Sequence[FailSafeWrite]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(write: FailSafeWrite) -> None:
            async with slots:
                try:
                    await self._carry_out(terms, facts, write)
                except ConflictError as error:
                    log.info("pool %s: %s", facts.pool, error)  # it is looked at again, and judged again

        results = await asyncio.gather(*(one(write) for write in writes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _carry_out(self, terms: PoolTerms, facts: CohortFacts, write: FailSafeWrite) -> None:
        pool = facts.pool
        match write:
            case Begin(epoch, at):
                await self._backend.begin(pool, epoch, at=at, seen=facts.version)
                silence = self._pulses[pool].silence()
                message = (
                    f"the bank gave no sign of life for {silence:.0f} s: fail-safe epoch {epoch} begins,"
                    " the scheduler borrows and takes back by itself"
                )
                await self._say(pool, "FailSafeBegan", message)
            case Enter(queue, nominal, borrowing_limit, reclaims, epoch):
                await self._backend.enter(
                    pool, queue, nominal=nominal, borrowing_limit=borrowing_limit, reclaims=reclaims, epoch=epoch
                )
            case Lend(surplus):
                await self._backend.lend(pool, surplus, seen=facts.version)
            case End(epoch):
                await self._backend.end(pool, epoch, seen=facts.version)
                span = f"{terms.fail_safe_after.total_seconds():.0f} s"
                message = f"the bank has given signs of life for {span}: fail-safe epoch {epoch} ends"
                await self._say(pool, "FailSafeEnded", message)

    async def _say(self, pool: str, reason: str, message: str) -> None:
        log.warning("pool %s: %s", pool, message)
        try:
            await self._tell(pool, reason, message)
        except BankError as error:
            log.warning("pool %s: %s could not be told: %s", pool, reason, error)


def _is_taken_in(facts: CohortFacts) -> bool:
    """Whether the scheduler has taken every queue in as it stands."""
    return all(queue.acknowledged for queue in facts.queues)
