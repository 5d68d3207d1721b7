"""What a loop has begun and does not wait for: one call a key, failures that it meets, and a word at the end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpubank.controller.beside import Beside
from gpubank.domain.errors import BackendError
from tests.support.waiting import soon


class Loop:
    """A loop that is woken, and calls that end when they are told to."""

    def __init__(self) -> None:
        self.woken = 0
        self.beside = Beside("call", self.wake)
        self.begun: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    def wake(self) -> None:
        self.woken += 1

    def call(self, name: str, error: Exception | None = None) -> Callable[[], Coroutine[Any, Any, None]]:
        self.go[name] = asyncio.Event()

        async def run() -> None:
            self.begun.append(name)
            await self.go[name].wait()
            if error is not None:
                raise error

        return run


@pytest.fixture
def loop() -> Loop:
    return Loop()


async def test_a_call_that_is_quick_is_waited_for_and_wakes_nobody(loop: Loop) -> None:
    assert loop.beside.begin("a", loop.call("a"))
    loop.go["a"].set()
    await loop.beside.settle()
    assert not loop.beside.is_busy("a")
    await soon()
    assert loop.woken == 0


async def test_a_call_that_takes_its_time_goes_on_and_its_end_wakes_the_loop(loop: Loop) -> None:
    loop.beside.begin("a", loop.call("a"))
    await loop.beside.settle(0.01)
    assert loop.beside.is_busy("a")
    assert loop.woken == 0
    loop.go["a"].set()
    await soon()
    assert loop.woken == 1
    assert not loop.beside.is_busy("a")


async def test_a_key_has_one_call_at_a_time_and_who_gave_way_is_called_when_it_is_over(loop: Loop) -> None:
    loop.beside.begin("a", loop.call("first"))
    assert not loop.beside.begin("a", loop.call("second"))
    await soon()
    loop.go["first"].set()
    await loop.beside.settle()
    assert (loop.begun, loop.woken) == (["first"], 1)
    assert loop.beside.begin("a", loop.call("second"))
    loop.go["second"].set()
    await loop.beside.settle()
    assert (loop.begun, loop.woken) == (["first", "second"], 1)


async def test_a_call_that_is_not_waited_for_any_more_holds_no_other_up(loop: Loop) -> None:
    loop.beside.begin("a", loop.call("a"))
    await loop.beside.settle(0.01)
    async with asyncio.timeout(1):
        await loop.beside.settle(100)


async def test_what_a_call_raises_is_met_once_whenever_it_comes(loop: Loop) -> None:
    loop.beside.begin("a", loop.call("a", BackendError("away")))
    loop.go["a"].set()
    with pytest.raises(BackendError, match="away"):
        await loop.beside.settle()
    await loop.beside.settle()
    loop.beside.begin("b", loop.call("b", BackendError("still away")))
    await loop.beside.settle(0.01)
    loop.go["b"].set()
    await soon()
    assert loop.woken == 1
    with pytest.raises(BackendError, match="still away"):
        await loop.beside.settle(0)


async def test_no_more_than_so_many_go_on_at_once(loop: Loop) -> None:
    loop.beside = Beside("call", loop.wake, at_once=2)
    for name in "abc":
        loop.beside.begin(name, loop.call(name))
    await soon()
    assert loop.begun == ["a", "b"]
    loop.go["a"].set()
    await soon()
    assert loop.begun == ["a", "b", "c"]
    await loop.beside.stop()


async def test_what_goes_on_ends_with_the_loop(loop: Loop) -> None:
    loop.beside.begin("a", loop.call("a"))
    await soon()
    await loop.beside.stop()
    assert not loop.beside.is_busy("a")
