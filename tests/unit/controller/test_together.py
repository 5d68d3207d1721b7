"""Many calls at a time, and in which order a loop says and writes what it has decided."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpubank.controller.pool_loop import PoolLoop
from gpubank.controller.together import AT_ONCE, side_by_side
from gpubank.decide.step import LenderNeeds, LoanSignal, Step
from gpubank.domain.books import Books
from gpubank.domain.demand import DemandKind
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import CapacityChange, DemandOpening, Transaction

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def test_steps_are_taken_a_few_at_a_time_and_all_of_them() -> None:
    running, most, done = 0, 0, list[int]()

    async def step(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(number)

    await side_by_side(map(step, range(5 * AT_ONCE)))
    assert most == AT_ONCE
    assert sorted(done) == list(range(5 * AT_ONCE))


async def test_after_a_step_that_fails_no_more_are_begun_and_its_error_is_raised() -> None:
    begun: list[int] = []

    async def step(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(0)
        if number == 1:
            raise BackendError("away")

    with pytest.raises(BackendError, match="away"):
        await side_by_side(map(step, range(10 * AT_ONCE)))
    assert len(begun) < 10 * AT_ONCE


class Paper:
    """A scheduler, a ledger and processes that write down what comes, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.refused = ""

    async def observe(self, pool: str) -> PoolFacts:
        return PoolFacts(cluster="local", pool=pool, at=NOW)

    async def write_quota(self, *of: object, **quota: object) -> None:
        raise AssertionError("there is no queue")

    async def books(self, cluster: str, pool: str) -> Books:
        return Books(cluster=cluster, pool=pool)

    async def commit(self, transaction: Transaction) -> Books:
        if transaction.key == self.refused:
            raise ConflictError("somebody was first")
        self.heard.append(transaction.key)
        return await self.books(transaction.cluster, transaction.pool)

    async def commit_all(self, transactions: Sequence[Transaction]) -> Sequence[Books]:
        return [await self.commit(transactions[0])]

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        self.heard.append(f"needs of {lender}")

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        raise AssertionError("nothing is said of loans")


def transaction(key: str, **rows: Any) -> Transaction:
    return Transaction(key=key, cluster="local", pool="h100", at=NOW, actor="test", **rows)


def opening(lender: str) -> DemandOpening:
    name = f"h100/{lender}/limit/-"
    return DemandOpening(demand_id=name, lender=lender, kind=DemandKind.LIMIT, gpus=4, due_at=NOW + MINUTE)


@pytest.fixture
def paper() -> Paper:
    return Paper()


async def turn(paper: Paper, monkeypatch: pytest.MonkeyPatch, decided: Step) -> None:
    steps = iter((decided,))
    monkeypatch.setattr("gpubank.controller.pool_loop.step", lambda *_, **__: next(steps, Step()))
    parts: Any = paper
    terms = PoolTerms(
        cluster="local", pool="h100", resource_name="nvidia.com/gpu", capacity=8, max_grace_period=MINUTE,
        max_termination=MINUTE, max_time_to_return=MINUTE, resume_after=MINUTE, min_run_time=MINUTE,
        fail_safe_after=MINUTE,
    )  # fmt: skip
    loop = PoolLoop(
        "local", "h100", backend=parts, ledger=parts, processes=parts, notifier=parts, terms=lambda: terms,
        now=lambda: NOW,
    )  # fmt: skip
    await loop.turn()


@pytest.fixture
def decided() -> Step:
    later = transaction("later", capacity=CapacityChange(capacity=8))
    return Step(
        transactions=(transaction("demand", openings=[opening("a")]), later),
        needs=(LenderNeeds(lender="a", demand_ids=("h100/a/limit/-",)),),
    )


async def test_a_reclaim_is_told_as_soon_as_its_demand_is_in_the_books(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, decided: Step
) -> None:
    await turn(paper, monkeypatch, decided)
    assert paper.heard == ["demand", "needs of a", "later"]


async def test_a_reclaim_is_not_told_of_a_demand_that_did_not_come_into_the_books(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, decided: Step
) -> None:
    first = transaction("first", capacity=CapacityChange(capacity=8))
    paper.refused = "first"
    await turn(paper, monkeypatch, decided.model_copy(update={"transactions": (first, *decided.transactions)}))
    assert "demand" not in paper.heard


async def test_a_reclaim_of_a_demand_that_was_there_before_is_told_first(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, decided: Step
) -> None:
    await turn(paper, monkeypatch, decided.model_copy(update={"transactions": decided.transactions[1:]}))
    assert paper.heard == ["needs of a", "later"]
