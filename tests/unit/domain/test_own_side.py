"""Lines on the own side: chosen with a pledge and ended with it, taken before the stop, never granted."""

import pytest

from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandState
from gpubank.domain.errors import ConflictError, IllegalTransitionError
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import Choose, DemandChange, GuaranteeChange, Pledge, Take
from tests.unit.domain.bookkeeping import founded, job, line_of, move, opening, tx


def choose(gpus: int = 4, *, number: int = 1, demand: str = "d", group: str = "b") -> Choose:
    return Choose(group=group, gpus=gpus, workload=job(number), term=1, demand=demand)


def take(line: Line) -> Take:
    return Take(line_id=line.line_id, version=line.version)


def chosen() -> Books:
    """Books in which own work of b with 4 GPUs makes room for a demand of b."""
    books = founded().applied(tx(openings=(opening(),))).books
    return books.applied(tx(1, choices=(choose(),))).books


def taken() -> Books:
    books = chosen()
    return books.applied(tx(2, takes=(take(line_of(books)),))).books


def test_a_choice_weighs_nothing_and_a_take_lowers_the_own_queue() -> None:
    books = chosen()
    line = line_of(books)
    assert (line.side, line.state, line.lender, line.borrower, line.demand) == (
        Side.OWN,
        LineState.RECALLED,
        "b",
        "b",
        "d",
    )
    assert line.is_chosen
    assert (books.own_nominal("b"), books.lent("b"), books.granted("b")) == (8, 0, 0)
    assert books.own_lines("b") == (line,)
    books = taken()
    line = line_of(books)
    assert not line.is_chosen
    assert line.granted_at == line.moved_at == tx(2).at
    assert (books.own_nominal("b"), books.lent("b"), books.stopping("b"), books.on_loan("b")) == (4, 4, 4, 0)
    assert (books.granted("b"), books.borrowed("b"), books.lent_to_others("b")) == (0, 0, 0)


def test_what_was_taken_comes_back_to_its_demand_and_its_lender_need_not_rest() -> None:
    books = taken().applied(tx(3, moves=(move(line_of(taken()), LineState.RETURNED),))).books
    (demand,) = books.demands
    assert demand.idle == 4
    assert books.own_nominal("b") == 4
    assert books.own_lines("b") == ()
    assert not books.guarantee("b").recalled


def test_what_was_only_chosen_adds_nothing_to_its_demand_for_it_is_free_already() -> None:
    books = chosen().applied(tx(3, moves=(move(line_of(chosen()), LineState.RETURNED),))).books
    (demand,) = books.demands
    assert demand.idle == 0
    assert books.own_nominal("b") == 8


def test_a_choice_ends_with_its_pledge_and_what_was_taken_goes_on_without_one() -> None:
    books = chosen()
    line = line_of(books)
    applied = books.applied(tx(3, pledges=(Pledge(line_id=line.line_id, version=line.version, demand=None),)))
    assert applied.lines[0].state is LineState.RETURNED
    assert applied.lines[0].ended_at == tx(3).at
    assert applied.books.lines == ()
    books = taken()
    line = line_of(books)
    books = books.applied(tx(3, pledges=(Pledge(line_id=line.line_id, version=line.version, demand=None),))).books
    assert line_of(books).demand is None
    assert books.stopping("b") == 4


@pytest.mark.parametrize("state", [DemandState.PARTIAL, DemandState.CANCELLED])
def test_a_choice_ends_with_its_demand_and_what_was_taken_does_not(state: DemandState) -> None:
    for books, left in ((chosen(), 0), (taken(), 1)):
        (demand,) = books.demands
        change = DemandChange(demand_id="d", version=demand.version, state=state)
        after = books.applied(tx(3, demands=(change,))).books
        assert len(after.lines) == left
        assert all(line.demand is None for line in after.lines)


def test_a_pledge_of_a_choice_to_its_own_demand_changes_nothing_of_it() -> None:
    books = chosen()
    line = line_of(books)
    books = books.applied(tx(3, pledges=(Pledge(line_id=line.line_id, version=line.version, demand="d"),))).books
    assert line_of(books).is_chosen


def test_nothing_is_granted_on_the_own_side() -> None:
    with pytest.raises(IllegalTransitionError):
        taken().applied(tx(3, moves=(move(line_of(taken()), LineState.GRANTED),)))


def test_only_an_open_demand_of_the_same_group_is_chosen_for_and_nobody_twice() -> None:
    books = chosen()
    with pytest.raises(ConflictError, match="'u-1' makes room already"):
        books.applied(tx(2, choices=(choose(),)))
    with pytest.raises(ConflictError, match="demand 'd' of 'b' is Open"):
        books.applied(tx(2, choices=(choose(number=2, group="a"),)))
    (demand,) = books.demands
    raised = books.applied(
        tx(2, demands=(DemandChange(demand_id="d", version=demand.version, state=DemandState.RAISED),))
    ).books
    with pytest.raises(ConflictError, match="is Raised"):
        raised.applied(tx(3, choices=(choose(number=2),)))


def test_a_line_is_taken_once_and_only_while_its_gpus_are_in_the_queue() -> None:
    books = taken()
    with pytest.raises(ConflictError, match="not one that is only chosen"):
        books.applied(tx(3, takes=(take(line_of(books)),)))
    books = chosen()
    less = GuaranteeChange(group="b", version=books.guarantee("b").version, in_force=3)
    books = books.applied(tx(2, guarantees=(less,))).books
    with pytest.raises(ConflictError, match="4 GPUs of line 'h100-1' are not in the queue"):
        books.applied(tx(3, takes=(take(line_of(books)),)))
