"""The worker that `benchmarks.worker` measures: in a process of its own, so that its memory is nobody else's.

One JSON object a line says what is wanted, on stdin, and one answers it, on stdout; the first line is the `Setting`.
The worker is wired as in production but for the pool, which is on paper, and whole from the first moment on.
"""

import asyncio
import ctypes
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TextIO

from benchmarks.paper_pool import PaperPool
from benchmarks.worlds import CLUSTER, POOL, Size, workload, world
from gpubank.adapters.checkpoint import CheckpointHooks, FsspecStorage
from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.contract import Side
from gpubank.domain.demand import LIVE, Demand, DemandState
from gpubank.exit import clean_exit
from gpubank.settings import TemporalSettings
from gpubank.simulation.cluster import SimulatedCluster
from workers.wiring import Ports, make_workers, run_workers

STILL: Final = 0.1
"""MB between two looks at a process that is at rest."""
LOOKS: Final = 20
PAUSE: Final = 0.25
LIMIT: Final = 2**20
"""Bytes of the longest line."""


@dataclass(frozen=True)
class Setting:
    """What the worker works with."""

    temporal: str
    """host:port of the server."""

    ledger: str
    """URL of the ledger, which has the books of the world already."""

    groups: int
    loans: int
    at: str
    """When the world is, in ISO form."""

    cached: int
    """Workflows that it keeps in memory."""


# ---- inside


class Worker:
    """The worker at work, and the pool that it acts on."""

    def __init__(self, pool: PaperPool) -> None:
        self.pool = pool
        self._ends: dict[str, DemandState] = {}
        self._moved = asyncio.Event()

    def hear(self, demand: Demand, state: DemandState, at: datetime) -> None:
        """Take note of what has become of a demand; one that lives may live again."""
        self._ends.pop(demand.demand_id, None)
        if state not in LIVE:
            self._ends[demand.demand_id] = state
        self._moved.set()

    async def answer(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Do what is wanted."""
        match wanted:
            case {"own": lenders}:
                for lender in lenders:
                    self.pool.submit(workload(f"owner-{lender}", lender, Side.OWN))
                return {}
            case {"ends": count}:
                while len(self._ends) < count:
                    self._moved.clear()
                    await self._moved.wait()
                return {"ends": dict(Counter(self._ends.values()))}
            case {"stopped": _}:
                seen = (await self.pool.observe(POOL)).workloads
                return {"stopped": [each.key.uid for each in seen if each.kind is Side.BORROW and not each.active]}
            case {"delete": uid}:
                self.pool.delete(uid)
                return {}
            case {"memory": _}:
                return {"memory": await memory_at_rest()}
        raise ValueError(f"nobody knows how to do {wanted}")


async def memory_at_rest() -> float:
    """Return the MB that this process holds when it does nothing: looks until two in a row are the same."""
    seen = held_mb()
    for _ in range(LOOKS):
        await asyncio.sleep(PAUSE)
        before, seen = seen, held_mb()
        if abs(seen - before) < STILL:
            break
    return seen


def held_mb() -> float:
    """Return the MB of this process's own data, when everything that is free has been given back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024 / 1e6


async def serve(setting: Setting, lines: asyncio.StreamReader, answers: TextIO) -> None:
    """Run the worker until nobody asks any more."""
    at = world(Size(groups=setting.groups, loans=setting.loans), datetime.fromisoformat(setting.at))
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(await SqlLedger.open(setting.ledger))
        pool, away = PaperPool(at), SimulatedCluster(name=CLUSTER)
        books = await ledger.books(CLUSTER, POOL)
        for queue in at.facts.queues:
            await pool.write_quota(POOL, queue.group, queue.kind, nominal=queue.nominal, revision=books.revision)
        client = await BankClient.connect(TemporalSettings(address=setting.temporal))
        storage = FsspecStorage()
        stack.callback(storage.close)
        worker = Worker(pool)
        ports = Ports(
            quota=pool,
            ledger=ledger,
            terms=pool,
            notifier=pool,
            hook=CheckpointHooks({}),
            storage=storage,
            leases=away.leases,
            nodes=away.servicing,
            ended=worker.hear,
        )
        stop = asyncio.Event()
        workers = make_workers(client.temporal, CLUSTER, ports, client, cached_workflows=setting.cached)
        working = asyncio.create_task(run_workers(workers, stop))
        try:
            while line := await lines.readline():
                answers.write(json.dumps(await worker.answer(json.loads(line))) + "\n")
                answers.flush()
        finally:
            stop.set()
            await working


async def _main(answers: TextIO) -> None:
    lines = asyncio.StreamReader(limit=LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await serve(Setting(**json.loads(await lines.readline())), lines, answers)


# ---- outside


class WorkerProcess:
    """The process, for whoever measures it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    @asynccontextmanager
    async def running(cls, setting: Setting) -> AsyncIterator[Self]:
        """Start it; it ends with the block."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LIMIT
        )
        try:
            self = cls(process)
            await self._send(asdict(setting))
            yield self
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def own(self, lenders: list[str]) -> None:
        """Have each of the groups submit a job that wants one loan back."""
        await self._ask("own", lenders)

    async def ends(self, count: int) -> dict[str, int]:
        """Wait until so many demands have ended, and return how many ended how."""
        return dict(await self._ask("ends", count))

    async def stopped(self) -> list[str]:
        """Return the Workloads that borrowed and are stopped."""
        return list(await self._ask("stopped"))

    async def delete(self, uid: str) -> None:
        """Delete a Workload that holds nothing."""
        await self._ask("delete", uid)

    async def memory(self) -> float:
        """Return the MB that the process holds at rest."""
        return float(await self._ask("memory"))

    async def _ask(self, what: str, about: Any = None) -> Any:
        await self._send({what: about})
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker's process ended before it answered {what!r}; what it said is above")
        return json.loads(line).get(what)

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # Temporal's client library writes its warnings there
        asyncio.run(_main(answers))
    clean_exit(0)
