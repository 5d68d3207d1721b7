"""Records histories of real lab runs: `python -m tests.workflows.record_histories [SCENE...]`.

Kueue, PostgreSQL, Temporal, and worker and controller as processes of their own. What is recorded joins the histories
that `tests.workflows.record` makes on the simulation, as `loan-lab_…` and `reclaim-lab_…`; all of them are replayed.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase, loan_id, reclaim_id
from gpubank.exit import clean_exit
from gpubank.lab import Lab
from gpubank.lab.postgres import Postgres
from tests.support.bank import Bank
from tests.support.running import RunningBank, running_bank
from tests.workflows.record import keep

NAME: Final = "histories"
"""Name of the lab that is brought up for the recording."""

Scene = Callable[[Bank, RunningBank], Awaitable[str]]
"""Plays on an empty pool with groups search and vision; returns the job whose Loan is kept."""


async def saved_and_resumed(bank: Bank, _: RunningBank) -> str:
    await bank.agree((8,), vision=8, search=0)
    await bank.borrow("search", "train", trains=bank.gate(opened=True))
    await bank.own("vision", "serve")
    await bank.placed("serve")
    await bank.demand_met("vision")
    await bank.finish("vision", "serve")
    await bank.placed("train")
    await bank.loan_in("train", LoanPhase.ACTIVE)
    await bank.finish("search", "train")
    await bank.loan_in("train", LoanPhase.CLOSED)
    return "train"


async def two_lenders(bank: Bank, _: RunningBank) -> str:
    await bank.agree((8, 8), vision=8, audio=8, search=0)
    await bank.borrow("search", "big", 16, pods=2)
    await bank.own("vision", "serve")
    await bank.placed("serve")
    await bank.loan_in("big", LoanPhase.PARKED)
    await bank.demand_met("vision")
    return "big"


async def protected_and_next(bank: Bank, _: RunningBank) -> str:
    await bank.agree((8, 8), vision=16, search={"guaranteed": 0, "reclaimPolicy": {"gracePeriod": "3s"}})
    await bank.borrow("search", "older", trains=bank.gate(opened=True))
    await bank.borrow("search", "mute", trains=bank.gate())
    await bank.own("vision", "serve")
    await bank.placed("serve")
    await bank.demand_met("vision")
    await bank.loan_in("mute", LoanPhase.ACTIVE)
    return "mute"


async def frozen_meanwhile(bank: Bank, _: RunningBank) -> str:
    await bank.agree((8,), vision=8, search=0)
    gate = bank.gate()
    await bank.borrow("search", "train", trains=gate)
    await bank.own("vision", "serve")
    await bank.loan_in("train", LoanPhase.CHECKPOINTING)
    await bank.freeze(True)
    gate.touch()
    await asyncio.sleep(3)
    await bank.freeze(False)
    await bank.placed("serve")
    await bank.demand_met("vision")
    return "train"


async def crashed_meanwhile(bank: Bank, running: RunningBank) -> str:
    await bank.agree((8,), vision=8, search=0)
    gate = bank.gate()
    await bank.borrow("search", "train", trains=gate)
    await bank.own("vision", "serve")

    async def recalled() -> bool:
        return any(line.state is LineState.RECALLED for line in await bank.lines(job="train"))

    await bank.until(recalled, "the loan is recalled")
    await asyncio.to_thread(running.processes.worker.kill)
    await asyncio.to_thread(running.processes.start)
    gate.touch()
    await bank.placed("serve")
    await bank.demand_met("vision")
    await bank.loan_in("train", LoanPhase.PARKED)
    return "train"


SCENES: Final[dict[str, Scene]] = {
    scene.__name__: scene
    for scene in (saved_and_resumed, two_lenders, protected_and_next, frozen_meanwhile, crashed_meanwhile)
}


async def record(names: list[str]) -> None:
    """Play the scenes, each in a pool of its own, and keep the histories of a Loan and of the Reclaim."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(Postgres())
        lab = await stack.enter_async_context(Lab(NAME, nodes=0))
        running = await stack.enter_async_context(running_bank(lab, server.create_database(), folder / "bank"))
        for name in names:
            (folder / name).mkdir()
            async with running.pool(folder / name) as bank:
                job = await SCENES[name](bank, running)
                await asyncio.sleep(0.5)
                loan = loan_id(bank.world.cluster, (await bank.workload(job)).key.uid)
                await keep(running.client, f"loan-lab_{name}", loan)
                reclaim = reclaim_id(bank.world.cluster, bank.world.pool, bank.name("vision"))
                await keep(running.client, f"reclaim-lab_{name}", reclaim)


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SCENES)))
    clean_exit(0)
