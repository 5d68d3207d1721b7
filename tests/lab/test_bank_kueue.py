"""The bank's scenarios on real Kueue, with worker and controller as processes, real Temporal and PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.bank_suite import BankSuite
from tests.contract.lease_suite import LeaseSuite
from tests.support.bank import Bank
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


class TestKueue(BankSuite, LeaseSuite):
    @pytest_asyncio.fixture(loop_scope="session")
    async def bank(self, lab_bank: RunningBank, tmp_path: Path) -> AsyncIterator[Bank]:
        async with lab_bank.pool(tmp_path) as bank:
            yield bank
