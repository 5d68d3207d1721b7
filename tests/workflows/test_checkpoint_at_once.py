"""A request that sees the checkpoint verified at once, where that takes no more than a moment."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities import checkpoints
from activities.checkpoints import CheckpointActivities
from activities.pools import Pools
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.facts import PodFacts, PoolFacts, WorkloadFacts
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.steps import CheckpointOutcome, CheckpointStep, LoanStep
from tests.fakes.bank import HOOK
from tests.fakes.trainer import Mood, Trainers

KEY = WorkloadKey(uid="u", namespace="team", name="train")
AGES_AGO = datetime(2026, 11, 2, 9, tzinfo=UTC)


class Sight:
    """A pool in which one job with a hook runs."""

    async def observe(self, pool: str) -> PoolFacts:
        pod = PodFacts(uid="u-0", name="train-0", gpus=8, node="n", running=True)
        running = WorkloadFacts(
            key=KEY,
            group="search",
            kind=Side.BORROW,
            gpus=8,
            created_at=AGES_AGO,
            waiting_since=AGES_AGO,
            reserved=True,
            contract=WorkloadContract.of({}, HOOK),
            pod_facts=(pod,),
        )
        return PoolFacts(cluster="c", pool=pool, at=datetime.now(UTC), workloads=(running,))


async def ask(trainers: Trainers, *, moment: float = 30.0, hashes: bool = False) -> CheckpointOutcome:
    """Ask once; a moment is long where nothing but what is waited for may end it."""
    nobody: Any = None
    pools = Pools("c", quota=cast(Any, Sight()), ledger=nobody, terms=nobody)
    policy = AttestPolicy(check_hashes=hashes)
    activities = CheckpointActivities(pools, hook=trainers, storage=trainers, policy=policy, moment=moment)
    loan = LoanStep(loan="loan/c/u", cluster="c", pool="h100", borrower="search", workload=KEY, term=1, recall=1)
    deadline = datetime.now(UTC) + timedelta(minutes=10)
    step = CheckpointStep(step=loan, request_id="r/1", epoch=1, deadline=deadline)
    found: CheckpointOutcome = await ActivityEnvironment().run(activities.request, step)
    return found


async def test_what_is_saved_within_a_moment_is_verified_with_the_request() -> None:
    found = await ask(Trainers())
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.checkpoint.request_id, found.is_last) == (101, "r/1", True)


@pytest.mark.parametrize("mood", [Mood.SILENT, Mood.LIES])
async def test_what_takes_longer_or_is_not_there_yet_is_left_to_whoever_awaits_it(mood: Mood) -> None:
    trainers = Trainers()
    trainers.mood = mood
    found = await ask(trainers, moment=0.2)
    assert not found.is_last
    assert found.requested_at is not None


@pytest.mark.parametrize(("small", "at_once"), [(checkpoints.SMALL, True), (1, False)])
async def test_hashes_of_large_checkpoints_are_no_matter_of_a_moment(
    monkeypatch: pytest.MonkeyPatch, small: int, at_once: bool
) -> None:
    monkeypatch.setattr(checkpoints, "SMALL", small)
    found = await ask(Trainers(), hashes=True)
    assert found.is_last is at_once
    assert ("NotHashed" in found.failure) is at_once, "what is judged is found to be without hashes"


async def test_a_trainer_that_cannot_save_says_so_at_once() -> None:
    trainers = Trainers()
    trainers.mood = Mood.FAILS
    found = await ask(trainers)
    assert "the disk is full" in found.failure
    assert found.is_last
