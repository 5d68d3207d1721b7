"""Who waits is told why: once, with the latest words, and nobody else waits for that."""

import asyncio
from typing import Any

import pytest

from gpubank.controller.notes import Notes
from gpubank.decide.waiting import WaitingNote
from gpubank.domain.errors import BackendError
from gpubank.domain.loan import WorkloadKey
from tests.support.waiting import soon


class Slow:
    """A notifier that tells one after the other when it is let."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.go = asyncio.Event()
        self.away = False

    async def notify(self, *, workload: WorkloadKey, message: str, **_: Any) -> None:
        await self.go.wait()
        if self.away:
            raise BackendError("the API server is away")
        self.told.append((workload.uid, message))


def note(uid: str, message: str) -> WaitingNote:
    return WaitingNote(
        workload=WorkloadKey(uid=uid, namespace="team", name=uid, job=f"Job/{uid}"), reason="Waits", message=message
    )


def everybody(_: str) -> bool:
    return True


@pytest.fixture
def notifier() -> Slow:
    return Slow()


@pytest.fixture
def notes(notifier: Slow) -> Notes:
    return Notes("h100", notifier)


async def test_everybody_is_told_once(notes: Notes, notifier: Slow) -> None:
    notifier.go.set()
    for _ in range(3):
        notes.tell([note("a", "8 short"), note("b", "4 short")], everybody)
        await soon()
    assert sorted(notifier.told) == [("a", "8 short"), ("b", "4 short")]


async def test_what_is_being_told_is_not_told_a_second_time(notes: Notes, notifier: Slow) -> None:
    for _ in range(3):
        notes.tell([note("a", "8 short")], everybody)
        await soon()
    notifier.go.set()
    await soon()
    assert notifier.told == [("a", "8 short")]


async def test_other_words_are_told_anew(notes: Notes, notifier: Slow) -> None:
    notifier.go.set()
    for message in ("8 short", "4 short"):
        notes.tell([note("a", message)], everybody)
        await soon()
    assert notifier.told == [("a", "8 short"), ("a", "4 short")]


async def test_what_is_out_of_date_before_its_turn_comes_is_not_told(notes: Notes, notifier: Slow) -> None:
    many = [note(f"w-{number}", "8 short") for number in range(30)]
    notes.tell(many, everybody)
    await soon()
    notes.tell([note("w-29", "none short"), note("late", "8 short")], everybody)
    notifier.go.set()
    await soon()
    told = dict(notifier.told)
    assert told["w-29"] == "none short"
    assert told["late"] == "8 short"
    assert "w-20" not in told


async def test_who_could_not_be_told_is_told_later(notes: Notes, notifier: Slow) -> None:
    notifier.go.set()
    notifier.away = True
    notes.tell([note("a", "8 short")], everybody)
    await soon()
    notifier.away = False
    notes.tell([note("a", "8 short")], everybody)
    await soon()
    assert notifier.told == [("a", "8 short")]


async def test_who_comes_again_after_it_was_gone_is_told_again(notes: Notes, notifier: Slow) -> None:
    notifier.go.set()
    notes.tell([note("a", "8 short")], everybody)
    await soon()
    notes.tell([], lambda uid: uid != "a")
    notes.tell([note("a", "8 short")], everybody)
    await soon()
    assert notifier.told == [("a", "8 short")] * 2


async def test_nobody_is_told_after_the_end(notes: Notes, notifier: Slow) -> None:
    await notes.stop()
    notes.tell([note("a", "8 short")], everybody)
    await soon()
    await notes.stop()
    notifier.go.set()
    await soon()
    assert notifier.told == []
