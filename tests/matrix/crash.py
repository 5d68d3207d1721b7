"""Kills processes of a running bank and of what it stands on, as `kill -9` does, and starts them again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from gpubank.lab.errors import StartError
from gpubank.lab.postgres import Postgres
from tests.matrix.cells import Kill, Process
from tests.support.running import RunningBank

COMPONENTS: Final[Mapping[Process, str]] = {Process.API_SERVER: "kube-apiserver", Process.KUEUE: "kueue"}

FIRST: Final = (Process.POSTGRES, Process.TEMPORAL, Process.API_SERVER)
"""Who needs nobody else to start; Kueue needs the API server, worker and controller need everybody."""

WATCH: Final = 0.5
"""Seconds between two looks at whether worker and controller run."""


class Machine:
    """The processes under one bank."""

    def __init__(self, running: RunningBank, postgres: Postgres) -> None:
        self._running, self._postgres = running, postgres

    async def kill(self, kill: Kill) -> None:
        """End all of them with SIGKILL, at once."""
        self._freeze_dying(kill)
        await asyncio.gather(*(self._kill(process) for process in kill))

    async def start(self, kill: Kill) -> None:
        """Start them again, each as soon as whom it needs serves, and see a controller lead."""
        await asyncio.gather(*(self._start(process) for process in kill if process in FIRST))
        if Process.KUEUE in kill:
            await self._start(Process.KUEUE)
        await self.revive()

    async def repair(self) -> None:
        """Start whatever does not run, as after a round that broke off."""
        state = self._running.lab.state
        living = state.alive() if state is not None else {}
        runs = {process: living.get(name, False) for process, name in COMPONENTS.items()}
        runs[Process.TEMPORAL] = self._running.server.pid is not None
        runs[Process.POSTGRES] = self._postgres.missing() is None
        await self.start(tuple(process for process, alive in runs.items() if not alive))

    async def revive(self) -> None:
        """Have worker and controller run, and a controller lead."""
        for attempt in range(3):  # one that started while somebody else was not up again may end
            try:
                await asyncio.to_thread(self._running.processes.start)
            except StartError:
                if attempt == 2:
                    raise
            else:
                return

    @asynccontextmanager
    async def supervised(self, note: Callable[[str], None]) -> AsyncIterator[None]:
        """Start worker and controller again where they end by themselves, as a kubelet would, and note it."""
        watch = asyncio.create_task(self._watch(note))
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _watch(self, note: Callable[[str], None]) -> None:
        while True:
            for process in self._running.processes.processes:
                if not process.alive:
                    note(f"the {process.name} ended by itself and was started again")
                    process.start()
            await asyncio.sleep(WATCH)

    def _freeze_dying(self, kill: Kill) -> None:
        """Stop worker and controller where they stand: nobody sees the others die before it dies."""
        for process in self._running.processes.processes:
            if process.name in kill and process.pid is not None:
                os.kill(process.pid, signal.SIGSTOP)

    async def _kill(self, process: Process) -> None:
        if process is Process.TEMPORAL:
            await self._running.server.kill()
        elif process is Process.POSTGRES:
            await asyncio.to_thread(self._postgres.kill)
        elif process in COMPONENTS:
            await asyncio.to_thread(self._running.lab.kill, COMPONENTS[process])
        else:
            processes = self._running.processes
            victim = processes.worker if process is Process.WORKER else processes.controller
            await asyncio.to_thread(victim.kill)

    async def _start(self, process: Process) -> None:
        if process is Process.TEMPORAL:
            await self._running.server.start()
        elif process is Process.POSTGRES:
            await asyncio.to_thread(self._postgres.start)
        else:
            await asyncio.to_thread(self._running.lab.start, COMPONENTS[process])
