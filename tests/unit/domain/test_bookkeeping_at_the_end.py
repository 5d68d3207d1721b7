"""What the end of a line, or of a demand, leaves in the books."""

from gpubank.domain.demand import DemandState
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.transaction import DemandChange, Pledge
from tests.unit.domain.bookkeeping import C, G, R, founded, line_of, move, offer, opening, standing, tx


def test_a_group_rests_after_a_recall_and_the_surplus_does_not() -> None:
    books = standing(R)
    books = books.applied(tx(moves=(move(line_of(books), LineState.RETURNED),))).books
    assert books.guarantee("b").recalled
    books = founded()
    books = books.applied(tx(offers=(offer(lender=SURPLUS),))).books
    for state in (G, R, LineState.RETURNED):
        books = books.applied(tx(moves=(move(books.lines[0], state),))).books
    assert not books.lines
    assert not any(guarantee.recalled for guarantee in books.guarantees)


def test_a_demand_that_ends_lets_its_own_lines_go_and_no_others() -> None:
    books = standing(G, G)
    books = books.applied(tx(openings=(opening("d"), opening("e")))).books
    pledges = tuple(
        Pledge(line_id=line.line_id, version=line.version, demand=demand)
        for line, demand in zip(books.lines, "de", strict=True)
    )
    books = books.applied(tx(pledges=pledges)).books
    other = books.lines[1]
    end = DemandChange(demand_id="d", version=books.demands[0].version, state=DemandState.CANCELLED)
    books = books.applied(tx(moves=(move(other, C),), demands=(end,))).books
    assert [(line.state, line.demand) for line in books.lines] == [(G, None), (C, "e")]


def test_what_comes_back_for_a_demand_of_somebody_else_is_its_lenders_again() -> None:
    books = standing(R)
    books = books.applied(tx(openings=(opening("mine", lender="b"), opening("theirs", lender="a")))).books
    line = line_of(books)
    for demand, idle in (("mine", 4), ("theirs", 0)):
        pledged = books.applied(tx(pledges=(Pledge(line_id=line.line_id, version=line.version, demand=demand),))).books
        after = pledged.applied(tx(moves=(move(line_of(pledged), LineState.RETURNED),))).books
        assert [each.idle for each in after.demands if each.demand_id == demand] == [idle]
        assert after.own_nominal("b") == 8 - idle
