"""The books: what a transaction does to them, and what no transaction can do."""

from datetime import timedelta
from typing import Any

import pytest

from gpubank.decide.compile import nominals
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandState
from gpubank.domain.errors import ConflictError, IllegalTransitionError, LedgerError
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.transaction import (
    CapacityChange,
    DemandChange,
    GuaranteeChange,
    Move,
    Pledge,
    Reattach,
    Split,
    Swap,
)
from tests.unit.domain.bookkeeping import TEN, C, G, O, R, founded, job, line_of, move, offer, opening, standing, tx

# ---- what counts


@pytest.mark.parametrize(
    ("state", "own", "borrow"),
    [(O, 4, 0), (G, 4, 4), (R, 4, 0), (C, 4, 0)],
)
def test_the_lenders_part_counts_until_returned_and_the_borrowers_only_while_granted(
    state: LineState, own: int, borrow: int
) -> None:
    quotas = nominals(standing(state))
    assert (quotas["b", Side.OWN], quotas["a", Side.BORROW]) == (own, borrow)


@pytest.mark.parametrize("state", [O, G, C, R])
def test_whatever_way_a_line_ends_its_lender_has_its_gpus_again(state: LineState) -> None:
    books = standing(state)
    for step in {O: [LineState.WITHDRAWN], G: [R, LineState.RETURNED]}.get(state, [LineState.RETURNED]):
        applied = books.applied(tx(30, moves=(move(line_of(books), step),)))
        books = applied.books
    assert (books.lines, books.own_nominal("b"), books.lent("b")) == ((), 8, 0)
    assert applied.lines[0].ended_at == TEN + timedelta(minutes=30)


def test_loans_to_oneself_and_novating_offers_are_told_apart_in_the_sums() -> None:
    books = standing(G).applied(tx(offers=(offer(2, lender="a", number=2),))).books
    books = books.applied(tx(offers=(offer(4, lender=SURPLUS, replaces="h100-1"),))).books
    assert (books.lent("a"), books.lent_to_others("a"), books.borrowed("a")) == (2, 0, 4)
    assert (books.lent(SURPLUS), books.surplus, books.promised) == (4, 4, 20)
    assert books.groups == ("a", "b")


# ---- recalls and demands


def test_what_returns_for_a_demand_stays_pledged_until_the_whole_set_is_raised() -> None:
    books = standing(G, G).applied(tx(openings=(opening(gpus=8),))).books
    pledged = tuple(move(line, R, demand="d") for line in books.lines)
    books = books.applied(tx(moves=pledged)).books
    books = books.applied(tx(moves=(move(line_of(books), LineState.RETURNED),))).books
    assert (books.demands[0].idle, books.own_nominal("b")) == (4, 0)
    books = books.applied(tx(moves=(move(line_of(books, "h100-2"), LineState.RETURNED),))).books
    assert (books.demands[0].idle, books.own_nominal("b")) == (8, 0)
    raised = DemandChange(demand_id="d", version=books.demands[0].version, state=DemandState.RAISED)
    books = books.applied(tx(demands=(raised,))).books
    assert (books.demands[0].idle, books.own_nominal("b")) == (0, 8)


def test_who_got_a_recalled_loan_back_has_its_slack_last_before_it_lends_again() -> None:
    books = standing(R)
    assert not books.guarantee("b").recalled
    assert books.applied(tx(moves=(move(line_of(books), LineState.RETURNED),))).books.guarantee("b").recalled
    closing = standing(C)
    assert not closing.applied(tx(moves=(move(line_of(closing), LineState.RETURNED),))).books.guarantee("b").recalled


@pytest.mark.parametrize("state", [DemandState.MET, DemandState.PARTIAL, DemandState.CANCELLED])
def test_a_demand_that_ended_holds_no_pledge_and_no_idle_quota(state: DemandState) -> None:
    books = standing(G, G, a=8, b=12).applied(tx(openings=(opening(idle=2),))).books
    books = books.applied(tx(moves=(move(line_of(books), R, demand="d"),))).books
    books = books.applied(tx(pledges=(Pledge(line_id="h100-2", version=2, demand="d"),))).books
    end = DemandChange(demand_id="d", version=books.demands[0].version, state=state)
    applied = books.applied(tx(40, demands=(end,)))
    assert [line.demand for line in applied.books.lines] == [None, None]
    assert applied.books.pledged("b") == 0
    assert (applied.demands[0].ended_at is None) is (state is DemandState.PARTIAL)


def test_no_version_of_a_demand_returns_when_it_is_opened_again() -> None:
    books = founded().applied(tx(openings=(opening(),))).books
    first = books.demands[0]
    books = books.applied(
        tx(demands=(DemandChange(demand_id="d", version=first.version, state=DemandState.MET),))
    ).books
    again = books.applied(tx(openings=(opening(),))).books.demands[0]
    assert again.version > first.version + 1


def test_a_pledge_moves_to_another_demand_only_after_it_was_released() -> None:
    books = standing(G).applied(tx(openings=(opening("d"), opening("e")))).books
    books = books.applied(tx(pledges=(Pledge(line_id="h100-1", version=2, demand="d"),))).books
    with pytest.raises(ConflictError, match="pledged to 'd'"):
        books.applied(tx(pledges=(Pledge(line_id="h100-1", version=3, demand="e"),)))
    books = books.applied(tx(pledges=(Pledge(line_id="h100-1", version=3, demand=None),))).books
    assert line_of(books.applied(tx(pledges=(Pledge(line_id="h100-1", version=4, demand="e"),))).books).demand == "e"


# ---- splits, swaps, novation


def test_a_line_that_was_cut_off_can_be_used_in_the_same_transaction() -> None:
    books = standing(G).applied(tx(openings=(opening(),))).books
    applied = books.applied(
        tx(
            splits=(Split(line_id="h100-1", version=2, gpus=1),),
            moves=(Move(line_id="h100-2", version=1, from_state=G, to_state=R, demand="d"),),
        )
    )
    assert [(line.line_id, line.gpus, line.state, line.version) for line in applied.books.lines] == [
        ("h100-1", 3, G, 3),
        ("h100-2", 1, R, 1),
    ]


def test_a_swap_exchanges_the_lenders_and_touches_no_borrower() -> None:
    books = standing(G).applied(tx(offers=(offer(4, lender=SURPLUS, borrower="b", number=2),))).books
    books = books.applied(tx(moves=(move(books.lines[1], G),))).books
    swap = Swap(line_id="h100-1", version=2, other_id="h100-2", other_version=2)
    after = books.applied(tx(swaps=(swap,))).books
    assert [(line.lender, line.borrower) for line in after.lines] == [(SURPLUS, "a"), ("b", "b")]
    assert nominals(after) == nominals(books)


def test_novation_ends_one_line_and_begins_the_other_at_one_instant() -> None:
    books = standing(G).applied(tx(offers=(offer(4, lender=SURPLUS, replaces="h100-1"),))).books
    old, new = books.lines
    applied = books.applied(tx(20, moves=(move(old, LineState.RETURNED), move(new, G))))
    begun, ended = sorted(applied.lines, key=lambda line: line.state)
    assert (begun.granted_at, begun.replaces) == (ended.ended_at, None)
    assert applied.books.granted("a") == books.granted("a")


def test_lines_of_another_workload_take_the_part_that_it_was_admitted_on() -> None:
    books = standing(G).applied(tx(openings=(opening(),))).books
    books = books.applied(tx(pledges=(Pledge(line_id="h100-1", version=2, demand="d"),))).books
    part = Reattach(line_id="h100-1", version=3, gpus=1, workload=job(7), term=2)
    after = books.applied(tx(reattachments=(part,))).books
    assert [(line.workload.uid, line.gpus, line.term, line.demand) for line in after.lines] == [
        ("u-1", 3, 1, "d"),
        ("u-7", 1, 2, None),
    ]
    whole = part.model_copy(update={"gpus": 4})
    moved = line_of(books.applied(tx(reattachments=(whole,))).books)
    assert (moved.workload.uid, moved.demand) == ("u-7", None), "the pledge meant the other Workload's GPUs"


# ---- what no transaction can do

_PLEDGED = Pledge(line_id="h100-1", version=2, demand="d")
_SWAP = Swap(line_id="h100-1", version=2, other_id="h100-2", other_version=2)


@pytest.mark.parametrize(
    ("books", "writes", "message"),
    [
        pytest.param(founded(), {"offers": (offer(9),)}, "queue b.h100.own with -1", id="lend-beyond-the-guarantee"),
        pytest.param(
            founded(), {"offers": (offer(9, lender=SURPLUS),)}, "promise 1 GPUs more", id="lend-beyond-surplus"
        ),
        pytest.param(
            founded(),
            {"guarantees": (GuaranteeChange(group="a", version=1, in_force=17),)},
            "promise 1 GPUs more",
            id="guarantee-beyond-capacity",
        ),
        pytest.param(
            standing(G),
            {"guarantees": (GuaranteeChange(group="b", version=1, in_force=3),)},
            "queue b.h100.own with -1",
            id="guarantee-below-what-is-lent",
        ),
        pytest.param(
            founded(),
            {"guarantees": (GuaranteeChange(group="a", version=1, in_force=2, releasing=3),)},
            "releasing 3 of 2",
            id="release-more-than-there-is",
        ),
        pytest.param(
            founded(), {"openings": (opening(idle=9),)}, "queue b.h100.own with -1", id="pledge-more-than-there-is"
        ),
        pytest.param(
            founded(),
            {"openings": (opening(lender="nobody", idle=1),)},
            "queue nobody.h100.own with -1",
            id="pledge-of-a-group-without-a-guarantee",
        ),
        pytest.param(
            standing(G),
            {"splits": (Split(line_id="h100-1", version=2, gpus=4),)},
            "cannot be cut off",
            id="split-whole",
        ),
        pytest.param(
            standing(G, R), {"swaps": (_SWAP.model_copy(update={"other_version": 3}),)}, "state", id="swap-recalled"
        ),
        pytest.param(
            standing(G, G).applied(tx(splits=(Split(line_id="h100-2", version=2, gpus=1),))).books,
            {"swaps": (_SWAP.model_copy(update={"other_version": 3}),)},
            "size",
            id="swap-of-unequal-size",
        ),
        pytest.param(
            standing(G, G).applied(tx(openings=(opening(),))).books.applied(tx(pledges=(_PLEDGED,))).books,
            {"swaps": (_SWAP.model_copy(update={"version": 3}),)},
            "cannot change its lender",
            id="swap-of-a-pledged-line",
        ),
        pytest.param(
            standing(R),
            {"reattachments": (Reattach(line_id="h100-1", version=3, gpus=1, workload=job(2), term=1),)},
            "cannot give 1",
            id="reattach-recalled",
        ),
        pytest.param(
            standing(G),
            {"reattachments": (Reattach(line_id="h100-1", version=2, gpus=5, workload=job(2), term=1),)},
            "cannot give 5",
            id="reattach-more-than-there-is",
        ),
        pytest.param(
            standing(G),
            {"moves": (Move(line_id="h100-1", version=2, from_state=G, to_state=LineState.RETURNED),)},
            "cannot be returned while it runs",
            id="return-a-running-line",
        ),
        pytest.param(
            standing(G),
            {"offers": (offer(4, lender=SURPLUS, number=2, replaces="h100-1"),)},
            "serves another Workload",
            id="novate-for-another-workload",
        ),
    ],
)
def test_what_breaks_an_invariant_is_refused_whole(books: Books, writes: dict[str, Any], message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        books.applied(tx(**writes))


def test_a_novating_line_cannot_be_granted_beside_the_old_one() -> None:
    books = standing(G).applied(tx(offers=(offer(4, lender=SURPLUS, replaces="h100-1"),))).books
    with pytest.raises(LedgerError, match="granted beside 'h100-1'"):
        books.applied(tx(moves=(move(books.lines[1], G),)))


def test_a_line_taken_by_another_workload_is_not_novated_away_from_it() -> None:
    books = standing(G).applied(tx(offers=(offer(4, lender=SURPLUS, replaces="h100-1"),))).books
    change = Reattach(line_id="h100-1", version=2, gpus=4, workload=job(9), term=1)
    books = books.applied(tx(reattachments=(change,))).books
    old, new = books.lines
    with pytest.raises(LedgerError, match="0 GPUs take its place"):
        books.applied(tx(moves=(move(old, LineState.RETURNED), move(new, G))))


def test_a_shrunken_pool_may_follow_with_its_guarantees_although_it_stays_oversubscribed() -> None:
    books = founded(16)
    change = GuaranteeChange(group="a", version=1, in_force=6)
    after = books.applied(tx(capacity=CapacityChange(capacity=8), guarantees=(change,))).books
    assert after.surplus == -6
    with pytest.raises(LedgerError, match="promise"):
        after.applied(tx(guarantees=(GuaranteeChange(group="a", version=2, in_force=7),)))
    assert after.applied(tx(guarantees=(GuaranteeChange(group="a", version=2, in_force=2),))).books.surplus == -2


@pytest.mark.parametrize(
    "writes",
    [
        {"moves": (Move(line_id="h100-1", version=1, from_state=G, to_state=R),)},
        {"moves": (Move(line_id="h100-1", version=2, from_state=O, to_state=G),)},
        {"moves": (Move(line_id="h100-9", version=1, from_state=O, to_state=G),)},
        {"moves": (Move(line_id="h100-1", version=2, from_state=G, to_state=R, demand="gone"),)},
        {"splits": (Split(line_id="h100-1", version=1, gpus=1),)},
        {"swaps": (_SWAP,)},
        {"pledges": (_PLEDGED,)},
        {"guarantees": (GuaranteeChange(group="a", version=0, in_force=1),)},
        {"demands": (DemandChange(demand_id="gone", version=1, state=DemandState.MET),)},
        {"offers": (offer(4, lender=SURPLUS, replaces="h100-9"),)},
    ],
    ids=lambda writes: next(iter(writes)),
)
def test_what_was_decided_on_other_books_is_a_conflict(writes: dict[str, Any]) -> None:
    with pytest.raises(ConflictError):
        standing(G).applied(tx(**writes))


def test_a_demand_is_opened_once_and_reopened_only_after_it_ended() -> None:
    books = founded().applied(tx(openings=(opening(),))).books
    with pytest.raises(ConflictError, match="open already"):
        books.applied(tx(openings=(opening(),)))
    version = books.demands[0].version
    stale = DemandChange(demand_id="d", version=version + 1, state=DemandState.MET)
    with pytest.raises(ConflictError, match="version"):
        books.applied(tx(demands=(stale,)))
    partial = DemandChange(demand_id="d", version=version, state=DemandState.PARTIAL)
    books = books.applied(tx(demands=(partial,))).books
    assert books.applied(tx(openings=(opening(),))).books.demands[0].state is DemandState.OPEN


def test_a_move_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(IllegalTransitionError, match="cannot become"):
        standing(O).applied(tx(moves=(Move(line_id="h100-1", version=1, from_state=O, to_state=R),)))
