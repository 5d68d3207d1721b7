"""A Temporal server and a bank for every test: workflows of one test never meet the workers of another."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from gpubank.client import BankClient
from gpubank.domain.errors import BackendError
from gpubank.domain.failsafe import heartbeat_lease
from gpubank.domain.terms import PoolTerms
from gpubank.embedded.devserver import DevServer
from gpubank.settings import TemporalSettings
from gpubank.watchdog.watchdog import Watchdog
from tests.fakes.bank import POOL, FakeBank, fake_bank
from tests.fakes.branches import ManyBanks
from workflows import attributes


@pytest.fixture
async def bank_client(tmp_path: Path) -> AsyncIterator[BankClient]:
    """A client of a Temporal server of its own, in memory."""
    async with DevServer(tmp_path / "temporal", search_attributes=attributes.KINDS, persistent=False) as server:
        yield await connected(server.address)


@pytest.fixture
async def bank(bank_client: BankClient) -> AsyncIterator[FakeBank]:
    """Two groups with 8 GPUs each on two nodes of 8."""
    async with fake_bank(bank_client, {"research": 8, "serving": 8}) as bank:
        yield bank


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def banks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ManyBanks]:
    """Pools of their own for the scenarios of one module, on one Temporal server; they run in the module's loop."""
    folder = tmp_path_factory.mktemp("temporal")
    async with (
        DevServer(folder, search_attributes=attributes.KINDS, persistent=False) as server,
        ManyBanks(await connected(server.address)).running() as banks,
    ):
        yield banks


@pytest.fixture
async def watched(bank: FakeBank) -> AsyncIterator[FakeBank]:
    """A bank with a heartbeat, and a watchdog that waits for two seconds."""
    bank.terms.set(fail_safe_after=timedelta(seconds=2))

    async def terms() -> Mapping[str, PoolTerms]:
        return {POOL: bank.terms.now}

    simulated = bank.world.simulated
    watchdog = Watchdog("local", terms=terms, leases=simulated.leases, backend=simulated.fail_safe)
    await bank.client.start_heartbeat("local", POOL, every=timedelta(milliseconds=300))

    async def beats() -> bool:
        return await simulated.leases.read(heartbeat_lease("local", POOL)) is not None

    await bank.until(beats, "the heart beats", 30)
    task = asyncio.create_task(watchdog.run(0.2))
    yield bank
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def connected(address: str, seconds: float = 20) -> BankClient:
    """Connect as soon as the server answers."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            return await BankClient.connect(TemporalSettings(address=address))
        except BackendError:
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.1)
