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
