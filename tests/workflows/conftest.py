"""A Temporal namespace and a bank for every test: workflows of one test never meet the workers of another."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from gpubank.client import BankClient
from gpubank.domain.errors import BackendError
from gpubank.domain.failsafe import heartbeat_lease
from gpubank.domain.terms import PoolTerms
from gpubank.embedded.devserver import DevServer
from gpubank.settings import TemporalSettings
from gpubank.watchdog.watchdog import Watchdog
from tests.fakes.bank import POOL, FakeBank, fake_bank
from tests.fakes.branches import ManyBanks


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """host:port of a Temporal server, in memory, in which tests have namespaces of their own."""
    async with DevServer(tmp_path_factory.mktemp("temporal"), search_attributes={}, persistent=False) as server:
        await connected(server.address)
        yield server.address


@pytest.fixture
async def bank_client(temporal_address: str) -> BankClient:
    """A client of a Temporal namespace of the test's own."""
    return await in_own_namespace(temporal_address)


@pytest.fixture
async def bank(bank_client: BankClient) -> AsyncIterator[FakeBank]:
    """Two groups with 8 GPUs each on two nodes of 8."""
    async with fake_bank(bank_client, {"research": 8, "serving": 8}) as bank:
        yield bank


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def banks(temporal_address: str) -> AsyncIterator[ManyBanks]:
    """Pools of their own for the scenarios of one module, in one Temporal namespace; they run in the module's loop."""
    async with ManyBanks(await in_own_namespace(temporal_address)).running() as banks:
        yield banks


@pytest.fixture
async def watched(bank: FakeBank) -> AsyncIterator[FakeBank]:
    """A bank with a heartbeat, and a watchdog that waits for two seconds."""
    async with watching(bank):
        yield bank


@asynccontextmanager
async def watching(bank: FakeBank) -> AsyncIterator[None]:
    """Have a bank's heart beat, and a watchdog look at it that waits for two seconds."""
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
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def in_own_namespace(address: str) -> BankClient:
    """Make a namespace with the bank's search attributes, and connect to it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    elsewhere = await connected(address)
    retention = Duration(seconds=24 * 3600)
    await elsewhere.temporal.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    )
    client = await BankClient.connect(TemporalSettings(address=address, namespace=name))
    await client.register_search_attributes()
    return client


def settings_of(client: BankClient) -> TemporalSettings:
    """Return with what another process or client reaches the same namespace."""
    temporal = client.temporal
    return TemporalSettings(address=temporal.service_client.config.target_host, namespace=temporal.namespace)


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
