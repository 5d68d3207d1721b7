"""Own work that makes room for more important work of its group, from its notice to its way back."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.loans import LoanActivities
from activities.pools import Pools
from gpubank.client import BankClient
from gpubank.decide.demand import demand_id
from gpubank.decide.desk import Desk
from gpubank.domain.contract import CAPACITY_ROLE_LABEL, Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.errors import BackendError
from gpubank.domain.facts import Mark, WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.policy import Approval, WithinGroup
from gpubank.domain.recall import Decision, LoanOutcome, LoanPhase, ReclaimPhase, ReclaimState, loan_id
from gpubank.domain.steps import LoanStep, ReleaseStep, StopResult
from gpubank.domain.transaction import CapacityChange, Choose, DemandChange, DemandOpening, GuaranteeChange, Transaction
from tests.contract.simulated_world import SimulatedWorld, simulated_world
from tests.contract.world import JobRequest, layout, the
from tests.fakes.bank import POOL, FakeBank, TermsBoard, fake_bank, in_charge
from tests.fakes.ledger import MemoryLedger
from tests.fakes.trainer import Mood

GROUP = "serving"


@pytest.fixture
def crowded(bank: FakeBank) -> FakeBank:
    """A bank in which own work of one group makes room for more important work of it."""
    bank.terms.set_group(GROUP, within_group=WithinGroup.LOWER_PRIORITY)
    return bank


async def low(bank: FakeBank) -> WorkloadFacts:
    """Have own work that can be saved hold the whole guarantee."""
    await bank.own(GROUP, "low", hook=True)
    return await bank.placed("low")


def is_met(state: ReclaimState) -> bool:
    return state.phase is ReclaimPhase.MET


async def test_it_is_saved_and_stopped_the_important_job_comes_in_first_and_it_comes_back(crowded: FakeBank) -> None:
    bank = crowded
    victim = await low(bank)
    bank.trainers.seconds = 0.5
    await bank.own(GROUP, "high", priority=10)
    await bank.own(GROUP, "sister", hook=True)  # as important as the victim, and would fit its place
    await bank.placed("high")
    parked = await bank.loan_in(victim, LoanPhase.PARKED)
    assert parked.own
    assert parked.checkpoint is not None
    assert parked.history[0].checkpoint == parked.checkpoint

    async def told(*reasons: str) -> bool:  # its Loan says so beside what it does, so perhaps later
        return bank.reasons("low").issuperset(reasons)

    await bank.until(lambda: told("LoanRecalled", "LoanParked"), "the owner of low is told of its stop")
    reclaim = await bank.reclaim_where(GROUP, is_met)
    assert [(v.workload.uid, v.answer) for v in reclaim.demands[0].victims] == [(victim.key.uid, LoanOutcome.RETURNED)]
    sister = await bank.workload("sister")
    assert sister is not None
    assert sister.admitted_at is None
    assert await bank.nothing_open()
    (line,) = bank.ledger.rows.values()
    assert (line.side, line.state, line.gpus) == (Side.OWN, LineState.RETURNED, 8)
    assert [(use.term, use.gone_at is None) for use in bank.ledger.uses] == [(1, False)]

    await bank.world.delete_job(GROUP, "sister")
    await bank.world.finish_job(GROUP, "high")
    back = await bank.placed("low")
    assert back.mark == Mark(loan=bank.loan(victim), term=2, step="resume")
    closed = await bank.loan_in(victim, LoanPhase.CLOSED)
    assert closed.note == "resumed; it waits in its own queue"
    await bank.until(lambda: told("LoanResumed"), "the owner of low is told that it comes back")
    assert await bank.nothing_open()


async def test_it_is_stopped_again_after_it_came_back(crowded: FakeBank) -> None:
    bank = crowded
    victim = await low(bank)
    for name in ("first", "second"):
        await bank.own(GROUP, name, priority=10)
        await bank.placed(name)
        await bank.loan_in(victim, LoanPhase.PARKED)
        await bank.world.finish_job(GROUP, name)
        await bank.placed("low")
    assert [line.term for line in bank.ledger.rows.values()] == [1, 2]
    assert [(use.term, use.gone_at is None) for use in bank.ledger.uses] == [(1, False), (2, False)]
    assert len({request.id for request in bank.trainers.asked}) == 2


async def test_a_policy_that_says_never_in_the_middle_lets_it_run_on(crowded: FakeBank) -> None:
    bank = crowded
    victim = await low(bank)
    bank.trainers.mood = Mood.SILENT
    await bank.own(GROUP, "high", priority=10)
    await bank.loan_in(victim, LoanPhase.CHECKPOINTING)
    bank.terms.set_group(GROUP, within_group=WithinGroup.NEVER)
    await bank.reclaim_where(GROUP, lambda state: state.phase is ReclaimPhase.CANCELLED)
    closed = await bank.loan_in(victim, LoanPhase.CLOSED)
    assert closed.note == "own work, which makes no room now"
    running = await bank.placed("low")
    assert (running.mark, running.admitted_at) == (None, victim.admitted_at)
    assert await bank.nothing_open()

    async def told() -> bool:
        return "AboveGuarantee" in bank.reasons("high")

    await bank.until(told, "the owner of high is told why it waits")


async def test_a_victim_that_ends_by_itself_leaves_its_place_to_the_important_job(crowded: FakeBank) -> None:
    bank = crowded
    victim = await low(bank)
    bank.trainers.mood = Mood.SILENT
    await bank.own(GROUP, "high", priority=10)
    await bank.loan_in(victim, LoanPhase.CHECKPOINTING)
    await bank.world.delete_job(GROUP, "low")
    await bank.placed("high")
    await bank.loan_in(victim, LoanPhase.CLOSED)
    await bank.until(bank.nothing_open, "no line is open")
    assert bank.ledger.uses == [] or bank.ledger.uses[0].gone_at is not None


async def test_who_cannot_be_saved_runs_on_and_the_important_job_waits(crowded: FakeBank) -> None:
    bank = crowded
    victim = await low(bank)
    bank.trainers.mood = Mood.FAILS
    await bank.own(GROUP, "high", priority=10)
    reclaim = await bank.reclaim_where(GROUP, lambda state: state.phase is ReclaimPhase.PARTIAL)
    assert [victim.answer for victim in reclaim.demands[0].victims] == [LoanOutcome.PROTECTED]
    await bank.loan_in(victim, LoanPhase.CLOSED)
    assert (await bank.placed("low")).admitted_at == victim.admitted_at
    await bank.until(bank.nothing_open, "no line is open")
    assert "CheckpointFailed" in bank.reasons("low")


async def test_serving_work_and_work_of_equal_priority_make_no_room(bank_client: BankClient) -> None:
    async with fake_bank(bank_client, {GROUP: 16}) as bank:
        bank.terms.set_group(GROUP, within_group=WithinGroup.LOWER_PRIORITY)
        await bank.own(GROUP, "serve", hook=True, labels={CAPACITY_ROLE_LABEL: "serving-floor"})
        await bank.own(GROUP, "equal", hook=True, priority=10)
        for name in ("serve", "equal"):
            await bank.placed(name)
        await bank.own(GROUP, "high", priority=10)

        async def told() -> bool:
            return "AboveGuarantee" in bank.reasons("high")

        await bank.until(told, "the owner of high is told why it waits")
        assert await bank.demands() == ()
        assert await bank.nothing_open()


async def test_a_group_that_asks_for_approval_is_asked_and_its_no_lets_everybody_run_on(crowded: FakeBank) -> None:
    bank = crowded
    bank.terms.set_group(GROUP, approval=Approval.REQUIRED)
    victim = await low(bank)
    await bank.own(GROUP, "high", priority=10)
    await bank.reclaim_where(GROUP, lambda state: state.phase is ReclaimPhase.AWAITING_APPROVAL)
    (line,) = await bank.lines()
    assert line.is_chosen
    await bank.client.deny(bank.reclaim(GROUP), Decision(identity="lin", reason="not today"))
    await bank.reclaim_where(GROUP, lambda state: state.phase is ReclaimPhase.PARTIAL)
    assert await bank.nothing_open()
    assert bank.reasons("low").isdisjoint({"LoanRecalled"})
    assert (await bank.placed("low")).admitted_at == victim.admitted_at


async def test_a_recall_that_the_fail_safe_cuts_off_is_done_when_the_bank_is_back(watched: FakeBank) -> None:
    bank = watched
    bank.terms.set_group(GROUP, within_group=WithinGroup.LOWER_PRIORITY)
    victim = await low(bank)
    bank.trainers.mood = Mood.SILENT
    await bank.own(GROUP, "high", priority=10)
    await bank.loan_in(victim, LoanPhase.CHECKPOINTING)
    await bank.stop_workers()
    await in_charge(bank, scheduler=True)
    await bank.until(bank.nothing_open, "nobody makes room while the scheduler is in charge")
    bank.trainers.mood = Mood.SAVES
    await bank.start_workers()
    await in_charge(bank, scheduler=False)
    await bank.placed("high")
    await bank.loan_in(victim, LoanPhase.PARKED)
    assert {line.side for line in bank.ledger.rows.values()} == {Side.OWN}
    assert await bank.nothing_open()


# ---- single steps, on time that is moved by hand


class Scene:
    """An own job of `a` that is chosen for a more important one."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world, self.ledger = world, MemoryLedger()
        self.terms = TermsBoard(world.cluster, {"a": 8})
        self.terms.set_group("a", within_group=WithinGroup.LOWER_PRIORITY)
        self.pools = Pools(world.cluster, quota=world.simulated, ledger=self.ledger, terms=self.terms, clock=self.now)
        self.loans, self.environment = LoanActivities(self.pools), ActivityEnvironment()

    def now(self) -> datetime:
        return self.world.simulated.clock.now()

    async def open(self) -> None:
        await self.world.add_nodes(8)
        await self.world.simulated.lay_out(layout(self.world, "a"))
        guarantee = GuaranteeChange(group="a", version=0, in_force=8)
        await self.commit("open", capacity=CapacityChange(capacity=8), guarantees=(guarantee,))
        await self.pools.write_quotas(POOL)
        await self.world.submit_job(JobRequest(group="a", name="job"))
        await self.world.wait_until(lambda facts: the(facts, "job").placed)
        await self.world.submit_job(JobRequest(group="a", name="high", priority=10))
        await self.world.pause(2)
        facts = await self.world.backend.observe(POOL)
        desk = Desk(facts, await self.pools.books(POOL), self.terms.now, self.now())
        high = the(facts, "high")
        self.demand = demand_id(desk, "a", DemandKind.WORKLOAD, high.key.uid)
        opening = DemandOpening(
            demand_id=self.demand,
            lender="a",
            kind=DemandKind.WORKLOAD,
            gpus=8,
            workload=high.key,
            due_at=self.now() + self.terms.now.max_time_to_return,
        )
        choice = Choose(group="a", gpus=8, workload=(await self.job()).key, term=1, demand=self.demand)
        await self.commit("choose", openings=(opening,), choices=(choice,))

    async def commit(self, key: str, **rows: object) -> None:
        head = {"key": key, "cluster": self.world.cluster, "pool": POOL, "at": self.now(), "actor": "test"}
        await self.ledger.commit(Transaction.model_validate(head | rows))

    async def job(self) -> WorkloadFacts:
        return the(await self.world.backend.observe(POOL), "job")

    async def line(self) -> Line:
        (line,) = (await self.pools.books(POOL)).lines
        return line

    async def step(self, *, term: int = 1) -> LoanStep:
        key = (await self.job()).key
        return LoanStep(
            loan=loan_id(self.world.cluster, key.uid),
            cluster=self.world.cluster,
            pool=POOL,
            borrower="a",
            workload=key,
            term=term,
            recall=1,
            reason="a test",
        )

    async def stop(self) -> StopResult:
        return await self.environment.run(self.loans.stop, await self.step())

    async def not_yet(self) -> str:
        with pytest.raises(ApplicationError) as refused:
            await self.stop()
        assert refused.value.type == "NotYet"
        return str(refused.value)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with simulated_world(pool=POOL) as world:
        scene = Scene(world)
        await scene.open()
        yield scene


async def test_its_notice_lowers_nothing(scene: Scene) -> None:
    recalled = await scene.environment.run(scene.loans.recall_lines, await scene.step())
    assert (recalled.own, recalled.gpus, recalled.lenders) == (True, 8, ("a",))
    sight = await scene.environment.run(scene.loans.look, await scene.step())
    assert (sight.own, sight.recalled_lines, sight.gpus) == (True, (), 8)
    assert await scene.world.quota("a", Side.OWN) == 8


async def test_its_queue_is_lowered_and_fenced_before_it_is_stopped(scene: Scene) -> None:
    assert "is not fenced at revision" in await scene.not_yet()
    assert (await scene.job()).active
    assert not (await scene.line()).is_chosen
    assert await scene.world.quota("a", Side.OWN) == 0
    await scene.world.pause(1)
    assert await scene.stop() is StopResult.STOPPED
    await scene.world.wait_until(lambda facts: the(facts, "job").gone)
    await scene.world.pause(3)
    assert not the(await scene.world.backend.observe(POOL), "high").reserved
    gone = await scene.environment.run(scene.loans.await_gone, await scene.step())
    assert not gone.finished
    books = await scene.pools.books(POOL)
    assert (books.lines, books.demands[0].idle) == ((), 8)


async def test_a_worker_that_dies_between_the_books_and_the_quota_is_followed_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = scene.pools.write_quotas

    async def dies(pool: str, groups: object) -> None:
        raise BackendError("the worker has died")

    monkeypatch.setattr(scene.pools, "write_quotas", dies)
    with pytest.raises(BackendError):
        await scene.stop()
    assert not (await scene.line()).is_chosen
    assert await scene.world.quota("a", Side.OWN) == 8
    monkeypatch.setattr(scene.pools, "write_quotas", written)
    await scene.not_yet()
    assert await scene.world.quota("a", Side.OWN) == 0
    assert (await scene.job()).active
    await scene.world.pause(1)
    assert await scene.stop() is StopResult.STOPPED


async def test_what_was_taken_and_is_let_go_runs_on_with_its_quota(scene: Scene) -> None:
    await scene.not_yet()
    release = ReleaseStep(step=await scene.step(), drop_pledges=False)
    assert await scene.environment.run(scene.loans.release_lines, release)
    books = await scene.pools.books(POOL)
    assert (books.lines, books.demands[0].idle) == ((), 0)
    assert await scene.world.quota("a", Side.OWN) == 8
    assert await scene.stop() is StopResult.REFUSED
    assert (await scene.job()).active


async def test_what_lost_its_quota_by_itself_is_not_stopped(scene: Scene) -> None:
    key = (await scene.job()).key
    await scene.world.simulated.stop(
        POOL, key, Mark(loan="somebody", term=1, step="stop"), seen=(await scene.job()).version
    )
    await scene.world.wait_until(lambda facts: the(facts, "job").gone)
    assert await scene.stop() is StopResult.REFUSED
    assert (await scene.line()).is_chosen


async def test_it_is_resumed_only_when_it_may_come_back(scene: Scene) -> None:
    await scene.not_yet()
    await scene.world.pause(1)
    assert await scene.stop() is StopResult.STOPPED
    await scene.world.wait_until(lambda facts: the(facts, "job").gone)
    await scene.environment.run(scene.loans.await_gone, await scene.step())
    assert not await scene.environment.run(scene.loans.resume, await scene.step(term=2))
    await scene.world.delete_job("a", "high")
    await scene.world.pause(0.5)
    (demand,) = (await scene.pools.books(POOL)).demands
    change = DemandChange(demand_id=demand.demand_id, version=demand.version, state=DemandState.CANCELLED)
    await scene.commit("cancel", demands=(change,))
    assert await scene.environment.run(scene.loans.resume, await scene.step(term=2))
    assert (await scene.job()).active
    assert await scene.environment.run(scene.loans.resume, await scene.step(term=2)), "once more is no other effect"
