"""The matrix itself: that nothing is left out of it, and that the small choice covers what it says."""

import json
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.faults import BOOKED_POINTS, SPOTS, FaultPoint, Position, Spot
from gpubank.domain.recall import LoanPhase, ReclaimPhase
from tests.matrix.cells import CELLS, KILLS, Cell, Process, choice, rounds
from tests.matrix.play import Result
from tests.matrix.results import DATA, PAGE, Results

PHASES: Final[dict[FaultPoint, tuple[LoanPhase | ReclaimPhase, ...]]] = {
    FaultPoint.DEMAND: (LoanPhase.ACTIVE,),
    FaultPoint.PLAN: (ReclaimPhase.PLANNING, LoanPhase.ACTIVE),
    FaultPoint.RECALL_ORDER: (ReclaimPhase.RECALLING, LoanPhase.ACTIVE),
    FaultPoint.RECALL: (ReclaimPhase.RECALLING, LoanPhase.ACTIVE),
    FaultPoint.ASK: (ReclaimPhase.RECALLING, LoanPhase.CHECKPOINTING),
    FaultPoint.VERIFY: (ReclaimPhase.RECALLING, LoanPhase.CHECKPOINTING),
    FaultPoint.STOP_ORDER: (ReclaimPhase.STOPPING, LoanPhase.DURABLE),
    FaultPoint.STOP: (ReclaimPhase.STOPPING, LoanPhase.DURABLE),
    FaultPoint.GONE: (ReclaimPhase.STOPPING, LoanPhase.STOPPING),
    FaultPoint.RAISE: (ReclaimPhase.STOPPING, ReclaimPhase.RETURNING, LoanPhase.STOPPING, LoanPhase.PARKED),
    FaultPoint.PLACED: (ReclaimPhase.RETURNING, LoanPhase.PARKED),
    FaultPoint.MET: (ReclaimPhase.SCHEDULED, LoanPhase.PARKED),
    FaultPoint.OFFER: (LoanPhase.PARKED,),
    FaultPoint.RESUME: (LoanPhase.PARKED,),
    FaultPoint.GRANT: (LoanPhase.PARKED,),
}
"""Phases in which Reclaim and Loan are while a step is taken."""


def test_everybody_is_killed_alone_and_with_everybody_else() -> None:
    assert len(Process) == 6
    assert {frozenset(kill) for kill in KILLS} == {frozenset({a, b}) for a in Process for b in Process}
    assert len(KILLS) == len({frozenset(kill) for kill in KILLS}) == 21


def test_every_step_is_cut_before_and_after_it_and_between_books_and_quotas() -> None:
    wanted = {Spot(point, position) for point in FaultPoint for position in (Position.BEFORE, Position.AFTER)}
    assert set(SPOTS) == wanted | {Spot(point, Position.BOOKED) for point in BOOKED_POINTS}


def test_who_dies_alone_does_so_at_every_spot_and_every_pair_at_every_step() -> None:
    assert len(CELLS) == len(set(CELLS)) == 6 * len(SPOTS) + 15 * len(FaultPoint)
    for kill in KILLS:
        spots = [cell.spot for cell in CELLS if cell.kill == kill]
        assert spots == sorted(spots, key=SPOTS.index)
        assert {spot.point for spot in spots} == set(FaultPoint)
        assert len(kill) == 2 or set(spots) == set(SPOTS)
    assert {cell.spot for cell in CELLS if len(cell.kill) == 2} == set(SPOTS)


def test_every_phase_of_a_recall_that_is_no_end_and_no_exception_has_a_spot() -> None:
    ends = {LoanPhase.CLOSED, ReclaimPhase.MET, ReclaimPhase.PARTIAL, ReclaimPhase.CANCELLED}
    between = {LoanPhase.RECALLED}  # one word to the owner long; asking for a checkpoint follows
    exceptions = {LoanPhase.PROTECTED, ReclaimPhase.AWAITING_APPROVAL}
    covered = {phase for phases in PHASES.values() for phase in phases}
    assert covered == {*LoanPhase, *ReclaimPhase} - ends - between - exceptions
    assert set(PHASES) == set(FaultPoint)


def test_the_choice_covers_every_process_and_every_point_with_few_crashes() -> None:
    chosen = choice(20)
    assert len(chosen) == len(set(chosen)) == 20
    assert {process for cell in chosen for process in cell.kill} == set(Process)
    assert {cell.spot.point for cell in chosen} == set(FaultPoint)
    assert {cell.spot.position for cell in chosen} == set(Position)
    assert len(rounds(chosen, 7)) == 3


@given(limit=st.integers(len(FaultPoint), 60))
def test_a_choice_of_any_size_covers_everything(limit: int) -> None:
    chosen = choice(limit)
    assert len(set(chosen)) == len(chosen) <= limit
    assert {process for cell in chosen for process in cell.kill} == set(Process)
    assert {cell.spot.point for cell in chosen} == set(FaultPoint)


def test_a_choice_that_is_too_small_to_cover_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot cover"):
        choice(len(FaultPoint) - 1)


@given(cells=st.sets(st.sampled_from(CELLS)), lanes=st.integers(1, 40))
def test_rounds_play_every_cell_once_and_hold_no_more_than_there_are_lanes(cells: set[Cell], lanes: int) -> None:
    planned = rounds(sorted(cells), lanes)
    played = [cell for each in planned for cell in each.cells]
    assert sorted(played) == sorted(cells)
    assert all(0 < len(each.spots) <= lanes for each in planned)
    assert all(list(each.spots) == sorted(each.spots, key=SPOTS.index) for each in planned)


@given(cell=st.sampled_from(CELLS))
def test_a_cell_is_read_back_as_it_was_written(cell: Cell) -> None:
    assert Cell.of(str(cell)) == cell


def test_the_results_that_are_committed_are_of_every_cell_and_without_a_violation() -> None:
    data = json.loads(DATA.read_text())
    assert sorted(data["cells"]) == sorted(str(cell) for cell in CELLS)
    assert [cell for cell, known in data["cells"].items() if known["violations"]] == []
    assert {known["on"] for known in data["cells"].values()} == set(data["played_on"])
    assert PAGE.read_text() == Results().page()


def test_what_was_played_on_other_code_is_played_again_and_the_page_says_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.matrix.results.ground", lambda: "newer")
    monkeypatch.setattr("tests.matrix.results.versions", lambda: {"kueue": "0.2"})
    results, some = Results(tmp_path / "results.json"), CELLS[:3]
    results.add(Result(cell=cell) for cell in some)
    assert results.missing(some, failed=False) == []
    assert results.missing(CELLS[:4], failed=False) == [CELLS[3]]
    written = json.loads((tmp_path / "results.json").read_text())
    for known in written["cells"].values():
        known["on"] = "older"
    written["played_on"] = {"older": {"kueue": "0.1"}}
    (tmp_path / "results.json").write_text(json.dumps(written))
    again = Results(tmp_path / "results.json")
    assert again.missing(some, failed=False) == list(some)
    again.add([Result(cell=some[0], violations=["it was stopped twice"])])
    assert again.missing(some, failed=True) == [some[0]]
    page = again.page()
    assert "- 2 cells from" in page
    assert "on code `older`: kueue 0.1" in page
    assert "on code `newer`: kueue 0.2" in page
