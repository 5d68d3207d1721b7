"""The main job on real parts: Kueue, Temporal, PostgreSQL, and a training run of which nobody can tell the recall."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase
from tests.support import paced
from tests.support.bank import Bank
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

PACED = Path(paced.__file__)
STEPS = 300
STEP_SECONDS = 0.5
"""Until the recall is over: so the run is in the middle whenever it comes, however slow the machine is."""


@pytest_asyncio.fixture(loop_scope="session")
async def bank(lab_bank: RunningBank, tmp_path: Path) -> AsyncIterator[Bank]:
    async with lab_bank.pool(tmp_path) as bank:
        yield bank


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the training run comes to if nobody interrupts it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    out = folder / "result.json"
    subprocess.run(
        [sys.executable, str(paced.TRAINER), "--storage", str(folder), "--steps", str(STEPS), "--out", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    result: dict[str, Any] = json.loads(out.read_text())
    return result


async def start_training(bank: Bank) -> Path:
    """Have search train on what vision does not use; return where the result will be."""
    await bank.agree((8,), vision=8, search=0)
    storage, out = bank.folder / "checkpoints", bank.folder / "result.json"
    storage.mkdir()
    arguments = ["--storage", str(storage), "--steps", str(STEPS), "--step-time", str(STEP_SECONDS), "--out", str(out)]
    command = [sys.executable, str(PACED), str(bank.folder / "hurry"), *arguments]
    await bank.train("search", "train", command, storage)
    await bank.placed("train")
    await bank.answers("train")
    return out


async def see_the_end(bank: Bank, out: Path, undisturbed: dict[str, Any]) -> None:
    """See the owner served and done, the run come back and end as if nothing had been, and the books agree."""
    await bank.placed("batch")
    parked = await bank.loan_in("train", LoanPhase.PARKED)
    assert parked.checkpoint is not None
    await bank.demand_met("vision")
    await bank.settled()
    (bank.folder / "hurry").touch()
    await bank.finish("vision", "batch")
    closed = await bank.loan_in("train", LoanPhase.CLOSED)
    assert [term.term for term in closed.history] == [1, 2]
    assert closed.history[0].checkpoint == parked.checkpoint

    result = json.loads(await asyncio.to_thread(out.read_text))
    assert result["steps"] == undisturbed["steps"] > parked.checkpoint.step
    assert result["weightsSha256"] == undisturbed["weightsSha256"]
    assert (result["loss"], result["accuracy"]) == (undisturbed["loss"], undisturbed["accuracy"])

    async def returned() -> bool:
        return not (await bank.books()).lines

    await bank.until(returned, "no line is open")
    lines = await bank.lines()
    assert [(line.term, line.gpus, line.state) for line in lines] == [
        (1, 8, LineState.RETURNED),
        (2, 8, LineState.RETURNED),
    ]
    await bank.ledger.post(until=datetime.now(UTC))
    postings = await bank.ledger.postings(cluster=bank.world.cluster, pool=bank.world.pool)
    assert {posting.account for posting in postings} == {bank.name("vision"), bank.name("search")}
    assert sum(posting.gpu_ms for posting in postings) == 0
    await bank.settled()


async def test_a_recalled_training_run_ends_bit_for_bit_as_an_undisturbed_one(
    bank: Bank, undisturbed: dict[str, Any]
) -> None:
    out = await start_training(bank)
    await bank.own("vision", "batch")
    await see_the_end(bank, out, undisturbed)


async def test_a_recall_ends_right_when_worker_and_controller_die_in_the_middle(
    bank: Bank, lab_bank: RunningBank, undisturbed: dict[str, Any]
) -> None:
    out = await start_training(bank)
    await bank.own("vision", "batch")

    async def recalled() -> bool:
        return any(line.state is LineState.RECALLED for line in await bank.lines(job="train"))

    await bank.until(recalled, "the loan is recalled")
    processes = lab_bank.processes
    before = [process.pid for process in processes.processes]
    await asyncio.to_thread(processes.worker.kill)
    await asyncio.to_thread(processes.controller.kill)
    await asyncio.to_thread(processes.start)
    assert None not in before
    assert not {process.pid for process in processes.processes} & set(before)
    await see_the_end(bank, out, undisturbed)
