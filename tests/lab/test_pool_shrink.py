"""Less room than is reserved, on the real Kueue and scheduler: see `tests.contract.shrink_suite`."""

import asyncio
from pathlib import Path

import pytest

from tests.contract.shrink_suite import a_node_is_lost_and_comes_back, no_node_has_room
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


async def test_a_pool_that_loses_a_node_and_one_whose_nodes_are_too_full_serve_their_owners(
    lab_bank: RunningBank, tmp_path: Path
) -> None:
    """Side by side, for the scheduler is given 30 s before anybody is stopped for a placement."""
    folders = [tmp_path / name for name in ("lost", "full")]
    for folder in folders:
        folder.mkdir()
    async with lab_bank.pool(folders[0]) as lost, lab_bank.pool(folders[1]) as full:
        await asyncio.gather(a_node_is_lost_and_comes_back(lost), no_node_has_room(full))
