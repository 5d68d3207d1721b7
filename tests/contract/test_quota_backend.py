"""The contract of the quota port on the simulation."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.quota_suite import QuotaBackendSuite
from tests.contract.simulated_world import SimulatedWorld, simulated_world


class TestSimulation(QuotaBackendSuite):
    @pytest.fixture
    async def world(self) -> AsyncIterator[SimulatedWorld]:
        async with simulated_world() as world:
            yield world
