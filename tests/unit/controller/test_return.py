"""The fail-safe and the way back, on the simulation: what ran is in the books, with its times, and nothing twice."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpubank.agreements import Agreements
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind
from gpubank.domain.failsafe import heartbeat_lease
from gpubank.domain.loan import Line
from gpubank.watchdog.watchdog import Watchdog
from tests.unit.controller.harness import POOL, Bank, a_bank

AFTER = 60
LEASE = heartbeat_lease("local", POOL)


class Scene:
    """A bank that may be dead, and a watchdog that never is."""

    def __init__(self, bank: Bank) -> None:
        self.bank, self.cluster = bank, bank.cluster
        self.watchdog = Watchdog(
            "local",
            terms=Agreements("local", self.cluster.objects).all_terms,
            leases=self.cluster.leases,
            backend=self.cluster.fail_safe,
            now=self.cluster.clock.now,
            monotonic=self.cluster.clock.monotonic,
            pause=self.cluster.advance,
        )

    @property
    def now(self) -> datetime:
        return self.cluster.clock.now()

    async def agree(self, capacity: int = 16, *, policies: dict[str, dict[str, Any]]) -> None:
        shares = [{"businessGroup": group, "guaranteed": capacity} for group in policies]
        limits = {"failSafeAfter": f"{AFTER}s", "resumeAfter": "0s"}
        await self.bank.apply("GPUPool", POOL, {"capacity": capacity, "shares": shares, "limits": limits})
        for group, spec in policies.items():
            await self.bank.apply("BusinessGroup", group, {"owner": group, "namespaces": [f"team-{group}"]})
            policy = {"businessGroup": group, "resourcePool": POOL, **spec}
            await self.bank.apply("GPUQuotaPolicy", group, policy, namespace=f"team-{group}")
        await self.alive(2)

    async def beat(self) -> None:
        await self.cluster.leases.renew(LEASE, holder="gpubank", duration=timedelta(seconds=45))
        await self.watchdog.turn()

    async def alive(self, seconds: float) -> None:
        """Let the bank live: it turns four times in a second, and beats."""
        for _ in range(round(seconds)):
            await self.beat()
            await self.bank.controller.reconcile()
            for _ in range(4):
                await self.bank.loop.turn()
                await self.cluster.advance(0.25)

    async def dead(self, seconds: float) -> None:
        """Let the bank be dead, and the watchdog look twenty times."""
        await self.bank.controller.stop()
        for _ in range(20):
            await self.watchdog.turn()
            await self.cluster.advance(seconds / 20)

    async def beats(self) -> None:
        """Let the bank beat until the watchdog believes it, and turn now and then."""
        for _ in range(AFTER // 10 + 1):
            await self.beat()
            await self.cluster.advance(10)
        await self.beat()

    async def back(self) -> None:
        """Let the bank come back, and take its queues back."""
        await self.bank.loop.turn()
        await self.beats()
        await self.alive(3)
        facts = await self.cluster.observe(POOL)
        assert not facts.in_fail_safe

    async def line(self, job: str) -> list[Line]:
        """Lines of a job that ever were, oldest first."""
        found = await self.bank.ledger.lines(cluster="local", pool=POOL)
        return [line for line in reversed(found) if line.workload.job == f"Job/{job}"]

    async def check(self) -> None:
        """Assert that every running borrow job has its lines, that quotas are those of the books, and all balances."""
        facts, books = await self.cluster.observe(POOL), await self.bank.books()
        for workload in facts.workloads:
            if workload.kind is Side.BORROW:
                backed = sum(line.gpus for line in books.lines_of(workload.key.uid))
                assert backed == (workload.gpus if workload.reserved else 0), workload.key.job
        for queue in facts.queues:
            own = queue.kind is Side.OWN
            assert queue.nominal == (books.own_nominal(queue.group) if own else books.granted(queue.group))
        assert sum(queue.nominal for queue in facts.queues) <= books.capacity
        await self.bank.ledger.post(until=self.now)
        report = await self.bank.ledger.verify()
        assert report.ok, report.findings


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_bank(tmp_path) as bank:
        yield Scene(bank)


EIGHT = {"guaranteed": 8, "borrowLimit": 8}


async def lent(scene: Scene) -> None:
    """B lends 8 GPUs to a."""
    await scene.agree(policies={"a": EIGHT, "b": EIGHT})
    scene.bank.submit("a", "own", 8)
    await scene.alive(3)
    scene.bank.submit("a", "loan", 8, borrow=True)
    await scene.alive(3)
    assert scene.bank.running() == {"own", "loan"}


async def test_a_job_that_runs_through_it_all_keeps_its_loan(scene: Scene) -> None:
    await lent(scene)
    (before,) = await scene.line("loan")
    await scene.dead(AFTER + 10)
    await scene.back()
    (after,) = await scene.line("loan")
    assert (after.line_id, after.granted_at, after.state, after.ended_at) == (
        before.line_id,
        before.granted_at,
        "Granted",
        None,
    )
    assert scene.bank.quotas() == {"a.own": 8, "a.borrow": 8, "b.own": 0, "b.borrow": 0}
    await scene.check()


async def test_a_loan_ends_when_its_job_was_preempted_not_when_the_bank_came_back(scene: Scene) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    preempted = scene.now
    scene.bank.submit("b", "wanted", 8)
    await scene.dead(400)
    assert scene.bank.running() == {"own", "wanted"}
    await scene.back()
    (line,) = await scene.line("loan")
    assert line.ended_at is not None
    assert timedelta(0) < line.ended_at - preempted < timedelta(seconds=5)
    assert scene.bank.quotas() == {"a.own": 8, "a.borrow": 0, "b.own": 8, "b.borrow": 0}
    await scene.check()


async def test_what_has_been_posted_too_long_is_posted_back(scene: Scene) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    scene.bank.submit("b", "wanted", 8)
    await scene.dead(2 * 3600)
    await scene.bank.ledger.post(until=scene.now)
    await scene.back()
    (line,) = await scene.line("loan")
    assert line.granted_at is not None
    assert line.ended_at is not None
    await scene.check()
    ran = (line.ended_at - line.granted_at) // timedelta(milliseconds=1)
    (balance,) = [b for b in await scene.bank.ledger.balances(pool=POOL) if b.account == "a"]
    assert balance.borrowed_gpu_ms == pytest.approx(8 * ran, abs=8)


async def test_a_job_that_came_in_by_itself_is_adopted_since_its_admission(scene: Scene) -> None:
    await scene.agree(policies={"a": EIGHT, "b": EIGHT})
    scene.bank.submit("a", "own", 8)
    await scene.alive(3)
    await scene.dead(AFTER + 10)
    scene.bank.submit("a", "loan", 8, borrow=True)
    started = scene.now
    await scene.dead(200)
    assert "loan" in scene.bank.running()
    await scene.back()
    (line,) = await scene.line("loan")
    assert (line.lender, line.borrower, line.gpus, line.state) == ("b", "a", 8, "Granted")
    assert line.granted_at is not None
    assert timedelta(0) <= line.granted_at - started < timedelta(seconds=5)
    signals = [(s.kind, s.workload.job, s.at) for s in scene.bank.processes.signals]
    assert ("granted", "Job/loan", line.granted_at) in signals, "and has its Loan"
    await scene.check()


async def test_a_job_that_came_and_went_is_billed_for_what_it_ran_if_it_ended_before_the_bank_came(
    scene: Scene,
) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    scene.cluster.finish_job("loan", "team-a")
    ended = scene.now
    await scene.dead(300)
    await scene.back()
    (line,) = await scene.line("loan")
    assert line.ended_at is not None
    assert abs(line.ended_at - ended) < timedelta(seconds=2)
    await scene.check()


async def test_a_job_that_is_gone_is_billed_until_the_switch(scene: Scene) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    since = (await scene.cluster.observe(POOL)).fail_safe_since
    scene.cluster.delete_job("loan", "team-a")
    await scene.dead(300)
    await scene.back()
    (line,) = await scene.line("loan")
    assert line.ended_at == since, "until then nobody else could have its GPUs"
    await scene.check()


async def test_no_gpu_is_billed_twice_where_one_job_follows_another(scene: Scene) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    scene.bank.submit("a", "next", 8, borrow=True)
    await scene.dead(20)
    scene.cluster.finish_job("loan", "team-a")
    await scene.dead(100)
    assert "next" in scene.bank.running()
    await scene.back()
    (first,), (second,) = await scene.line("loan"), await scene.line("next")
    assert first.ended_at is not None
    assert second.granted_at is not None
    assert first.lender == second.lender == "b"
    assert first.ended_at <= second.granted_at
    await scene.check()


async def test_a_dead_bank_that_had_just_offered_leaves_nothing_lent(scene: Scene) -> None:
    await scene.agree(policies={"a": EIGHT, "b": EIGHT})
    scene.bank.submit("a", "own", 8)
    await scene.alive(3)
    scene.bank.submit("a", "loan", 8, borrow=True)
    await scene.cluster.advance(0.1)
    await scene.bank.loop.turn()
    assert [state for *_, state in await scene.bank.lines()] == ["Offered"]
    scene.cluster.delete_job("loan", "team-a")
    await scene.dead(AFTER + 60)
    await scene.back()
    (line,) = await scene.line("loan")
    assert (line.state, line.granted_at) == ("Withdrawn", None)
    await scene.check()


async def test_a_demand_that_the_scheduler_has_met_is_over_and_nobody_else_is_stopped(scene: Scene) -> None:
    await lent(scene)
    scene.bank.submit("b", "wanted", 8)
    await scene.alive(2)
    assert len((await scene.bank.books()).demands) == 1
    await scene.dead(AFTER + 30)
    assert "wanted" in scene.bank.running()
    await scene.back()
    assert (await scene.bank.books()).demands == ()
    assert scene.bank.running() == {"own", "wanted"}
    await scene.check()


async def test_what_is_lent_beyond_a_lending_limit_is_adopted_and_wanted_back(scene: Scene) -> None:
    await scene.agree(
        policies={"a": EIGHT, "b": {"guaranteed": 8, "borrowLimit": 8, "lendingLimit": 0}},
    )
    scene.bank.submit("a", "own", 8)
    await scene.alive(3)
    scene.bank.submit("a", "loan", 8, borrow=True)
    await scene.alive(3)
    assert scene.bank.running() == {"own"}
    await scene.dead(AFTER + 60)
    assert scene.bank.running() == {"own", "loan"}, "the scheduler knows no lendingLimit"
    await scene.back()
    (line,) = await scene.line("loan")
    assert (line.lender, line.state) == ("b", "Granted")
    (demand,) = (await scene.bank.books()).demands
    assert (demand.kind, demand.lender, demand.gpus) == (DemandKind.LIMIT, "b", 8)


async def test_what_is_borrowed_beyond_a_borrow_limit_is_adopted_and_wanted_back(scene: Scene) -> None:
    await scene.agree(policies={"a": {"guaranteed": 8, "borrowLimit": 0}, "b": EIGHT})
    scene.bank.submit("a", "own", 8)
    await scene.alive(3)
    scene.bank.submit("a", "loan", 8, borrow=True)
    await scene.dead(AFTER + 60)
    assert scene.bank.running() == {"own", "loan"}, "own guarantee and limit are one to the scheduler"
    await scene.back()
    (demand,) = (await scene.bank.books()).demands
    assert (demand.kind, demand.lender, demand.gpus) == (DemandKind.RETURN, "b", 8)
    assert demand.workload is not None
    assert demand.workload.job == "Job/loan"
    assert "beyond its borrowLimit" in demand.reason


@pytest.mark.parametrize("rounds", range(1, 9))
async def test_a_bank_that_dies_again_on_its_way_back_is_watched_and_comes_back(scene: Scene, rounds: int) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    await scene.beats()
    facts = await scene.cluster.observe(POOL)
    assert (facts.fail_safe_epoch, facts.in_fail_safe) == (0, True)
    await scene.bank.controller.reconcile()
    for _ in range(rounds):
        await scene.bank.loop.turn()
        await scene.cluster.advance(0.05)
    scene.bank.submit("b", "wanted", 8)
    await scene.dead(AFTER + 60)
    assert (await scene.cluster.observe(POOL)).fail_safe_epoch == 2
    assert scene.bank.running() == {"own", "wanted"}
    await scene.back()
    assert scene.bank.quotas() == {"a.own": 8, "a.borrow": 0, "b.own": 8, "b.borrow": 0}
    await scene.check()


async def test_while_the_epoch_stands_a_living_bank_keeps_its_books_and_touches_nothing(scene: Scene) -> None:
    await lent(scene)
    await scene.dead(AFTER + 10)
    quotas = scene.bank.quotas()
    scene.bank.submit("b", "wanted", 8)
    for _ in range(10):  # the loop turns, and Temporal is dead
        await scene.bank.let(1)
    assert scene.bank.quotas() == quotas
    assert await scene.bank.lines() == []
    assert (await scene.bank.conditions("GPUPool", POOL))["FailSafe"] == ("True", "WatchdogActed")
