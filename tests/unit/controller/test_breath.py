"""A loop that has something to look at all the time leaves half of the processor to others."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gpubank.controller import pool_loop
from gpubank.controller.pool_loop import LONGEST_BREATH, PoolLoop


class Never:
    """A scheduler of which nothing is heard."""

    async def changes(self, pool: str) -> Any:
        await asyncio.Event().wait()
        yield


@pytest.mark.parametrize(("busy", "rests"), [(0.0, 0.0), (0.075, 0.075), (9.0, LONGEST_BREATH)])
async def test_it_rests_as_long_as_its_turn_was_busy_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, busy: float, rests: float
) -> None:
    spent, rested, turns = 0.0, list[float](), 0
    parts: Any = Never()
    loop = PoolLoop(
        "local", "h100", backend=parts, ledger=parts, processes=parts, notifier=parts, terms=lambda: None,
        now=lambda: datetime.now(UTC),
    )  # fmt: skip

    async def turn() -> timedelta:
        nonlocal spent, turns
        spent, turns = spent + busy, turns + 1
        loop.poke()
        return timedelta(hours=1)

    async def sleep(seconds: float) -> None:
        rested.append(seconds)
        if turns == 3:
            raise asyncio.CancelledError

    async def never(_: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "turn", turn)
    monkeypatch.setattr(pool_loop, "time", SimpleNamespace(monotonic=lambda: 0.0, thread_time=lambda: spent))
    monkeypatch.setattr(pool_loop, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    with pytest.raises(asyncio.CancelledError):
        await loop.run(sleep=never)
    assert rested == [pytest.approx(rests)] * 3
