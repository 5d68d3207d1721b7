"""The indexes of the books: carried on by what changed, they are what they would be if made anew."""

from collections import Counter

from hypothesis import settings
from hypothesis.stateful import invariant

from gpubank.domain.bookindex import DemandIndex, GuaranteeIndex, LineIndex
from gpubank.domain.books import Books, Guarantee
from gpubank.domain.loan import LineState
from tests.unit.domain.bookkeeping import move, standing, tx
from tests.unit.domain.test_books_any_sequence import AnySequence


def plain(index: LineIndex | DemandIndex | GuaranteeIndex[Guarantee]) -> dict[str, object]:
    """Everything that an index holds; a sum of 0 is no sum."""
    held = {name: value for name, value in vars(index).items() if name not in ("rows", "__orig_class__")}
    return {name: +value if isinstance(value, Counter) else value for name, value in held.items()}


def anew(books: Books) -> Books:
    """Return the same books as if they had just been read."""
    return Books.model_validate(books.model_dump())


class Indexed(AnySequence):
    """After any sequence of transactions, with every index carried on from the first."""

    @invariant()
    def indexes_are_what_they_would_be_if_made_anew(self) -> None:
        fresh = anew(self.books)
        assert plain(self.books.line_index) == plain(fresh.line_index)
        assert plain(self.books.demand_index) == plain(fresh.demand_index)
        assert plain(self.books.guarantee_index) == plain(fresh.guarantee_index)

    @invariant()
    def rows_are_in_the_order_of_their_names(self) -> None:
        assert self.books.line_index.ordered
        assert self.books.demand_index.ordered
        assert self.books.guarantee_index.ordered

    @invariant()
    def no_quota_is_negative_anywhere(self) -> None:
        assert all(self.books.own_nominal(group) >= 0 for group in self.books.groups)


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_copy_with_other_rows_does_not_answer_from_the_indexes_of_the_original() -> None:
    books = standing(LineState.GRANTED)
    assert books.lent("b") == 4
    assert books.model_copy(update={"lines": ()}).lent("b") == 0
    assert books.lent("b") == 4


def test_books_with_and_without_indexes_are_equal_and_written_alike() -> None:
    books = standing(LineState.GRANTED)
    fresh = anew(books)
    assert books.lent("b") == 4
    assert books == fresh
    assert books.model_dump_json() == fresh.model_dump_json()
    assert repr(books) == repr(fresh)


def test_rows_that_are_not_in_order_are_put_in_order_when_one_of_them_changes() -> None:
    books = standing(LineState.GRANTED, LineState.GRANTED)
    turned = books.model_copy(update={"lines": tuple(reversed(books.lines))})
    after = turned.applied(tx(moves=(move(books.lines[0], LineState.RECALLED),))).books
    assert [line.line_id for line in after.lines] == ["h100-1", "h100-2"]
    assert after.lent("b") == 8
