"""Steps of one pool wait for each other where they would only undo each other's work."""

import asyncio
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment

import activities.turns
from activities.pools import Pools
from activities.reclaims import ReclaimActivities
from activities.turns import MOST_ROUNDS, MOST_WAITING, Groups, Rounds, Turns
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.loan import LineState
from gpubank.domain.steps import DemandStep, PlanStep
from gpubank.domain.transaction import CapacityChange, DemandOpening, GuaranteeChange, Move, Offer, Transaction
from tests.contract.simulated_world import simulated_world
from tests.contract.world import JobRequest, layout, the
from tests.fakes.bank import POOL, TermsBoard
from tests.fakes.ledger import MemoryLedger
from tests.support.waiting import soon


class Line:
    """Steps that take turns, and end theirs when they are told to."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.began: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    async def step(self, name: str, pool: str = POOL) -> None:
        self.go[name] = asyncio.Event()
        async with self.turns.turn(pool):
            self.began.append(name)
            await self.go[name].wait()

    def start(self, name: str, pool: str = POOL) -> "asyncio.Task[None]":
        return asyncio.create_task(self.step(name, pool))


@pytest.fixture
def line() -> Line:
    return Line()


async def test_one_has_its_turn_at_a_time_in_the_order_in_which_they_came(line: Line) -> None:
    tasks = [line.start(name) for name in "abc"]
    for number, name in enumerate("abc", 1):
        await soon()
        assert line.began == list("abc")[:number]
        line.go[name].set()
    await asyncio.gather(*tasks)


async def test_pools_do_not_wait_for_each_other(line: Line) -> None:
    tasks = [line.start("a"), line.start("b", "another")]
    await soon()
    assert line.began == ["a", "b"]
    for name in "ab":
        line.go[name].set()
    await asyncio.gather(*tasks)


async def test_a_step_that_fails_or_is_cancelled_hands_the_turn_on(line: Line) -> None:
    with pytest.raises(BackendError):
        async with line.turns.turn(POOL):
            raise BackendError("away")
    first, second, third = (line.start(name) for name in "abc")
    await soon()
    second.cancel()
    first.cancel()
    await soon()
    assert line.began == ["a", "c"]
    line.go["c"].set()
    await third


async def test_whoever_waits_too_long_leaves_and_is_tried_again(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities.turns, "LONGEST_WAIT", 0.01)
    first = line.start("a")
    await soon()
    with pytest.raises(ApplicationError, match=r"for 0\.01 s") as failed:
        await line.step("b")
    assert failed.value.category is ApplicationErrorCategory.BENIGN
    line.go["a"].set()
    await first
    line.go.clear()
    last = line.start("c")
    await soon()
    assert line.began == ["a", "c"], "who left is not in the way"
    line.go["c"].set()
    await last


async def test_more_than_so_many_do_not_wait_at_all(line: Line) -> None:
    tasks = [line.start(str(number)) for number in range(MOST_WAITING + 1)]
    await soon()
    with pytest.raises(ApplicationError, match=f"{MOST_WAITING} others wait"):
        await line.step("one too many")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Work:
    """Rounds that end when they are told to."""

    def __init__(self) -> None:
        self.rounds = Rounds(self.run)
        self.running = self.most = self.begun = 0
        self.groups: list[Groups] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def run(self, pool: str, groups: Groups) -> None:
        self.begun += 1
        self.groups.append(groups)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def work() -> Work:
    return Work()


async def test_those_who_ask_before_a_round_has_begun_share_it(work: Work) -> None:
    asked = [asyncio.create_task(work.rounds.after_now(POOL)) for _ in range(5)]
    await soon()
    work.go.set()
    await asyncio.gather(*asked)
    assert work.begun == 1


@pytest.mark.parametrize(
    ("asked", "groups"),
    [
        pytest.param(["a", "b", "a"], {"a", "b"}, id="those-of-all-who-share-it"),
        pytest.param(["a", "", "b"], None, id="everybody's-where-one-asks-for-that"),
        pytest.param(["", "a"], None, id="everybody's-from-the-first"),
    ],
)
async def test_a_round_is_for_everybody_who_was_asked_for(work: Work, asked: list[str], groups: Groups) -> None:
    work.go.set()
    await asyncio.gather(*(work.rounds.after_now(POOL, frozenset([each]) if each else None) for each in asked))
    await work.rounds.after_now(POOL, frozenset(["later"]))
    assert work.groups == [groups, {"later"}]


async def test_whoever_asks_during_a_round_gets_one_of_its_own(work: Work) -> None:
    first = asyncio.create_task(work.rounds.after_now(POOL))
    await soon()
    second = asyncio.create_task(work.rounds.after_now(POOL))
    await soon()
    assert work.begun == 2
    work.go.set()
    await asyncio.gather(first, second)


async def test_of_many_rounds_some_run_and_the_rest_are_one(work: Work) -> None:
    asked = []
    for _ in range(3 * MOST_ROUNDS):
        asked.append(asyncio.create_task(work.rounds.after_now(POOL)))
        await soon()
    assert work.most == work.begun == MOST_ROUNDS
    work.go.set()
    await asyncio.gather(*asked)
    assert work.begun == MOST_ROUNDS + 1


async def test_what_a_round_raises_is_raised_to_all_who_share_it(work: Work) -> None:
    work.error = ConflictError("somebody was first")
    work.go.set()
    answers = await asyncio.gather(*(work.rounds.after_now(POOL) for _ in range(3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["somebody was first"] * 3
    assert work.begun == 1


async def test_whoever_gives_up_leaves_the_round_to_the_others(work: Work) -> None:
    first, second = (asyncio.create_task(work.rounds.after_now(POOL)) for _ in range(2))
    await soon()
    first.cancel()
    await soon()
    work.go.set()
    await second
    assert (work.begun, first.cancelled()) == (1, True)


class Slow(MemoryLedger):
    """A ledger that takes its time to commit, and counts who lost a race."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    async def commit(self, transaction: Transaction) -> Books:
        await asyncio.sleep(0.01)
        try:
            return await super().commit(transaction)
        except ConflictError:
            self.lost += 1
            raise


async def test_plans_of_one_pool_at_the_same_moment_choose_different_victims_and_lose_no_race() -> None:
    names = [f"{number}" for number in range(4)]
    async with simulated_world(pool=POOL) as world:
        ledger, size = Slow(), 8 * len(names)
        board = TermsBoard(world.cluster, {"a": 0, "b": size})
        now = world.simulated.clock.now
        pools = Pools(world.cluster, quota=world.simulated, ledger=ledger, terms=board, clock=now)

        async def commit(key: str, **rows: Any) -> Books:
            head = {"key": key, "cluster": world.cluster, "pool": POOL, "at": now(), "actor": "test"}
            return await ledger.commit(Transaction.model_validate(head | rows))

        await world.add_nodes(*[8] * len(names))
        await world.simulated.lay_out(layout(world, "a", "b"))
        for name in names:
            await world.submit_job(JobRequest(group="a", name=f"loan-{name}", side=Side.BORROW))
        await world.pause(0.5)
        facts = await world.backend.observe(POOL)
        offers = [
            Offer(lender="b", borrower="a", gpus=8, workload=the(facts, f"loan-{name}").key, term=1) for name in names
        ]
        guarantee = GuaranteeChange(group="b", version=0, in_force=size)
        opened = await commit(
            "open", capacity=CapacityChange(capacity=size), guarantees=(guarantee,), offers=tuple(offers)
        )
        moves = tuple(
            Move(line_id=line.line_id, version=line.version, from_state=LineState.OFFERED, to_state=LineState.GRANTED)
            for line in opened.lines
        )
        await commit("grant", moves=moves)
        await pools.write_quotas(POOL)
        await world.wait_until(lambda facts: all(the(facts, f"loan-{name}").placed for name in names))

        for name in names:
            await world.submit_job(JobRequest(group="b", name=f"own-{name}"))
        await world.pause(0.5)
        facts = await world.backend.observe(POOL)
        keys = [the(facts, f"own-{name}").key for name in names]
        demands = [f"{POOL}/b/Workload/{key.uid}" for key in keys]
        openings = tuple(
            DemandOpening(demand_id=demand, lender="b", kind=DemandKind.WORKLOAD, gpus=8, workload=key, due_at=now())
            for demand, key in zip(demands, keys, strict=True)
        )
        await commit("demands", openings=openings)
        steps = [
            DemandStep(reclaim="reclaim/x", cluster=world.cluster, pool=POOL, lender="b", demand=demand)
            for demand in demands
        ]
        reclaims = ReclaimActivities(pools)
        plans = await asyncio.gather(
            *(ActivityEnvironment().run(reclaims.plan, PlanStep(step=step, spared=())) for step in steps)
        )
        assert all(plan.complete for plan in plans)
        assert sorted(victim.workload.job for plan in plans for victim in plan.victims) == [
            f"Job/loan-{name}" for name in names
        ]
        assert ledger.lost == 0
