"""Steps of a Loan against a cluster that has moved on: late, repeated and contradicted attempts."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import cast

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment

from activities.loans import LoanActivities
from activities.pools import Pools
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import Mark, PoolFacts, WorkloadFacts
from gpubank.domain.loan import LineState, WorkloadKey
from gpubank.domain.recall import loan_id
from gpubank.domain.steps import LoanStep, ReleaseStep, StopResult
from gpubank.domain.transaction import CapacityChange, GuaranteeChange, Move, Offer, Transaction
from gpubank.ports import QuotaBackend
from tests.contract.simulated_world import SimulatedWorld, simulated_world
from tests.contract.world import JobRequest, layout, the
from tests.fakes.bank import POOL, TermsBoard
from tests.fakes.ledger import MemoryLedger


class Scene:
    """One borrow job of `a` that runs on 8 GPUs of `b`, on time that is moved by hand."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.ledger = MemoryLedger()
        self.terms = TermsBoard(world.cluster, {"a": 0, "b": 8})
        pools = Pools(world.cluster, quota=world.simulated, ledger=self.ledger, terms=self.terms, clock=self.now)
        self.loans, self.pools = LoanActivities(pools), pools
        self.environment = ActivityEnvironment()

    def now(self) -> datetime:
        return self.world.simulated.clock.now()

    async def open(self) -> None:
        await self.world.add_nodes(8, 8)
        await self.world.simulated.lay_out(layout(self.world, "a", "b"))
        await self.world.submit_job(JobRequest(group="a", name="job", side=Side.BORROW))
        await self.world.pause(0.5)
        key = (await self.job()).key
        guarantee = GuaranteeChange(group="b", version=0, in_force=8)
        offer = Offer(lender="b", borrower="a", gpus=8, workload=key, term=1)
        await self.commit("open", capacity=CapacityChange(capacity=8), guarantees=(guarantee,), offers=(offer,))
        await self.move(LineState.OFFERED, LineState.GRANTED)
        await self.pools.write_quotas(POOL)
        await self.world.wait_until(lambda facts: the(facts, "job").placed)

    async def commit(self, key: str, **rows: object) -> Books:
        head = {"key": key, "cluster": self.world.cluster, "pool": POOL, "at": self.now(), "actor": "test"}
        return await self.ledger.commit(Transaction.model_validate(head | rows))

    async def move(self, before: LineState, after: LineState) -> None:
        (line,) = (await self.pools.books(POOL)).lines
        move = Move(line_id=line.line_id, version=line.version, from_state=before, to_state=after)
        await self.commit(f"{after}-{line.version}", moves=(move,))

    async def job(self) -> WorkloadFacts:
        return the(await self.world.backend.observe(POOL), "job")

    async def step(self, *, term: int = 1, recall: int = 1) -> LoanStep:
        key = (await self.job()).key
        return LoanStep(
            loan=loan_id(self.world.cluster, key.uid),
            cluster=self.world.cluster,
            pool=POOL,
            borrower="a",
            workload=key,
            term=term,
            recall=recall,
            reason="a test",
        )

    async def states(self) -> list[LineState]:
        return [line.state for line in self.ledger.rows.values()]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with simulated_world(pool=POOL) as world:
        scene = Scene(world)
        await scene.open()
        yield scene


async def test_a_recall_lowers_the_borrowers_queue_and_evicts_nobody(scene: Scene) -> None:
    recalled = await scene.environment.run(scene.loans.recall_lines, await scene.step())
    assert (recalled.gpus, recalled.lenders, recalled.finished) == (8, ("b",), False)
    await scene.world.pause(2)
    assert await scene.world.quota("a", Side.BORROW) == 0
    assert (await scene.job()).placed
    again = await scene.environment.run(scene.loans.recall_lines, await scene.step())
    assert again == recalled
    assert len(scene.ledger.notes) == 1


async def test_a_stop_that_comes_after_the_release_stops_nobody(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    assert await scene.environment.run(scene.loans.release_lines, ReleaseStep(step=step))
    assert await scene.environment.run(scene.loans.stop, step) is StopResult.REFUSED
    assert (await scene.job()).active


async def test_a_stop_of_an_earlier_term_stops_nobody(scene: Scene) -> None:
    await scene.environment.run(scene.loans.recall_lines, await scene.step())
    assert await scene.environment.run(scene.loans.stop, await scene.step(term=2)) is StopResult.REFUSED
    assert (await scene.job()).active


async def test_a_stop_against_a_workload_that_moved_on_reads_everything_again(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    meddler = Meddler(scene)
    scene.pools.quota = cast("QuotaBackend", meddler)
    assert await scene.environment.run(scene.loans.stop, step) is StopResult.REFUSED
    assert meddler.refused == 1
    assert (await scene.job()).active


async def test_a_repeated_stop_is_one_stop(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    for _ in range(2):
        assert await scene.environment.run(scene.loans.stop, step) is StopResult.STOPPED
    job = await scene.job()
    assert job.mark == Mark(loan=step.loan, term=1, step="stop")


async def test_what_was_stopped_already_is_not_released(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.environment.run(scene.loans.stop, step)
    assert not await scene.environment.run(scene.loans.release_lines, ReleaseStep(step=step))
    assert await scene.states() == [LineState.RECALLED]


async def test_lines_are_returned_only_when_pods_and_quota_are_gone(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.environment.run(scene.loans.stop, step)
    with pytest.raises(ApplicationError, match="still holds") as error:
        await scene.environment.run(scene.loans.await_gone, step)
    assert error.value.category is ApplicationErrorCategory.BENIGN
    await scene.world.pause(3)
    gone = await scene.environment.run(scene.loans.await_gone, step)
    assert (len(gone.lines), gone.finished) == (1, False)
    assert await scene.states() == [LineState.RETURNED]
    await scene.world.pause(1)
    assert await scene.world.quota("b", Side.OWN) == 8
    again = await scene.environment.run(scene.loans.await_gone, step)
    assert again.lines == ()


async def test_a_step_writes_the_quotas_of_whom_it_moved_and_the_controller_all(scene: Scene) -> None:
    guarantee = GuaranteeChange(group="a", version=0, in_force=4)
    await scene.commit("another", capacity=CapacityChange(capacity=12), guarantees=(guarantee,))
    step = await scene.step()
    await scene.pools.write_quotas(POOL, ["b"])
    assert await scene.world.quota("a", Side.OWN) == 0
    assert step.borrower == "a"
    await scene.pools.write_quotas(POOL)
    assert await scene.world.quota("a", Side.OWN) == 4


class Behind:
    """A scheduler that counts what a queue has reserved late, unless it is asked to."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Side]] = []
        self.late = 8
        self._observe = scene.world.simulated.observe
        monkeypatch.setattr(scene.world.simulated, "observe", self.observe)
        monkeypatch.setattr(scene.world.simulated, "recount", self.recount)

    async def observe(self, pool: str) -> PoolFacts:
        facts = await self._observe(pool)
        queues = tuple(
            queue.model_copy(update={"reserved": max(queue.reserved, self.late)})
            if queue.kind is Side.BORROW
            else queue
            for queue in facts.queues
        )
        return facts.model_copy(update={"queues": queues})

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        self.asked.append((group, kind))


async def test_a_count_that_lags_behind_who_left_is_asked_for_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.environment.run(scene.loans.stop, step)
    behind = Behind(scene, monkeypatch)
    monkeypatch.setattr("activities.pools.LINGER", 0.2)
    with pytest.raises(ApplicationError, match="still holds"):
        await scene.environment.run(scene.loans.await_gone, step)
    assert behind.asked == [], "while it is there nobody counts"
    await scene.world.pause(3)
    with pytest.raises(ApplicationError, match="8 GPUs reserved over 0 of quota"):
        await scene.environment.run(scene.loans.await_gone, step)
    assert behind.asked == [("a", Side.BORROW)]
    assert await scene.states() == [LineState.RECALLED]
    behind.late = 0
    gone = await scene.environment.run(scene.loans.await_gone, step)
    assert len(gone.lines) == 1
    assert behind.asked == [("a", Side.BORROW)]


@pytest.mark.parametrize("name", ["recall_lines", "stop"])
async def test_a_freeze_holds_every_step_that_cannot_be_taken_back(scene: Scene, name: str) -> None:
    step = await scene.step()
    if name == "stop":
        await scene.environment.run(scene.loans.recall_lines, step)
    before = await scene.states()
    scene.terms.freeze()
    with pytest.raises(ApplicationError, match="frozen by ops: an incident") as error:
        await scene.environment.run(getattr(scene.loans, name), step)
    assert error.value.category is ApplicationErrorCategory.BENIGN
    assert await scene.states() == before
    assert (await scene.job()).active


async def test_the_fail_safe_holds_a_stop(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.world.set_fail_safe(7)
    with pytest.raises(ApplicationError, match="fail-safe"):
        await scene.environment.run(scene.loans.stop, step)
    assert (await scene.job()).active


async def test_only_what_this_loan_stopped_is_resumed_and_only_onto_an_offer(scene: Scene) -> None:
    step = await scene.step()
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.environment.run(scene.loans.stop, step)
    await scene.world.pause(3)
    await scene.environment.run(scene.loans.await_gone, step)
    back = await scene.step(term=2)
    assert not await scene.environment.run(scene.loans.resume, back)
    offer = Offer(lender="b", borrower="a", gpus=8, workload=step.workload, term=2)
    await scene.commit("again", offers=(offer,))
    other = back.model_copy(update={"loan": "loan/local/other"})
    assert not await scene.environment.run(scene.loans.resume, other)
    assert await scene.environment.run(scene.loans.resume, back)
    assert await scene.environment.run(scene.loans.resume, back)
    job = await scene.job()
    assert job.active
    assert job.mark == Mark(loan=step.loan, term=2, step="resume")


async def test_a_sight_tells_what_an_earlier_run_left(scene: Scene) -> None:
    step = await scene.step()
    running = await scene.environment.run(scene.loans.look, step)
    assert (running.stopped, running.placed, running.term, running.recalls) == (False, True, 1, 0)
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.environment.run(scene.loans.stop, step)
    stopped = await scene.environment.run(scene.loans.look, step)
    assert (stopped.stopped, len(stopped.recalled_lines), stopped.recalls) == (True, 1, 1)


class Meddler:
    """A backend on which, between a stop's reading and its writing, the loan is released and the job touched."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.refused = 0

    async def observe(self, pool: str) -> PoolFacts:
        return await self._scene.world.simulated.observe(pool)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        await self._scene.move(LineState.RECALLED, LineState.GRANTED)
        self.refused += 1
        raise ConflictError("the workload has moved on")
