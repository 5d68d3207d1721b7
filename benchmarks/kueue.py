"""Whether the bank slows Kueue down: own jobs admitted a second with the bank's processes running, over without them.

    python -m benchmarks.kueue [--rounds 5] [--jobs 120] [--apart] [--json FILE]

One lab, one pool of the bank, rounds in turn with and without worker and controller. In each a group submits so many
jobs of one GPU at once, all of which its guarantee holds, and Kueue admits them; a round's rate is their number over
the seconds from the first submission until the last is admitted. A round begins when the bank's processes have nothing
to do any more.

Everything shares one machine, so a rate tells two things at once: what the bank asks of the servers, and what it takes
of their cores. Processor time tells them apart: what Kueue, the API server and etcd spend on a job is what the bank
costs them on a cluster where they have cores of their own. So does `--apart`: the bank, its Temporal and its PostgreSQL
have the last core, and everything else the other ones, whether the bank runs or not.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from benchmarks.cores import Split, pin, split
from benchmarks.report import Report, arguments, positive, ratio, spread
from benchmarks.scale_meters import Meter
from benchmarks.stage import Stage, bank_on_a_lab
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import POD, WORKLOAD, Kind, Object
from tests.contract.kueue_world import KueueWorld
from tests.contract.world import JobRequest
from tests.support.bank import Bank

NODE: Final = 8
LOOK: Final = 0.05
PATIENCE: Final = 300.0

SERVERS: Final = ("kueue", "kube-apiserver", "etcd")
"""Programs that admit a job, with the bank or without it."""

BANK: Final = ("worker", "controller")
BESIDE: Final = (*BANK, "temporal", "postgresql")
"""What a bank brings along."""

AT_REST: Final = 0.1
"""Cores that the bank's processes may take when they have nothing to do."""


@dataclass(frozen=True)
class Round:
    """One round's jobs."""

    rate: float
    """Admitted a second."""

    cpu: Mapping[str, float]
    """Milliseconds of processor time for a job, by program."""

    @property
    def servers(self) -> float:
        """Milliseconds of processor time that admitting a job takes."""
        return sum(self.cpu[name] for name in SERVERS)


class Rounds:
    """Own jobs of one group, again and again."""

    def __init__(self, stage: Stage, bank: Bank, world: KueueWorld, cores: frozenset[int] | None) -> None:
        self._cores = cores
        self._stage, self._bank, self._world = stage, bank, world
        self._group = bank.name("vision")
        self._number = 0

    async def begin(self, jobs: int) -> None:
        """Make a pool whose guarantee holds them all."""
        await self._bank.agree((NODE,) * -(-jobs // NODE), vision=jobs, search=0)

    async def have(self, *, bank: bool) -> None:
        """Have the bank's processes run, or not."""
        processes = self._stage.bank.processes
        alive = any(process.alive for process in processes.processes)
        if bank and not alive:
            await asyncio.to_thread(processes.start)
            self.keep_apart()
        elif alive and not bank:
            await asyncio.to_thread(processes.stop)
        async with asyncio.timeout(PATIENCE):
            while bank and not await self._at_rest():
                pass

    def keep_apart(self) -> None:
        """Have what runs of the bank keep to its own cores, where it has some."""
        pids = self._stage.pids()
        for name in BESIDE:
            if self._cores is not None and name in pids:
                pin(pids[name], self._cores)

    async def _at_rest(self) -> bool:
        pids = self._stage.pids()
        meter = Meter({name: pids[name] for name in BANK})
        await asyncio.sleep(1)
        cores, _, _ = meter.since(1)
        return sum(cores.values()) <= AT_REST

    async def play(self, jobs: int) -> Round:
        """Submit jobs and see them admitted; they are deleted afterwards."""
        self._number += 1
        names = [f"many-{self._number}-{index}" for index in range(jobs)]
        meter, begun = Meter(self._stage.pids()), time.monotonic()
        await asyncio.gather(*(self._world.submit_job(JobRequest(self._group, name, gpus_per_pod=1)) for name in names))
        await self._until(lambda workloads: sum(map(_admitted, workloads)) >= jobs, WORKLOAD)
        seconds = time.monotonic() - begun
        cores, _, _ = meter.since(seconds)
        await asyncio.gather(*(self._world.delete_job(self._group, name) for name in names))
        for kind in (WORKLOAD, POD):
            await self._until(lambda left: not left, kind)
        return Round(jobs / seconds, {name: used * seconds * 1000 / jobs for name, used in cores.items()})

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
async def _rounds(folder: Path, cores: Split | None) -> AsyncIterator[Rounds]:
    if cores is not None:
        pin(os.getpid(), cores.many)  # and what it begins
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(bank_on_a_lab(folder))
        bank = await stack.enter_async_context(stage.bank.pool(folder))
        assert isinstance(bank.world, KueueWorld)
        rounds = Rounds(stage, bank, bank.world, cores.one if cores is not None else None)
        rounds.keep_apart()
        yield rounds
        await rounds.have(bank=True)  # it takes the pool down


async def measure(rounds: int, jobs: int, cores: Split | None = None) -> Report:
    """Measure so many rounds of each, the first to go first in turn."""
    report = Report("Kueue's admissions", ("what", "bank on", "bank off", "on over off"))
    found: dict[bool, list[Round]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        async with _rounds(Path(name), cores) as at:
            await at.begin(jobs)
            await at.play(jobs)  # warms up
            for number in range(rounds):
                for bank in (True, False) if number % 2 else (False, True):
                    await at.have(bank=bank)
                    found[bank].append(await at.play(jobs))
    _tell(report, found[True], found[False])
    report.figures |= {"rounds": rounds, "jobs": jobs, "apart": cores is not None}
    return report


def _tell(report: Report, on: Sequence[Round], off: Sequence[Round]) -> None:
    for name, of in (("admissions", attrgetter("rate")), ("servers_cpu", attrgetter("servers"))):
        with_bank, without = [of(each) for each in on], [of(each) for each in off]
        report.figures[f"{name}_on"] = spread(with_bank) | {"least": min(with_bank), "all": with_bank}
        report.figures[f"{name}_off"] = spread(without) | {"least": min(without), "all": without}
        report.figures[f"{name}_ratio"] = ratio(statistics.median(with_bank), statistics.median(without))
    figures = report.figures
    for what, name in (("jobs a second, p50", "admissions"), ("ms of servers for a job, p50", "servers_cpu")):
        report.row(what, figures[f"{name}_on"]["p50"], figures[f"{name}_off"]["p50"], figures[f"{name}_ratio"])
    for program in sorted(on[0].cpu, key=lambda name: -on[0].cpu[name]):
        both = [statistics.median(each.cpu.get(program, 0.0) for each in rounds) for rounds in (on, off)]
        report.row(f"ms of {program} for a job, p50", *both, ratio(*both) if both[1] else "")
        report.figures[f"{program}_ms_per_job"] = {"on": both[0], "off": both[1]}


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("Own jobs that Kueue admits a second, with the bank over without it.")
    parser.add_argument("--rounds", type=positive, default=5, help="measurements of each side, after one to warm up")
    parser.add_argument("--jobs", type=positive, default=120, help="jobs of each")
    parser.add_argument("--apart", action="store_true", help="give the bank a core of its own, and the rest the others")
    given = parser.parse_args(arguments_)
    asyncio.run(measure(given.rounds, given.jobs, split() if given.apart else None)).finish(given.json)


if __name__ == "__main__":
    main()
