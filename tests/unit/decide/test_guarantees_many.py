"""Many guarantees that rise at once: a few transactions, and never more than there is."""

from benchmarks.worlds import NOW, Size, world
from gpubank.decide.guarantee import MOST_AT_ONCE
from gpubank.decide.step import step
from gpubank.domain.books import Books

GROUPS = MOST_AT_ONCE + MOST_AT_ONCE // 2


def risen(books: Books, capacity: int) -> tuple[Books, int]:
    """Return the books after a step on empty ones, and how many transactions raised guarantees."""
    at = world(Size(groups=GROUPS, loans=0, own=0, slack=4))
    empty = Books(cluster=books.cluster, pool=books.pool)
    found = step(at.facts, empty, at.terms.model_copy(update={"capacity": capacity}), NOW)
    after = empty
    for transaction in found.transactions:
        after = after.applied(transaction).books
    return after, sum(bool(each.guarantees) for each in found.transactions)


def test_a_pool_of_many_groups_is_set_up_in_a_few_transactions() -> None:
    at = world(Size(groups=GROUPS, loans=0, own=0, slack=4))
    after, transactions = risen(at.books, at.terms.capacity)
    assert {each.group: each.in_force for each in after.guarantees} == dict.fromkeys(after.groups, 4)
    assert (len(after.groups), transactions) == (GROUPS, 2)


def test_the_last_to_rise_gets_what_is_left_and_those_after_it_nothing() -> None:
    at = world(Size(groups=GROUPS, loans=0, own=0, slack=4))
    after, _ = risen(at.books, 4 * 10 + 3)
    in_force = [after.guarantee(f"g{index:04d}").in_force for index in range(GROUPS)]
    assert in_force[:12] == [4] * 10 + [3, 0]
    assert after.surplus == 0
