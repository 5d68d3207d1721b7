"""What a pool's processes are told: once, and again after growing pauses, for a process may have been ended since."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from gpubank.controller.beside import Beside
from gpubank.controller.together import AT_ONCE
from gpubank.decide.step import LenderNeeds, LoanSignal
from gpubank.domain.errors import BackendError
from gpubank.ports import Processes

log: Final = logging.getLogger(__name__)

MAX_PAUSE: Final = timedelta(hours=1)
"""Longest pause before the same signal is sent again; every one costs a few events of a workflow's history."""

NEEDS_PAUSE: Final = timedelta(minutes=1)
"""Longest time that a demand may have no Reclaim, as when its Reclaim ended just before it was opened again."""

_NEEDS: Final = "needs"


class _Said(NamedTuple):
    """What was said to a process, when, and how long it is not said again."""

    message: LoanSignal | LenderNeeds
    at: datetime
    pause: timedelta


class Words:
    """Tells Loans and Reclaims of one pool, beside its loop; each of them hears one thing after the other."""

    def __init__(
        self, cluster: str, pool: str, processes: Processes, *, first_pause: timedelta, wake: Callable[[], None]
    ) -> None:
        self._cluster, self._pool, self._processes = cluster, pool, processes
        self._first_pause = first_pause
        self._telling = Beside(f"word of pool {pool} to", wake, at_once=AT_ONCE)
        self._said: dict[tuple[str, str], _Said] = {}
        """By whom it is about, and what it says."""

        self._saying: dict[tuple[str, str], LoanSignal | LenderNeeds] = {}

    def tell_needs(self, needs: Sequence[LenderNeeds], now: datetime) -> None:
        """Have lenders' Reclaims told which demands are open; waits for nothing."""
        for each in needs:
            self._tell(each.lender, _NEEDS, each, now, partial(self._send_needs, each, now))

    async def tell(self, signals: Sequence[LoanSignal], needs: Sequence[LenderNeeds], now: datetime) -> None:
        """Have everybody told what is new to them or was said long ago; return when most have been, or soon."""
        for each in signals:
            self._tell(each.workload.uid, each.kind.value, each, now, partial(self._send_signal, each))
        self.tell_needs(needs, now)
        await self._telling.settle()
        live = {(each.workload.uid, each.kind.value) for each in signals} | {(each.lender, _NEEDS) for each in needs}
        for key in self._said.keys() - live:
            del self._said[key]

    async def stop(self) -> None:
        """Tell nobody any more."""
        await self._telling.stop()

    def _tell(
        self,
        whom: str,
        what: str,
        message: LoanSignal | LenderNeeds,
        now: datetime,
        send: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        key = whom, what
        said = self._said.get(key)
        # Decisions hand the same object on where nothing has changed: most are told apart without a closer look.
        repeated = said is not None and (said.message is message or said.message == message)
        if (said is not None and repeated and now - said.at < said.pause) or self._saying.get(key) == message:
            return
        longest = MAX_PAUSE if isinstance(message, LoanSignal) else NEEDS_PAUSE
        pause = min(said.pause * 2, longest) if said is not None and repeated else self._first_pause

        async def say() -> None:
            try:
                await send()
            except BackendError as error:
                log.warning("pool %s: %s", self._pool, error)
            else:
                self._said[key] = _Said(message, now, pause)
            finally:
                del self._saying[key]

        if self._telling.begin(whom, say):
            self._saying[key] = message

    async def _send_signal(self, signal: LoanSignal) -> None:
        await self._processes.signal_loan(self._cluster, self._pool, signal)

    async def _send_needs(self, needs: LenderNeeds, now: datetime) -> None:
        await self._processes.signal_needs(self._cluster, self._pool, needs.lender, needs.demand_ids, at=now)
