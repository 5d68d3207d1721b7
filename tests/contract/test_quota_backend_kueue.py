"""The contract of the quota port on real Kueue."""

from collections.abc import AsyncIterator

import pytest

pytest.register_assert_rewrite(
    "tests.contract.quota_bench",
    "tests.contract.quota_loans",
    "tests.contract.quota_suite",
    "tests.contract.world",
    "tests.contract.kueue_world",
)

from gpubank.lab import Lab  # noqa: E402
from tests.contract.kueue_world import KueueWorld, kueue_world  # noqa: E402
from tests.contract.quota_bench import GROUPS  # noqa: E402
from tests.contract.quota_suite import QuotaBackendSuite  # noqa: E402


class TestKueue(QuotaBackendSuite):
    @pytest.fixture
    async def world(self, lab: Lab) -> AsyncIterator[KueueWorld]:
        async with kueue_world(lab, *GROUPS, "video") as world:
            yield world
