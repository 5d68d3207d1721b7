"""Whether the bank slows Kueue down: own jobs admitted a second with the bank's processes running, over without them.

    python -m benchmarks.kueue [--rounds 5] [--jobs 60] [--json FILE]

One lab, one pool of the bank, rounds in turn with and without worker and controller. In each a group submits so many
jobs of one GPU at once, all of which its guarantee holds, and Kueue admits them; a round's rate is their number over
the seconds from the first submission until the last is admitted. Everything shares one machine, so what the bank
computes counts too.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.report import Report, arguments, positive, ratio, spread
from benchmarks.stage import bank_on_a_lab
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import POD, WORKLOAD, Kind, Object
from tests.contract.kueue_world import KueueWorld
from tests.contract.world import JobRequest
from tests.support.bank import Bank
from tests.support.running import RunningBank

NODE: Final = 8
LOOK: Final = 0.05
PATIENCE: Final = 300.0


class Rounds:
    """Own jobs of one group, again and again."""

    def __init__(self, running: RunningBank, bank: Bank, world: KueueWorld) -> None:
        self._running, self._bank, self._world = running, bank, world
        self._group = bank.name("vision")
        self._number = 0

    async def begin(self, jobs: int) -> None:
        """Make a pool whose guarantee holds them all."""
        await self._bank.agree((NODE,) * -(-jobs // NODE), vision=jobs, search=0)

    async def have(self, *, bank: bool) -> None:
        """Have the bank's processes run, or not."""
        processes = self._running.processes
        alive = any(process.alive for process in processes.processes)
        if bank and not alive:
            await asyncio.to_thread(processes.start)
        elif alive and not bank:
            await asyncio.to_thread(processes.stop)

    async def rate(self, jobs: int) -> float:
        """Submit jobs, and return how many were admitted a second; they are deleted afterwards."""
        self._number += 1
        names = [f"many-{self._number}-{index}" for index in range(jobs)]
        begun = time.monotonic()
        await asyncio.gather(*(self._world.submit_job(JobRequest(self._group, name, gpus_per_pod=1)) for name in names))
        await self._until(lambda workloads: sum(map(_admitted, workloads)) >= jobs, WORKLOAD)
        seconds = time.monotonic() - begun
        await asyncio.gather(*(self._world.delete_job(self._group, name) for name in names))
        for kind in (WORKLOAD, POD):
            await self._until(lambda left: not left, kind)
        return jobs / seconds

    async def _until(self, holds: Callable[[Sequence[Object]], bool], kind: Kind) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                if holds(await _items(self._world.connection, kind, self._world.namespace(self._group))):
                    return
                await asyncio.sleep(LOOK)


def _admitted(workload: Object) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions)


async def _items(connection: Connection, kind: Kind, namespace: str) -> Sequence[Object]:
    answer = await connection.call("GET", kind.path("", namespace))
    return list((answer or {}).get("items") or ())


@asynccontextmanager
async def _rounds(folder: Path) -> AsyncIterator[Rounds]:
    async with AsyncExitStack() as stack:
        running = (await stack.enter_async_context(bank_on_a_lab(folder))).bank
        bank = await stack.enter_async_context(running.pool(folder))
        assert isinstance(bank.world, KueueWorld)
        rounds = Rounds(running, bank, bank.world)
        yield rounds
        await rounds.have(bank=True)  # it takes the pool down


async def measure(rounds: int, jobs: int) -> Report:
    """Measure so many rounds of each, the first to go first in turn."""
    report = Report("Kueue's admissions", ("bank", "jobs a second, p50", "least", "most"))
    rates: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        async with _rounds(Path(name)) as at:
            await at.begin(jobs)
            await at.rate(jobs)  # warms up
            for number in range(rounds):
                for bank in (True, False) if number % 2 else (False, True):
                    await at.have(bank=bank)
                    rates[bank].append(await at.rate(jobs))
    for bank, found in rates.items():
        report.row("on" if bank else "off", spread(found)["p50"], min(found), max(found))
        report.figures[f"bank_{'on' if bank else 'off'}_per_second"] = spread(found) | {"all": found}
    report.figures["admissions_ratio"] = ratio(spread(rates[True])["p50"], spread(rates[False])["p50"])
    report.figures |= {"rounds": rounds, "jobs": jobs}
    return report


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("Own jobs that Kueue admits a second, with the bank over without it.")
    parser.add_argument("--rounds", type=positive, default=5, help="measurements of each side, after one to warm up")
    parser.add_argument("--jobs", type=positive, default=60, help="jobs of each")
    given = parser.parse_args(arguments_)
    asyncio.run(measure(given.rounds, given.jobs)).finish(given.json)


if __name__ == "__main__":
    main()
