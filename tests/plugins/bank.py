"""The fixture `lab_bank`: one bank of real processes beside the session's lab, shared by all tests that take it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from gpubank.lab import Lab
    from gpubank.lab.postgres import Postgres
    from tests.support.running import RunningBank


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lab_bank(
    lab: "Lab", postgres_server: "Postgres", tmp_path_factory: pytest.TempPathFactory
) -> "AsyncIterator[RunningBank]":
    """Worker and controller processes with Temporal and PostgreSQL; tests that take it run in the session's loop."""
    from tests.support.running import running_bank

    async with running_bank(lab, postgres_server.create_database(), tmp_path_factory.mktemp("bank")) as bank:
        yield bank
