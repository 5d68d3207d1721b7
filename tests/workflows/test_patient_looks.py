"""How a step waits for what it needs: looks at what concerns it, and seldom where a look costs much."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

import activities.pools
from activities.failures import not_yet
from activities.pools import FOLD, LONGEST_FOLD, Pools, fold_after
from activities.reclaims import ReclaimActivities
from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import LineState, WorkloadKey
from gpubank.domain.steps import DemandStep, PlacedOutcome
from gpubank.domain.transaction import DemandOpening, Move
from tests.contract.simulated_world import simulated_world
from tests.fakes.bank import POOL
from tests.workflows.test_loan_steps import Scene

WORKLOAD = WorkloadKey(uid="u", namespace="team-a", name="job-u", job="Job/u")


@pytest.mark.parametrize(
    ("took", "lingering", "fold"),
    [
        pytest.param(0.001, 1, FOLD, id="small-pool"),
        pytest.param(0.1, 1, 0.1, id="one-in-a-large-pool"),
        pytest.param(0.1, 6, 0.6, id="six-in-a-large-pool"),
        pytest.param(0.1, 32, LONGEST_FOLD, id="never-longer"),
    ],
)
def test_whoever_lingers_leaves_time_to_others(took: float, lingering: int, fold: float) -> None:
    assert fold_after(took, lingering) == pytest.approx(fold)


class Restless:
    """A scheduler where something changes all the time."""

    def __init__(self) -> None:
        self.asked: list[WorkloadKey | None] = []

    async def changes(self, pool: str, about: WorkloadKey | None = None) -> AsyncGenerator[None, None]:
        self.asked.append(about)
        while True:
            yield


@pytest.mark.parametrize("about", [WORKLOAD, None])
async def test_a_patient_look_says_what_it_is_about_and_ends_with_what_it_finds(about: WorkloadKey | None) -> None:
    restless, looks = Restless(), 0
    parts: Any = restless
    pools = Pools("local", quota=parts, ledger=parts, terms=parts)

    async def look() -> int:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise not_yet("it has not come")
        return looks

    assert await pools.patiently(POOL, look, about=about) == 4
    assert restless.asked == [about]


async def test_a_look_that_waits_for_an_answer_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    restless, counted, answer = Restless(), list[float](), 0.5
    parts: Any = restless
    pools = Pools("local", quota=parts, ledger=parts, terms=parts)

    def fold(took: float, lingering: int) -> float:
        counted.append(took)
        return FOLD

    monkeypatch.setattr(activities.pools, "fold_after", fold)

    async def look() -> int:
        if len(counted) > 1:
            return len(counted)
        await asyncio.sleep(answer)
        raise not_yet("it has not come")

    assert await pools.patiently(POOL, look) == 2
    assert max(counted) < answer / 2


class Looking(Pools):
    """Looks once, and remembers who waits for what; counts looks at the whole pool."""

    def __init__(self, pools: Pools) -> None:
        super().__init__(pools.cluster, quota=pools.quota, ledger=pools.ledger, terms=pools._terms, clock=pools.now)
        self.about: list[WorkloadKey | None] = []
        self.times = 1

    async def patiently(
        self, pool: str, look: Callable[[], Awaitable[Any]], *, about: WorkloadKey | None = None
    ) -> Any:
        self.about.append(about)
        for _ in range(self.times - 1):
            with pytest.raises(ApplicationError):
                await look()
        return await look()


async def test_a_set_that_is_on_its_way_is_waited_for_by_the_books_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated_world(pool=POOL) as world:
        scene = Scene(world)
        await scene.open()
        demand = f"{POOL}/b/Workload/{WORKLOAD.uid}"
        opening = DemandOpening(
            demand_id=demand, lender="b", kind=DemandKind.WORKLOAD, gpus=8, workload=WORKLOAD, due_at=scene.now()
        )
        await scene.commit("demand", openings=(opening,))
        (line,) = (await scene.pools.books(POOL)).lines
        recalled = Move(
            line_id=line.line_id,
            version=line.version,
            from_state=LineState.GRANTED,
            to_state=LineState.RECALLED,
            demand=demand,
        )
        await scene.commit("recall", moves=(recalled,))
        looking, observed = Looking(scene.pools), list[str]()
        observe = world.simulated.observe

        async def counted(pool: str) -> PoolFacts:
            observed.append(pool)
            return await observe(pool)

        monkeypatch.setattr(world.simulated, "observe", counted)
        looking.times = 5
        step = DemandStep(reclaim="reclaim/x", cluster=world.cluster, pool=POOL, lender="b", demand=demand)
        reclaims, environment = ReclaimActivities(looking), ActivityEnvironment()
        with pytest.raises(ApplicationError, match="1 pledged lines are on their way"):
            await environment.run(reclaims.raise_queue, step)
        first = len(observed)
        assert first <= 2, "once to look, and once to write quotas that a dead worker may have left"
        looking.times = 1
        placed = await environment.run(reclaims.await_placed, step)
        assert placed.outcome is PlacedOutcome.SLIPPED
        assert looking.about == [None, WORKLOAD]
