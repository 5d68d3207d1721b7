"""The contract of the fail-safe on real Kueue."""

from collections.abc import AsyncIterator

import pytest

from gpubank.adapters.kubernetes.kueue.failsafe import KueueFailSafe
from gpubank.lab import Lab
from gpubank.ports import FailSafeBackend
from tests.contract.failsafe_suite import FailSafeSuite
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.quota_bench import Bench
from tests.contract.world import layout


class TestKueue(FailSafeSuite):
    @pytest.fixture
    async def world(self, lab: Lab) -> AsyncIterator[KueueWorld]:
        async with kueue_world(lab, "ads", "maps") as world:
            yield world

    @pytest.fixture
    def hand(self, world: KueueWorld) -> FailSafeBackend:
        return KueueFailSafe(world.connection)

    async def test_on_their_way_back_the_layout_leaves_the_queues_alone(
        self, bench: Bench, hand: FailSafeBackend, world: KueueWorld
    ) -> None:
        await self.switch(bench, hand)
        await self.end(bench, hand)
        report = await world.backend.lay_out(layout(world, "ads", "maps"))
        assert ([each.reason for each in report.problems], report.changed) == (["FailSafe"], ())
        assert all(each.in_cohort for each in (await hand.observe(world.pool)).queues)
