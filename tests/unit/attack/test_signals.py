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


async def test_work_that_lets_loans_lapse_again_and_again_rests_longer_every_time(tmp_path: Path) -> None:
    async with a_bank(tmp_path) as bank:
        await bank.agree(a={"guaranteed": 8, "maxCapacity": 16}, b={"guaranteed": 8, "maxCapacity": 16})
        await bank.let(0.2)
        bank.submit("a", "x", 16, borrow=True, pods=2)
        await bank.cluster.advance(0.1)
        facts = await bank.cluster.observe(POOL)
        (uid,) = {workload.key.uid for workload in facts.workloads}
        now = bank.cluster.clock.now()
        rested = []
        for _ in range(6):
            bank.loop._rest((uid,), now)
            start = now
            while bank.loop._rests(facts, now):
                now += timedelta(seconds=10)
            rested.append((now - start).total_seconds())
        assert rested == [30, 60, 120, 240, 480, 600]
        gone = facts.model_copy(update={"workloads": ()})
        bank.loop._rest((uid,), now)
        assert not bank.loop._rests(gone, now)
        assert not bank.loop._rests(facts, now)


async def test_whoever_is_gone_is_forgotten_by_what_was_said_to_owners(tmp_path: Path) -> None:
    async with a_bank(tmp_path) as bank:
        await bank.agree(a={"guaranteed": 8}, b={"guaranteed": 8})
        for number in range(3):
            bank.submit("a", f"large-{number}", 32, pods=4)
        await bank.let(2)
        assert len(bank.loop._notes._told) == 3, "each was told why it waits"
        for number in range(3):
            bank.cluster.delete_job(f"large-{number}", "team-a")
        await bank.let(1)
        assert bank.loop._notes._told == {}
