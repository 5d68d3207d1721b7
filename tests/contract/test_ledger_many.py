"""Contract of many transactions in one commit: they come to what each by itself would have come to, or stop there."""

import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.adapters.ledger import SqlLedger
from gpubank.adapters.ledger.writing import MOST
from gpubank.domain.books import Books
from gpubank.domain.errors import BankError, ConflictError, LedgerError
from gpubank.domain.ledger import AuditEvent
from gpubank.domain.loan import LineState
from gpubank.domain.transaction import GuaranteeChange, Transaction
from gpubank.ports import LedgerStore
from tests.contract.ledger_draw import drawn
from tests.fakes.ledger import MemoryLedger
from tests.plugins.ledger import CLUSTER, POOL, database_url, founding, lent, move, offer, only, tx

_pools = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerStore]:
    """An empty ledger, or the one in memory that stands in for it."""
    if request.param == "memory":
        yield MemoryLedger()
        return
    async with await SqlLedger.open(database_url(request, tmp_path)) as opened:
        yield opened


def growing(count: int) -> list[Transaction]:
    """Transactions that each rest on the one before."""
    rows = [GuaranteeChange(group="a", version=number, in_force=8) for number in range(1, count + 1)]
    return [tx(f"grow/{row.version}", row.version, guarantees=(row,)) for row in rows]


def told(events: Sequence[AuditEvent], pool: str) -> list[tuple[object, ...]]:
    """What the audit trail says, without where in the chain it stands and in which pool."""
    return [
        (e.at, e.actor, e.subject.replace(pool, POOL), e.action, repr(e.detail).replace(pool, POOL)) for e in events
    ]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_many_come_to_the_same_rows_and_links_as_each_by_itself(ledger: SqlLedger, data: st.DataObject) -> None:
    one, many = f"{POOL}-one-{next(_pools)}", f"{POOL}-many-{next(_pools)}"
    begin = founding().model_copy(update={"pool": one})
    books = await ledger.commit(begin)
    transactions = [begin]
    for number in range(15):
        decided = tx(f"k{number}", number, pool=one, **drawn(data, books))
        try:
            books = await ledger.commit(decided)
        except BankError:
            continue
        transactions.append(decided)
    rest = [Transaction.model_validate_json(t.model_dump_json().replace(one, many)) for t in transactions]
    while rest:
        part = rest[: data.draw(st.integers(1, len(rest)))]
        after = await ledger.commit_all(part)
        assert len(after) == len(part)
        rest = rest[len(part) :]
    expected = Books.model_validate_json(books.model_dump_json().replace(one, many))
    assert after[-1] == await ledger.books(CLUSTER, many) == expected
    events = list(reversed(await ledger.audit(limit=100_000)))
    of_one, of_many = ([e for e in events if name in repr((e.subject, e.detail))] for name in (one, many))
    assert told(of_many, many) == told(of_one, one)
    assert (await ledger.verify()).findings == ()


async def test_the_books_after_each_are_returned(store: LedgerStore) -> None:
    after = await store.commit_all([founding(), *growing(3)])
    assert [books.revision for books in after] == [1, 2, 3, 4]
    assert await store.books(CLUSTER, POOL) == after[-1]


async def test_nothing_is_asked_of_the_ledger_for_no_transactions(store: LedgerStore) -> None:
    assert list(await store.commit_all([])) == []
    assert list(await store.pools()) == []


async def test_those_before_a_refused_one_stand_and_nothing_of_the_others(store: LedgerStore) -> None:
    await store.commit(founding())
    first, second, third = growing(3)
    stale = tx("stale", 2, guarantees=(GuaranteeChange(group="b", version=7, in_force=1),))
    (books,) = await store.commit_all([first, stale, second, third])
    assert books == await store.books(CLUSTER, POOL)
    assert books.guarantee("a").version == 2
    with pytest.raises(ConflictError, match="version"):
        await store.commit_all([stale, second, third])
    assert await store.books(CLUSTER, POOL) == books
    await store.commit_all([second, third])
    assert (await store.verify()).findings == ()


async def test_what_breaks_a_rule_is_refused_like_what_rests_on_old_rows(store: LedgerStore) -> None:
    await store.commit(founding())
    broken = tx("broken", 2, offers=(offer(999),))
    (books,) = await store.commit_all([growing(1)[0], broken])
    with pytest.raises(LedgerError):
        await store.commit_all([broken])
    assert await store.books(CLUSTER, POOL) == books


async def test_keys_that_were_committed_before_count_as_standing(store: LedgerStore) -> None:
    await store.commit(founding())
    transactions = growing(3)
    await store.commit(transactions[0])
    after = await store.commit_all([transactions[0], *transactions, transactions[2]])
    assert [books.revision for books in after] == [2, 2, 3, 4, 4]
    assert [books.revision for books in await store.commit_all(transactions)] == [4, 4, 4]


async def test_a_line_that_begins_and_ends_in_one_commit_is_billed_like_any(ledger: SqlLedger) -> None:
    books = await lent(ledger)
    line = only(books)
    moves = [
        move(line, LineState.RECALLED),
        move(line.model_copy(update={"state": LineState.RECALLED, "version": line.version + 1}), LineState.RETURNED),
    ]
    after = await ledger.commit_all([tx(f"m/{n}", 10 * n, moves=(each,)) for n, each in enumerate(moves, 1)])
    assert after[-1].lines == ()
    (kept,) = await ledger.lines()
    assert kept.state is LineState.RETURNED
    assert (await ledger.verify()).findings == ()


async def test_of_very_many_the_first_are_written_so_that_others_have_their_turn(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    transactions = growing(MOST + 3)
    assert len(await ledger.commit_all(transactions)) == MOST
    assert len(await ledger.commit_all(transactions[MOST:])) == 3
    assert (await ledger.verify()).findings == ()


async def test_transactions_of_two_pools_are_refused(ledger: SqlLedger) -> None:
    with pytest.raises(LedgerError, match="east/h100, local/h100"):
        await ledger.commit_all([founding(), founding("east")])
    assert await ledger.pools() == []
