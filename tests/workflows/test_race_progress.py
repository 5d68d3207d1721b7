"""A borrower that is recalled ten times in a row, by workflows: it has its minRunTime after every comeback."""

from datetime import timedelta
from pathlib import Path

import pytest

from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase
from tests.fakes.branches import ManyBanks
from tests.fakes.trainer import Mood
from tests.fakes.witness import Witness
from tests.workflows.races import Race

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

RECALLS = 10
STAY = timedelta(seconds=2)


async def test_a_borrower_that_is_recalled_ten_times_in_a_row_has_its_min_run_time_after_every_comeback(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    race = await Race.open(banks, min_run_time=STAY)
    bank, witness = race.bank, Witness(race.bank, monkeypatch)
    train = await race.trains("train", mood=Mood.SAVES)
    for number in range(1, RECALLS + 1):
        # Its owner wants all of the pool back at once, every time: there is nobody else to stop.
        await race.wants(f"serve{number}", gpus=16)
        await race.served(f"serve{number}")
        parked = await bank.loan_in(train, LoanPhase.PARKED)
        assert (parked.recalls, parked.term) == (number, number)
        await bank.world.finish_job("serving", race.job(f"serve{number}"))
        back = await bank.placed(race.job("train"))
        assert back.mark is not None
        assert (back.key, back.mark.step, back.mark.term) == (train.key, "resume", number + 1)
    assert [stop.term for stop in witness.stops] == list(range(1, RECALLS + 1))
    assert all(stop.saved for stop in witness.stops), witness.stops
    stays = [stop.ran for stop in witness.stops]
    assert stays[0] < STAY.total_seconds(), "it borrowed for the first time: nothing protects that"
    assert all(ran >= STAY.total_seconds() for ran in stays[1:]), stays
    state = await bank.loan_in(train, LoanPhase.ACTIVE)
    assert [term.term for term in state.history] == list(range(1, RECALLS + 2))
    steps = [term.checkpoint.step for term in state.history if term.checkpoint is not None]
    assert steps == sorted(set(steps)), "each checkpoint is a newer one"
    assert len(steps) == RECALLS
    await witness.at_rest(tmp_path)
    assert {line.state for line in await race.lines(train)} == {LineState.GRANTED}
