"""The lab with the bank's real processes beside it, as several benchmarks need it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from gpubank.lab import Lab
from gpubank.lab.postgres import Postgres
from tests.support.running import RunningBank, running_bank


class Stage(NamedTuple):
    """What runs."""

    lab: Lab
    postgres: Postgres
    bank: RunningBank

    def pids(self) -> dict[str, int]:
        """Return the process of every program that runs now, by its name."""
        state, processes = self.lab.state, self.bank.processes
        assert state is not None
        found = {record.component: record.pid for record in state.processes}
        beside = {
            "worker": processes.worker.pid if processes.worker.alive else None,
            "controller": processes.controller.pid if processes.controller.alive else None,
            "temporal": self.bank.server.pid,
            "postgresql": int((self.postgres.data / "postmaster.pid").read_text().split()[0]),
        }
        return found | {name: pid for name, pid in beside.items() if pid is not None}


@asynccontextmanager
async def bank_on_a_lab(folder: Path, name: str = "bench") -> AsyncIterator[Stage]:
    """Start a lab without nodes, PostgreSQL, Temporal, worker and controller; all of it ends with the context."""
    async with AsyncExitStack() as stack:
        lab = Lab(f"{name}-{uuid.uuid4().hex[:8]}", nodes=0)
        stack.push_async_callback(asyncio.to_thread, lab.clean)
        await asyncio.to_thread(lab.up)
        postgres = Postgres()
        stack.push_async_callback(asyncio.to_thread, postgres.close)
        await asyncio.to_thread(postgres.start)
        bank = await stack.enter_async_context(
            running_bank(lab, postgres.create_database(), folder / "bank", gated=False)
        )
        yield Stage(lab, postgres, bank)
