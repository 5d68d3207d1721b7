"""The contract of the fail-safe: the watchdog's hand at a scheduler, and the way back of the queues."""

from datetime import UTC, datetime

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.errors import ConflictError
from gpubank.ports import FailSafeBackend
from tests.contract.quota_bench import Bench, placed, queue, waits
from tests.contract.world import World, layout, the

AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
OWN, BORROW = Side.OWN, Side.BORROW


class FailSafeSuite:
    """Two groups of 16 in a pool of 40; ads has 16 of its own in use, and 8 of maps on loan."""

    @pytest.fixture
    async def bench(self, world: World) -> Bench:
        await world.add_nodes(8, 8, 8, 8, 8)
        await world.backend.lay_out(layout(world, "ads", "maps"))
        bench = Bench(world)
        await bench.quotas(ads=16, maps=8, ads_borrow=8)
        await bench.job("ads", "own", pods=2)
        await bench.job("ads", "loan", side=BORROW, priority=10)
        await bench.until(lambda facts: placed("own")(facts) and placed("loan")(facts))
        return bench

    @pytest.fixture
    def hand(self, world: World) -> FailSafeBackend:
        raise NotImplementedError

    async def enter(self, bench: Bench, hand: FailSafeBackend, side: Side, epoch: int) -> None:
        """Put all queues of one side in, and see the scheduler take them."""
        pool = bench.world.pool
        for _ in range(50):
            facts = await hand.observe(pool)
            found = [q for q in facts.queues if q.kind is side]
            missing = [q for q in found if (q.in_cohort, q.epoch) != (True, epoch)]
            if not missing and all(q.acknowledged for q in found):
                return
            for each in missing:
                own = side is OWN
                try:
                    await hand.enter(
                        pool,
                        each,
                        nominal=16 if own else 0,
                        borrowing_limit=0 if own else 24,
                        reclaims=own,
                        epoch=epoch,
                    )
                except ConflictError:
                    continue  # the scheduler writes its status all the time
            await bench.world.pause(0.1)
        raise AssertionError(f"the queues never stood: {facts!r}")

    async def switch(self, bench: Bench, hand: FailSafeBackend, epoch: int = 1, surplus: int = 8) -> None:
        pool = bench.world.pool
        await hand.begin(pool, epoch, at=AT, seen=(await hand.observe(pool)).version)
        await self.enter(bench, hand, BORROW, epoch)
        await hand.lend(pool, surplus, seen=(await hand.observe(pool)).version)
        await self.enter(bench, hand, OWN, epoch)

    async def end(self, bench: Bench, hand: FailSafeBackend, epoch: int = 1) -> None:
        pool = bench.world.pool
        await hand.end(pool, epoch, seen=(await hand.observe(pool)).version)
        await bench.until(lambda facts: facts.fail_safe_epoch == 0)

    async def test_before_it_was_ever_needed_nothing_stands(self, bench: Bench, hand: FailSafeBackend) -> None:
        for _ in range(100):  # the scheduler sums up what is reserved a moment later
            facts = await hand.observe(bench.world.pool)
            if sum(each.reserved for each in facts.queues) == 24:
                break
            await bench.world.pause(0.1)
        assert (facts.epoch, facts.last_epoch, facts.surplus) == (0, 0, 0)
        found = {f"{q.group}.{q.kind}": (q.nominal, q.reserved, q.in_cohort, q.epoch) for q in facts.queues}
        assert found == {
            "ads.own": (16, 16, False, 0),
            "ads.borrow": (8, 8, False, 0),
            "maps.own": (8, 0, False, 0),
            "maps.borrow": (0, 0, False, 0),
        }

    async def test_the_epoch_alone_stops_the_bank_and_nothing_else(self, bench: Bench, hand: FailSafeBackend) -> None:
        pool = bench.world.pool
        seen = (await hand.observe(pool)).version
        await hand.begin(pool, 4, at=AT, seen=seen)
        facts = await bench.until(lambda facts: facts.fail_safe_epoch == 4)
        assert facts.fail_safe_since == AT
        with pytest.raises(ConflictError):
            await bench.quotas(maps=16)
        await bench.never(lambda facts: not placed("loan")(facts), seconds=0.5)
        with pytest.raises(ConflictError):
            await hand.begin(pool, 5, at=AT, seen=seen)
        again = await hand.observe(pool)
        assert (again.epoch, again.last_epoch) == (4, 4)

    async def test_an_owner_takes_back_from_borrowers_only_whatever_their_priority(
        self, bench: Bench, hand: FailSafeBackend
    ) -> None:
        await self.switch(bench, hand)
        await bench.job("ads", "more", side=BORROW, priority=10)
        await bench.until(placed("more"))  # 8 that nobody is guaranteed, and 8 that maps does not use
        await bench.job("maps", "gang", pods=2)
        facts = await bench.until(placed("gang"), timeout=20)
        assert the(facts, "own").placed
        assert sorted(the(facts, name).reserved for name in ("loan", "more")) == [False, True]
        await bench.never(lambda facts: not (placed("gang")(facts) and placed("own")(facts)), seconds=1)

    async def test_nobody_borrows_beyond_its_limit_or_what_there_is(self, bench: Bench, hand: FailSafeBackend) -> None:
        await self.switch(bench, hand, surplus=0)
        for number in range(2):
            await bench.job("maps", f"job{number}", side=BORROW)
        await bench.until(lambda facts: placed("job0")(facts) or placed("job1")(facts))
        await bench.never(lambda facts: placed("job0")(facts) and placed("job1")(facts))

    async def test_a_queue_that_has_changed_is_not_overwritten(self, bench: Bench, hand: FailSafeBackend) -> None:
        pool = bench.world.pool
        before = await hand.observe(pool)
        await hand.begin(pool, 1, at=AT, seen=before.version)
        await self.enter(bench, hand, BORROW, 1)
        stale = next(q for q in before.queues if q.kind is BORROW)
        with pytest.raises(ConflictError):
            await hand.enter(pool, stale, nominal=3, borrowing_limit=3, reclaims=False, epoch=1)

    async def test_the_bank_takes_its_queues_back_one_by_one_and_touches_no_job(
        self, bench: Bench, hand: FailSafeBackend
    ) -> None:
        pool = bench.world.pool
        await self.switch(bench, hand)
        with pytest.raises(ConflictError):
            await bench.backend.take_back(pool, "ads", OWN, nominal=16, revision=7)
        await self.end(bench, hand)
        facts = await bench.backend.observe(pool)
        assert facts.in_fail_safe, "the queues are still where the watchdog put them"
        assert facts.fail_safe_since == AT
        with pytest.raises(ConflictError):
            await bench.backend.write_quota(pool, "ads", OWN, nominal=16, revision=7)
        for group, side, nominal in (("ads", OWN, 16), ("maps", OWN, 8), ("ads", BORROW, 8), ("maps", BORROW, 0)):
            await _patiently(bench, group, side, nominal)
        facts = await bench.until(lambda facts: not facts.in_fail_safe)
        assert {q.name: q.nominal for q in facts.queues} == {
            f"ads.{pool}.own": 16,
            f"ads.{pool}.borrow": 8,
            f"maps.{pool}.own": 8,
            f"maps.{pool}.borrow": 0,
        }
        assert [queue(facts, "maps", side).stamp for side in (OWN, BORROW)] == [7, 7]
        assert placed("own")(facts)
        assert placed("loan")(facts)
        bench.revision = 7
        await bench.quotas(maps=16)  # and the bank is in charge again
        await bench.fenced("maps")
        facts = await bench.never(lambda facts: not placed("loan")(facts), seconds=0.5)
        assert all(not each.in_cohort and each.epoch == 0 for each in (await hand.observe(pool)).queues)

    async def test_taken_back_queues_borrow_and_preempt_no_more(self, bench: Bench, hand: FailSafeBackend) -> None:
        await self.switch(bench, hand)
        await self.end(bench, hand)
        for group, side, nominal in (("ads", OWN, 16), ("maps", OWN, 8), ("ads", BORROW, 8), ("maps", BORROW, 0)):
            await _patiently(bench, group, side, nominal)
        await bench.until(lambda facts: all(each.fenced == 7 for each in facts.queues))
        await bench.job("maps", "gang", pods=2)
        await bench.job("maps", "greedy", side=BORROW)
        await bench.until(lambda facts: waits("gang")(facts) and waits("greedy")(facts))
        facts = await bench.never(lambda facts: not (waits("gang")(facts) and waits("greedy")(facts)))
        assert placed("loan")(facts)

    async def test_an_epoch_never_comes_twice(self, bench: Bench, hand: FailSafeBackend) -> None:
        pool = bench.world.pool
        await self.switch(bench, hand, epoch=3)
        await self.end(bench, hand, epoch=3)
        facts = await hand.observe(pool)
        assert (facts.epoch, facts.last_epoch) == (0, 3)
        await self.switch(bench, hand, epoch=4)
        facts = await hand.observe(pool)
        assert {each.epoch for each in facts.queues} == {4}


async def _patiently(bench: Bench, group: str, side: Side, nominal: int) -> None:
    """Take one queue back, again where the scheduler wrote its status in between."""
    for _ in range(20):
        try:
            await bench.backend.take_back(bench.world.pool, group, side, nominal=nominal, revision=7)
        except ConflictError:
            await bench.world.pause(0.05)
        else:
            return
    raise AssertionError(f"queue {group}.{side} never stood still")
