"""Plays rounds: brings recalls to their spots, kills, starts again, and judges every recall by itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.domain.errors import BankError
from tests.contract.kueue_world import KueueWorld
from tests.matrix.cells import Cell, Round
from tests.matrix.crash import Machine
from tests.matrix.lane import Lane
from tests.matrix.oracles import writes
from tests.support.bank import Bank
from tests.support.running import RunningBank

DOWN: Final = 1.0
"""Seconds that the killed stay dead: long enough for the others to find out."""

OWN_WRITES: Final = 2
"""What the worker may change at a borrower's Workload in one recall: it stops it, and it resumes it."""


@dataclass
class Result:
    """What came of one cell."""

    cell: Cell
    violations: list[str] = field(default_factory=list)
    held: int = 0
    """Processes that were held at the spot; more than one where a step's time was over before the crash."""

    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """From the crash to the end of the recall, the borrower's return and end included."""


class Stage:
    """A running bank with lanes that are opened as they are needed, and replaced where a recall is stuck."""

    def __init__(
        self, running: RunningBank, machine: Machine, folder: Path, connection: Connection, backend: KueueBackend
    ) -> None:
        self._running, self._machine, self._folder = running, machine, folder
        self._connection, self._backend = connection, backend
        self._lanes: list[Lane] = []
        self._banks: list[tuple[Bank, KueueWorld]] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, running: RunningBank, machine: Machine, folder: Path) -> AsyncIterator["Stage"]:
        """Look at the cluster with one pair of eyes for all lanes, and stop auditing them when the block ends."""
        async with (
            Connection.open(running.lab.kubeconfig) as connection,
            KueueBackend(connection, cluster="lab") as backend,
        ):
            stage = cls(running, machine, folder, connection, backend)
            try:
                yield stage
            finally:
                await asyncio.gather(*(bank.stop_auditing() for bank, _ in stage._banks))

    async def begin_anew(self) -> None:
        """Play on in pools of their own, whatever is left in these, with every process that a round left dead."""
        self._lanes.clear()
        await self._machine.repair()

    async def leave(self) -> None:
        """Delete every pool, as users would, where the lab goes on without it."""

        async def leave(bank: Bank, world: KueueWorld) -> None:
            await bank.leave()
            await world.clear()

        await asyncio.gather(*(leave(bank, world) for bank, world in self._banks))

    async def play(self, round_: Round) -> list[Result]:
        """Play one round; whatever goes wrong stands in its results."""
        await self._fill(len(round_.spots))
        lanes = dict(zip(round_.cells, self._lanes, strict=False))
        results = {cell: Result(cell) for cell in lanes}
        log = self._running.lab.log("audit")
        offset = log.stat().st_size
        await _all(results, {cell: lane.begin(cell.spot) for cell, lane in lanes.items()})
        await _all(results, {cell: lane.provoke() for cell, lane in _well(results, lanes)})
        await _all(results, {cell: lane.held() for cell, lane in _well(results, lanes)})
        for cell, lane in lanes.items():
            results[cell].held = len(lane.waited)

        began = time.monotonic()
        await self._machine.kill(round_.kill)
        for lane in lanes.values():
            lane.let_go()
        await asyncio.sleep(DOWN)
        await self._machine.start(round_.kill)
        async with self._machine.supervised(_Noted(results.values())):
            await _all(
                results, {cell: _timed(lane.end(), results[cell], began) for cell, lane in _well(results, lanes)}
            )
        for cell, lane in _well(results, lanes):
            results[cell].violations += await self._judged(lane)
        self._count_writes(results, lanes, offset)
        await self._whole_ledger(results)
        await self._clear(results, lanes)
        return list(results.values())

    async def _judged(self, lane: Lane) -> list[str]:
        try:
            return await lane.judge()
        except BankError as error:
            return [f"not judged: {error}"]

    def _count_writes(self, results: dict[Cell, Result], lanes: dict[Cell, Lane], offset: int) -> None:
        counts = writes(self._running.lab.log("audit"), offset)
        for cell, lane in lanes.items():
            count = counts[lane.workload]
            if count > OWN_WRITES:
                results[cell].violations.append(f"{lane.workload} was changed {count} times by the worker")

    async def _whole_ledger(self, results: dict[Cell, Result]) -> None:
        await self._running.ledger.post(until=datetime.now(UTC))
        report = await self._running.ledger.verify()
        balance = sum(each.borrowed_gpu_ms - each.lent_gpu_ms for each in await self._running.ledger.balances())
        found = [str(finding) for finding in report.findings] + ([f"postings sum up to {balance}"] if balance else [])
        for result in results.values():
            result.violations += found

    async def _clear(self, results: dict[Cell, Result], lanes: dict[Cell, Lane]) -> None:
        """Make room for the next recalls; a lane in which something is stuck is left behind."""

        async def clear(cell: Cell, lane: Lane) -> None:
            try:
                if results[cell].violations:
                    raise AssertionError
                await lane.clear()
            except (AssertionError, BankError):
                self._lanes.remove(lane)

        await asyncio.gather(*(clear(cell, lane) for cell, lane in lanes.items()))

    async def _fill(self, count: int) -> None:
        await asyncio.gather(*(self._open() for _ in range(count - len(self._lanes))))

    async def _open(self) -> None:
        world = KueueWorld(self._running.lab, self._connection, self._backend, KubernetesObjectStore(self._connection))
        folder = self._folder / world.pool
        folder.mkdir(parents=True)
        bank = Bank(world, self._running.client, self._running.ledger, folder, world.add_namespace)
        self._banks.append((bank, world))
        lane = Lane(bank, self._running.gate)
        await lane.open()
        self._lanes.append(lane)


class _Noted:
    """Takes a note for every result."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = list(results)

    def __call__(self, note: str) -> None:
        for result in self._results:
            result.notes.append(note)


async def _timed(work: Awaitable[None], result: Result, began: float) -> None:
    await work
    result.seconds = round(time.monotonic() - began, 1)


async def _all(results: dict[Cell, Result], work: dict[Cell, Awaitable[None]]) -> None:
    """Do all of it at once; what goes wrong is a violation of its cell and nobody else's."""

    async def one(cell: Cell, step: Awaitable[None]) -> None:
        try:
            await step
        except (AssertionError, BankError) as error:
            results[cell].violations.append(str(error))

    await asyncio.gather(*(one(cell, step) for cell, step in work.items()))


def _well(results: dict[Cell, Result], lanes: dict[Cell, Lane]) -> list[tuple[Cell, Lane]]:
    return [(cell, lane) for cell, lane in lanes.items() if not results[cell].violations]
