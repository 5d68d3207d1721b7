"""Quotas are written beside the loop: lowering first, the latest books last, and nothing twice."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gpubank.controller.quotas import Quotas
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import PoolFacts, QueueFacts
from gpubank.domain.transaction import CapacityChange, GuaranteeChange, Transaction
from tests.support.waiting import soon

POOL = "h100"
NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)


class Scheduler:
    """Own queues of two groups, written when they are let."""

    def __init__(self) -> None:
        self.nominal = {"a": 0, "b": 0}
        self.stamp = {"a": -1, "b": -1}
        self.begun: list[tuple[str, int]] = []
        self.held: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}

    async def observe(self, pool: str) -> PoolFacts:
        queues = tuple(
            QueueFacts(group=group, kind=Side.OWN, name=f"{group}.own", nominal=nominal, stamp=self.stamp[group])
            for group, nominal in self.nominal.items()
        )
        return PoolFacts(cluster="local", pool=pool, at=NOW, queues=queues)

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        self.begun.append((group, nominal))
        if group in self.held:
            await self.held[group].wait()
        if error := self.errors.pop(group, None):
            raise error
        if revision < self.stamp[group]:
            raise ConflictError("a later one stands")
        self.nominal[group], self.stamp[group] = nominal, revision

    def hold(self, group: str) -> None:
        self.held[group] = asyncio.Event()

    def let(self, group: str) -> None:
        self.held.pop(group).set()


class Bench:
    """A pool of 16 GPUs whose guarantees move, and what writes its quotas."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.woken = asyncio.Event()
        backend: Any = self.scheduler
        self.quotas = Quotas(POOL, backend, self.woken.set)
        self.books = Books(cluster="local", pool=POOL)

    def guarantee(self, **gpus: int) -> Books:
        """Set guarantees, as if they had been settled long ago."""
        changes = tuple(
            GuaranteeChange(group=group, version=self.books.guarantee(group).version, in_force=count)
            for group, count in gpus.items()
        )
        capacity = CapacityChange(capacity=16) if not self.books.capacity else None
        transaction = Transaction(
            key=f"{self.books.revision}", cluster="local", pool=POOL, at=NOW, actor="test",
            capacity=capacity, guarantees=changes,
        )  # fmt: skip
        self.books = self.books.applied(transaction).books
        return self.books

    async def want(self, books: Books) -> int:
        return await self.quotas.want(books, await self.scheduler.observe(POOL))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_what_is_to_be_raised_is_begun_when_all_that_is_lowered_is(bench: Bench) -> None:
    await bench.want(bench.guarantee(a=16))
    bench.scheduler.begun.clear()
    bench.scheduler.hold("a")
    assert await bench.want(bench.guarantee(a=8, b=8)) == 0
    assert bench.scheduler.begun == [("a", 8)]
    bench.scheduler.let("a")
    await soon()
    assert bench.scheduler.begun == [("a", 8), ("b", 8)]
    assert bench.woken.is_set()


async def test_nothing_is_raised_after_a_lowering_that_failed(bench: Bench) -> None:
    await bench.want(bench.guarantee(a=16))
    bench.scheduler.errors["a"] = BackendError("away")
    with pytest.raises(BackendError, match="away"):
        await bench.want(bench.guarantee(a=8, b=8))
    assert bench.scheduler.nominal == {"a": 16, "b": 0}
    bench.scheduler.errors["a"] = ConflictError("somebody was first")
    await bench.want(bench.books)
    assert bench.scheduler.nominal == {"a": 16, "b": 0}
    assert await bench.want(bench.books) == 2
    assert bench.scheduler.nominal == {"a": 8, "b": 8}
    assert await bench.want(bench.books) == 0


async def test_a_slow_write_holds_no_look_up_and_the_latest_books_are_written_after_it(bench: Bench) -> None:
    await bench.want(bench.guarantee(a=16))
    bench.scheduler.begun.clear()
    bench.scheduler.hold("a")
    for count in (12, 10, 8):
        async with asyncio.timeout(1):
            assert await bench.want(bench.guarantee(a=count)) == 0
    bench.scheduler.let("a")
    await soon()
    assert bench.scheduler.begun == [("a", 12), ("a", 8)], "what nobody wants any more is not written"
    assert bench.scheduler.stamp["a"] == bench.books.revision


async def test_a_slow_raise_holds_no_lowering_up_and_is_begun_once(bench: Bench) -> None:
    await bench.want(bench.guarantee(b=8))
    bench.scheduler.begun.clear()
    bench.scheduler.hold("a")
    await bench.want(bench.guarantee(a=8))
    await bench.want(bench.guarantee(b=4))
    assert bench.scheduler.begun == [("a", 8), ("b", 4)]
    assert bench.scheduler.nominal == {"a": 0, "b": 4}
    bench.woken.clear()
    bench.scheduler.let("a")
    await soon()
    assert bench.scheduler.nominal == {"a": 8, "b": 4}
    assert bench.woken.is_set()


async def test_a_raise_that_comes_after_a_lower_quota_was_written_is_refused(bench: Bench) -> None:
    await bench.want(bench.guarantee(a=0, b=0))
    bench.scheduler.hold("a")
    await bench.want(bench.guarantee(a=8))
    bench.scheduler.stamp["a"] = bench.books.revision + 1  # another process has written what came later
    bench.scheduler.let("a")
    await soon()
    assert bench.scheduler.nominal["a"] == 0
    await bench.want(bench.books)


async def test_a_raise_that_fails_is_met_by_the_next_look(bench: Bench) -> None:
    bench.scheduler.hold("a")
    bench.scheduler.errors["a"] = BackendError("away")
    await bench.want(bench.guarantee(a=8))
    bench.scheduler.let("a")
    await soon()
    with pytest.raises(BackendError, match="away"):
        await bench.want(bench.books)
    await bench.want(bench.books)
    assert bench.scheduler.nominal["a"] == 8


async def test_nothing_is_written_after_the_end(bench: Bench) -> None:
    bench.scheduler.hold("a")
    await bench.want(bench.guarantee(a=8))
    await bench.quotas.stop()
    bench.scheduler.let("a")
    await soon()
    assert bench.scheduler.nominal["a"] == 0
