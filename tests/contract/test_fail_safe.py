"""The contract of the fail-safe on the simulation."""

from collections.abc import AsyncIterator

import pytest

pytest.register_assert_rewrite("tests.contract.failsafe_suite")

from gpubank.ports import FailSafeBackend  # noqa: E402
from tests.contract.failsafe_suite import FailSafeSuite  # noqa: E402
from tests.contract.simulated_world import SimulatedWorld, simulated_world  # noqa: E402


class TestSimulation(FailSafeSuite):
    @pytest.fixture
    async def world(self) -> AsyncIterator[SimulatedWorld]:
        async with simulated_world() as world:
            yield world

    @pytest.fixture
    def hand(self, world: SimulatedWorld) -> FailSafeBackend:
        return world.simulated.fail_safe
