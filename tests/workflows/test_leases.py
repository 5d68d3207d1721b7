"""A lease that comes at the last moment: the stop asks about it once more, and nobody is spared for good by it."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from activities.pools import Pools
from gpubank.domain.books import Books
from gpubank.domain.facts import PoolFacts
from gpubank.domain.recall import LoanOutcome, LoanPhase, ReclaimPhase
from gpubank.domain.steps import StopResult
from gpubank.domain.terms import LeaseTerms
from tests.contract.simulated_world import simulated_world
from tests.fakes.bank import POOL, FakeBank
from tests.workflows.test_loan_steps import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with simulated_world(pool=POOL) as world:
        scene = Scene(world)
        await scene.open()
        lease = LeaseTerms(
            name="team-a/release",
            group="a",
            namespace="team-a",
            workload_kind="Job",
            workload_name="job",
            until=scene.now() + timedelta(minutes=10),
        )
        scene.terms.set(leases=(lease,))
        await scene.environment.run(scene.loans.recall_lines, await scene.step())
        yield scene


async def test_what_a_lease_protects_now_is_not_stopped(scene: Scene) -> None:
    assert await scene.environment.run(scene.loans.stop, await scene.step()) is StopResult.LEASED
    assert (await scene.job()).active


@pytest.mark.parametrize("way", ["ended", "revoked"])
async def test_a_lease_that_is_over_keeps_nobody_from_being_stopped(scene: Scene, way: str) -> None:
    step = await scene.step()
    if way == "ended":
        await scene.world.pause(601)
    else:
        scene.terms.set(leases=())
    assert await scene.environment.run(scene.loans.stop, step) is StopResult.STOPPED
    assert not (await scene.job()).active


async def test_a_person_returns_a_leased_loan_all_the_same(scene: Scene) -> None:
    step = (await scene.step()).model_copy(update={"asked": True})
    assert await scene.environment.run(scene.loans.stop, step) is StopResult.STOPPED


async def test_a_victim_with_a_last_minute_lease_runs_on_and_is_asked_again_once_that_is_gone(
    bank: FakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def leased_at_first(self: Pools, facts: PoolFacts, books: Books, uid: str) -> bool:
        asked.append(uid)
        return len(asked) == 1

    monkeypatch.setattr(Pools, "is_leased", leased_at_first)
    batch = await bank.borrow("research", "batch", 16, pods=2)
    await bank.own("serving", "serve")
    await bank.placed("serve")
    assert asked == [batch.key.uid] * 2
    assert "LoanLeased" in bank.reasons("batch")
    parked = await bank.loan_in(batch, LoanPhase.PARKED)
    assert parked.recalls == 2
    reclaim = await bank.reclaim_where("serving", lambda state: state.phase is ReclaimPhase.MET)
    (demand,) = reclaim.demands
    assert demand.spared == (), "it has refused nothing"
    assert [victim.answer for victim in demand.victims] == [LoanOutcome.RETURNED]
