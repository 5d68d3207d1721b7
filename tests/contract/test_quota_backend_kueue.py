"""The contract of the quota port on real Kueue."""

from collections.abc import AsyncIterator

import pytest

from gpubank.lab import Lab
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.quota_bench import GROUPS
from tests.contract.quota_suite import QuotaBackendSuite


class TestKueue(QuotaBackendSuite):
    @pytest.fixture
    async def world(self, lab: Lab) -> AsyncIterator[KueueWorld]:
        async with kueue_world(lab, *GROUPS, "video") as world:
            yield world
