"""A scheduler that is down or busy: what it has not taken note of is not taken back before it could."""

from datetime import timedelta

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.loan import LineState
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms

STALE = timedelta(seconds=30)
LONGEST = timedelta(minutes=2)
MOMENT = timedelta(milliseconds=1)


def offered() -> Model:
    """A's x is offered 8 GPUs of b, whose lower quota the scheduler has not taken note of."""
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", Side.BORROW, 8)
    model.step()
    model.write()
    return model


def granted() -> Model:
    """A's x is granted 8 GPUs of b, and its quota is not written."""
    model = offered()
    model.fence()
    model.step()
    assert states(model) == [LineState.GRANTED]
    return model


def states(model: Model) -> list[LineState]:
    return [line.state for line in model.books.lines_of("x")]


def reasons(model: Model) -> set[str]:
    """Why the last step moved lines."""
    return {move.reason for transaction in model.last.transactions for move in transaction.moves}


def test_an_offer_waits_until_its_lenders_queue_is_fenced() -> None:
    model = offered()
    model.now += STALE
    model.step()
    assert states(model) == [LineState.OFFERED]
    assert model.last.wake_at is not None
    model.now += LONGEST - STALE - MOMENT
    model.step()
    assert states(model) == [LineState.OFFERED]
    model.now += MOMENT
    model.step()
    assert (reasons(model), model.last.lapsed) == ({"it could not be fenced in time"}, ("x",))


@pytest.mark.parametrize("after", [STALE, LONGEST])
def test_an_offer_that_is_fenced_late_is_granted_all_the_same(after: timedelta) -> None:
    model = offered()
    model.now += after
    model.fence()
    model.step()
    assert states(model) == [LineState.GRANTED]


@pytest.mark.parametrize("written", [False, True], ids=["its-quota-is-not-written", "nobody-has-taken-note-of-it"])
def test_a_granted_line_waits_until_the_scheduler_knows_of_its_quota(written: bool) -> None:
    model = granted()
    if written:
        model.write()
    model.now += LONGEST - MOMENT
    model.step()
    assert states(model) == [LineState.GRANTED]
    model.now += MOMENT
    model.step()
    assert (states(model), model.last.lapsed) == ([LineState.CLOSING], ("x",))


def test_a_granted_line_closes_once_the_scheduler_knows_of_its_quota_and_its_time_is_over() -> None:
    model = granted()
    model.write()
    model.now += STALE
    model.step()
    assert states(model) == [LineState.GRANTED]
    model.fence()
    model.step()
    assert states(model) == [LineState.CLOSING]


def test_a_smaller_quota_that_the_scheduler_knows_is_not_the_one_that_the_line_waits_for() -> None:
    model = granted()
    model.write()
    model.fence()
    model.queues["a", Side.BORROW].nominal = 7  # somebody's edit, which the next round of writes mends
    model.now += STALE
    model.step()
    assert states(model) == [LineState.GRANTED]
    model.write()
    model.fence()
    model.step()
    assert states(model) == [LineState.CLOSING]
