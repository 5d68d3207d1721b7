"""The contract of the quota port on the simulation."""

from collections.abc import AsyncIterator

import pytest

pytest.register_assert_rewrite("tests.contract.quota_suite", "tests.contract.world")

from tests.contract.quota_suite import QuotaBackendSuite  # noqa: E402
from tests.contract.simulated_world import SimulatedWorld, simulated_world  # noqa: E402


class TestSimulation(QuotaBackendSuite):
    @pytest.fixture
    async def world(self) -> AsyncIterator[SimulatedWorld]:
        async with simulated_world() as world:
            yield world
