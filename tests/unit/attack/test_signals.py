"""What the controller tells the processes, and how long it may be mistaken about what they know."""

from datetime import timedelta
from pathlib import Path

from tests.unit.controller.harness import POOL, a_bank


async def test_a_demand_is_never_without_its_reclaim_for_longer_than_a_minute(tmp_path: Path) -> None:
    """A Reclaim may end just before its demand is opened again, or be terminated, and the list says the same."""
    async with a_bank(tmp_path) as bank:
        await bank.agree(a={"guaranteed": 8, "maxCapacity": 16}, b={"guaranteed": 8, "maxCapacity": 16})
        await bank.let(1)
        bank.submit("a", "x", 16, borrow=True, pods=2)
        await bank.let(8)
        bank.submit("b", "own", 8)
        await bank.let(3)
        assert (await bank.books()).demands, POOL
        for _ in range(60):
            await bank.cluster.advance(30)
            await bank.loop.turn()
        told = len(bank.processes.needs)
        for _ in range(2):
            await bank.cluster.advance(timedelta(seconds=31).total_seconds())
            await bank.loop.turn()
        assert len(bank.processes.needs) > told
