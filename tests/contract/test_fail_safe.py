"""The contract of the fail-safe on the simulation."""

from collections.abc import AsyncIterator

import pytest

from gpubank.ports import FailSafeBackend
from tests.contract.failsafe_suite import FailSafeSuite
from tests.contract.simulated_world import SimulatedWorld, simulated_world


class TestSimulation(FailSafeSuite):
    @pytest.fixture
    async def world(self) -> AsyncIterator[SimulatedWorld]:
        async with simulated_world() as world:
            yield world

    @pytest.fixture
    def hand(self, world: SimulatedWorld) -> FailSafeBackend:
        return world.simulated.fail_safe
