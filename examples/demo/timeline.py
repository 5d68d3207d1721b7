"""What happens, as it happens: the ledger's own words, and the phases of the Loans."""

import asyncio
import contextlib
import time

from gpubank.client import BankClient
from gpubank.domain.errors import BankError
from gpubank.ports import LedgerStore


class Timeline:
    """Prints lines with the seconds since its start."""

    def __init__(self, ledger: LedgerStore, client: BankClient) -> None:
        self._ledger, self._client = ledger, client
        self._began = time.monotonic()
        self._seen = 0
        self._phases: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the ledger and the Loans until `stop`."""
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Print what is left and end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._look()

    def say(self, text: str, who: str = "play") -> None:
        """Print one line now."""
        print(f"{time.monotonic() - self._began:6.1f} s  {who:<10} {text}", flush=True)

    async def _follow(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(0.25)

    async def _look(self) -> None:
        try:
            await self._ledger_news()
            await self._loan_news()
        except BankError as error:
            self.say(str(error), "trouble")

    async def _ledger_news(self) -> None:
        events = [event for event in await self._ledger.audit(limit=200) if event.sequence > self._seen]
        for event in reversed(events):
            self._seen = max(self._seen, event.sequence)
            if event.action == "Committed" and (note := event.detail.get("note")):
                self.say(str(note), event.actor.partition("/")[0])

    async def _loan_news(self) -> None:
        for row in await self._client.loans():
            state = await self._client.loan_state(row.loan)
            said = str(state.phase)
            if state.checkpoint is not None and state.phase.value in ("Durable", "Stopping", "Parked"):
                said += f", checkpoint of step {state.checkpoint.step} verified"
            if self._phases.get(row.loan) != said:
                self._phases[row.loan] = said
                self.say(f"{row.workload} is {said}", "loan")
