"""A Temporal server and a bank for every test: workflows of one test never meet the workers of another."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpubank.client import BankClient
from gpubank.domain.errors import BackendError
from gpubank.embedded.devserver import DevServer
from gpubank.settings import TemporalSettings
from tests.fakes.bank import FakeBank, fake_bank
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
