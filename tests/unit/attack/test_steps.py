"""A Loan's steps where somebody else of the group was admitted on what it was about to give back."""

from collections.abc import AsyncIterator

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.loan import LineState
from tests.contract.simulated_world import simulated_world
from tests.contract.world import JobRequest, the
from tests.fakes.bank import POOL
from tests.workflows.test_loan_steps import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with simulated_world(pool=POOL) as world:
        scene = Scene(world)
        await scene.open()
        yield scene


async def test_a_recalled_line_that_somebody_was_admitted_on_is_granted_again(scene: Scene) -> None:
    """The job ends while its queue is being lowered, and the next of its group is admitted on the old quota."""
    step = await scene.step()
    await scene.world.submit_job(JobRequest(group="a", name="next", side=Side.BORROW))
    await scene.move(LineState.GRANTED, LineState.RECALLED)
    await scene.world.finish_job("a", "job")
    await scene.world.wait_until(lambda facts: the(facts, "next").placed)
    await scene.environment.run(scene.loans.recall_lines, step)
    await scene.world.pause(2)
    gone = await scene.environment.run(scene.loans.await_gone, step)
    assert gone.finished
    assert await scene.states() == [LineState.GRANTED]
    (line,) = (await scene.pools.books(POOL)).lines
    assert line.demand is None
    assert await scene.world.quota("a", Side.BORROW) == 8
