"""The bank's scenarios in embedded mode: everything in this process but Temporal's server, on the simulated cluster."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpubank.adapters.ledger import SqlLedger
from gpubank.embedded.bank import EmbeddedBank, embedded_bank
from gpubank.settings import Settings
from tests.contract.bank_suite import BankSuite
from tests.contract.lease_suite import LeaseSuite
from tests.contract.shrink_suite import ShrinkSuite
from tests.contract.simulated_world import SimulatedWorld
from tests.support.bank import Bank

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module")]

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBank]:
    """One bank for all scenarios."""
    folder = tmp_path_factory.mktemp("embedded")
    async with embedded_bank(Settings.load({"mode": "embedded", "state_dir": folder})) as bank:
        yield bank


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def leaving() -> AsyncIterator[list[asyncio.Task[None]]]:
    """Scenarios that are over and clear up in the background, while the next runs."""
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    await asyncio.gather(*tasks)


class TestSimulation(BankSuite, LeaseSuite, ShrinkSuite):
    @pytest_asyncio.fixture(loop_scope="module")
    async def bank(
        self, embedded: EmbeddedBank, leaving: list[asyncio.Task[None]], tmp_path: Path
    ) -> AsyncIterator[Bank]:
        assert isinstance(embedded.ledger, SqlLedger)
        world = SimulatedWorld(embedded.cluster, f"pool{next(_numbers)}")
        bank = Bank(world, embedded.client, embedded.ledger, tmp_path)
        yield bank
        await bank.stop_auditing()
        leaving.append(asyncio.create_task(bank.leave()))
