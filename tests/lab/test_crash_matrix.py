"""A choice of the crash matrix: every process is killed, and a recall is cut at every step; see `tests.matrix`."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gpubank.lab.postgres import Postgres
from tests.matrix.cells import Round, choice, rounds
from tests.matrix.crash import Machine
from tests.matrix.play import Stage
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="session")]

CELLS, LANES = 20, 7


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(
    lab_bank: RunningBank, postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    await lab_bank.end()  # what earlier tests still clear away must not meet a dead server
    folder = tmp_path_factory.mktemp("matrix")
    async with Stage.opened(lab_bank, Machine(lab_bank, postgres_server), folder) as stage:
        yield stage
        await stage.leave()


@pytest.mark.parametrize("round_", rounds(choice(CELLS), LANES), ids=lambda each: "+".join(each.kill))
async def test_recalls_end_as_if_nobody_had_died(stage: Stage, round_: Round) -> None:
    results = await stage.play(round_)
    assert {str(each.cell): each.violations for each in results if each.violations} == {}
