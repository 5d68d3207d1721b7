"""What waiting work is told of why it waits: beside the loop, which decides on and does not wait for Events."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from gpubank.controller.together import side_by_side
from gpubank.decide.waiting import WaitingNote
from gpubank.domain.errors import BankError
from gpubank.ports import Notifier

log: Final = logging.getLogger(__name__)


class Notes:
    """Tells each Workload of a pool what it has not been told yet; what is out of date by then is not told at all."""

    def __init__(self, pool: str, notifier: Notifier) -> None:
        self._pool, self._notifier = pool, notifier
        self._told: dict[str, str] = {}
        """By the Workload's uid, what it was told last."""

        self._wanted: dict[str, WaitingNote] = {}
        self._task: asyncio.Task[None] | None = None

    def tell(self, notes: Sequence[WaitingNote], exists: Callable[[str], bool]) -> None:
        """Have everybody told what is new to them; `exists` says of a uid whether its Workload is still there."""
        self._told = {uid: text for uid, text in self._told.items() if exists(uid)}
        self._wanted = {note.workload.uid: note for note in notes if self._told.get(note.workload.uid) != note.message}
        if self._wanted and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._tell_all(), name=f"notes of pool {self._pool}")

    async def stop(self) -> None:
        """Tell nobody any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _tell_all(self) -> None:
        while batch := list(self._wanted):
            try:
                await side_by_side(map(self._tell, batch))
            except (BankError, OSError) as error:
                log.warning("pool %s: who waits is told later: %s", self._pool, error)
                return

    async def _tell(self, uid: str) -> None:
        note = self._wanted.pop(uid, None)
        if note is None:
            return
        self._told[uid] = note.message  # it counts as told from now on, or the next round would have it told twice
        try:
            await self._notifier.notify(
                key=f"waiting/{uid}/{note.reason}",
                pool=self._pool,
                workload=note.workload,
                reason=note.reason,
                message=note.message,
            )
        except BaseException:
            self._told.pop(uid, None)
            raise
