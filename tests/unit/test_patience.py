"""What waits for a change of a pool: it never keeps others from working, and ends when it is told to."""

import asyncio

import pytest

from activities.pools import _within


async def at_once() -> None:
    """Something that is there already."""


async def test_a_change_that_is_there_already_lets_others_work_first() -> None:
    seen: list[str] = []
    asyncio.get_running_loop().call_soon(seen.append, "another")
    assert await _within(0, at_once())
    assert seen == ["another"]


async def test_nothing_in_time_is_no_change_and_is_not_waited_for_any_longer() -> None:
    waited = asyncio.Event()
    assert not await _within(0, waited.wait())  # type: ignore[arg-type]


async def test_the_end_of_all_changes_is_no_change() -> None:
    async def ended() -> None:
        raise StopAsyncIteration

    assert not await _within(1, ended())


async def test_what_goes_wrong_while_waiting_is_not_hidden() -> None:
    async def broken() -> None:
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        await _within(1, broken())


async def test_a_cancellation_that_comes_with_the_change_is_not_swallowed() -> None:
    changed = asyncio.Event()
    task = asyncio.create_task(_within(10, changed.wait()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    changed.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
