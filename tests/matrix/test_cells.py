"""The matrix itself: that nothing is left out of it, and that the small choice covers what it says."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.faults import BOOKED_POINTS, SPOTS, FaultPoint, Position, Spot
from gpubank.domain.recall import LoanPhase, ReclaimPhase
from tests.matrix.cells import CELLS, KILLS, Cell, Process, choice, rounds

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
