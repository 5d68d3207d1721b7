"""Loans and Reclaims are told once, one thing after the other, and again after growing pauses."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from gpubank.controller.words import MAX_PAUSE, NEEDS_PAUSE, Words
from gpubank.decide.step import LenderNeeds, LoanSignal, SignalKind
from gpubank.domain.errors import BackendError
from gpubank.domain.loan import WorkloadKey
from tests.support.waiting import soon

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
PAUSE = timedelta(seconds=15)


class Slow:
    """Processes that hear what they are told when they are let."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.begun: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.away = False

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        await self._hear(f"{signal.workload.uid} {signal.kind}")

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        await self._hear(f"{lender} {','.join(demands)}")

    async def _hear(self, what: str) -> None:
        self.begun.append(what)
        await self.go.wait()
        if self.away:
            raise BackendError("Temporal is away")
        self.heard.append(what)


class Told:
    """Words of a pool, and whether its loop was woken."""

    def __init__(self) -> None:
        self.processes = Slow()
        self.woken = asyncio.Event()
        self.words = Words("local", "h100", self.processes, first_pause=PAUSE, wake=self.woken.set)

    @property
    def heard(self) -> list[str]:
        heard, self.processes.heard = self.processes.heard, []
        return heard


@pytest.fixture
def told() -> Told:
    return Told()


def signal(uid: str, kind: SignalKind = SignalKind.GRANTED, term: int = 1) -> LoanSignal:
    key = WorkloadKey(uid=uid, namespace="team", name=uid, job=f"Job/{uid}")
    return LoanSignal(workload=key, borrower="a", gpus=8, kind=kind, term=term, lenders=("b",), at=NOW)


def needs(lender: str, *demands: str) -> LenderNeeds:
    return LenderNeeds(lender=lender, demand_ids=demands)


async def test_everybody_is_told_once(told: Told) -> None:
    for _ in range(3):
        await told.words.tell([signal("u")], [needs("b", "d")], NOW)
    assert sorted(told.heard) == ["b d", "u granted"]


async def test_what_is_new_is_told_at_once(told: Told) -> None:
    await told.words.tell([], [needs("b", "d")], NOW)
    await told.words.tell([], [needs("b", "d", "e")], NOW)
    await told.words.tell([], [needs("b", "e")], NOW)
    assert told.heard == ["b d", "b d,e", "b e"]


@pytest.mark.parametrize(
    ("message", "longest"),
    [pytest.param("signal", MAX_PAUSE, id="a-loan"), pytest.param("needs", NEEDS_PAUSE, id="a-demand")],
)
async def test_it_is_said_again_after_pauses_that_double_up_to_a_limit(
    told: Told, message: str, longest: timedelta
) -> None:
    signals, wanted = ([signal("u")], []) if message == "signal" else ([], [needs("b", "d")])
    now, pause, pauses = NOW, PAUSE, list[timedelta]()
    while not pauses or pauses[-1] < longest:
        await told.words.tell(signals, wanted, now)
        assert len(told.heard) == 1
        await told.words.tell(signals, wanted, now + pause - timedelta(microseconds=1))
        assert told.heard == []
        pauses.append(pause)
        now, pause = now + pause, min(2 * pause, longest)
    assert pauses[:2] == [PAUSE, 2 * PAUSE]


async def test_what_is_no_longer_so_is_forgotten_and_new_when_it_comes_again(told: Told) -> None:
    for signals in ([signal("u")], [], [signal("u")]):
        await told.words.tell(signals, [], NOW)
    assert told.heard == ["u granted", "u granted"]


async def test_a_word_that_was_lost_is_said_again_in_the_next_turn(told: Told) -> None:
    told.processes.away = True
    await told.words.tell([signal("u")], [], NOW)
    told.processes.away = False
    await told.words.tell([signal("u")], [], NOW)
    assert told.heard == ["u granted"]


async def test_a_server_that_takes_its_time_holds_no_turn_up_and_hears_nothing_twice(told: Told) -> None:
    told.processes.go.clear()
    for _ in range(2):
        async with asyncio.timeout(1):
            await told.words.tell([signal("u")], [needs("b", "d")], NOW)
    assert sorted(told.processes.begun) == ["b d", "u granted"]
    told.processes.go.set()
    await soon()
    await told.words.tell([signal("u")], [needs("b", "d")], NOW)
    assert sorted(told.heard) == ["b d", "u granted"]
    assert told.woken.is_set()


async def test_one_loan_hears_one_thing_after_the_other_and_nothing_is_left_out(told: Told) -> None:
    told.processes.go.clear()
    both = [signal("u"), signal("u", SignalKind.ENDED)]
    await told.words.tell(both, [], NOW)
    assert told.processes.begun == ["u granted"]
    told.processes.go.set()
    await told.woken.wait()
    await told.words.tell(both, [], NOW)
    assert told.heard == ["u granted", "u ended"]


async def test_a_list_that_changes_while_the_last_one_is_being_told_is_told_next(told: Told) -> None:
    told.processes.go.clear()
    told.words.tell_needs([needs("b", "d")], NOW)
    await told.words.tell([], [needs("b", "d", "e")], NOW)
    assert told.processes.begun == ["b d"]
    told.processes.go.set()
    await told.woken.wait()
    await told.words.tell([], [needs("b", "d", "e")], NOW)
    assert told.heard == ["b d", "b d,e"]


async def test_nobody_is_told_after_the_end(told: Told) -> None:
    told.processes.go.clear()
    await told.words.tell([signal("u")], [], NOW)
    await told.words.stop()
    told.processes.go.set()
    await asyncio.sleep(0)
    assert told.heard == []
