"""Contract of the ledger about lines on the own side: audited, never posted, safe from programs without sides."""

import pytest
from sqlalchemy import text

from gpubank.adapters.ledger import SqlLedger, make_engine
from gpubank.decide.compile import nominals
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind
from gpubank.domain.errors import LedgerError
from gpubank.domain.loan import LineState
from gpubank.domain.transaction import Choose, DemandOpening, Take
from tests.plugins.ledger import CLUSTER, POOL, by_hand, founding, job, lent, minutes, move, only, tx


async def chosen(ledger: SqlLedger) -> None:
    """Found the books, and have own work of a make room."""
    await ledger.commit(founding())
    demand = DemandOpening(demand_id="d", lender="a", kind=DemandKind.WORKLOAD, gpus=4, due_at=minutes(60))
    choice = Choose(group="a", gpus=4, workload=job(), term=1, demand="d")
    await ledger.commit(tx("choose", 1, openings=(demand,), choices=(choice,)))


async def taken(ledger: SqlLedger) -> None:
    await chosen(ledger)
    line = only(await ledger.books(CLUSTER, POOL))
    await ledger.commit(tx("take", 2, takes=(Take(line_id=line.line_id, version=line.version),)))


async def test_a_line_on_the_own_side_is_kept_and_audited_and_bills_nobody(ledger_url: str) -> None:
    async with await SqlLedger.open(ledger_url) as ledger:
        await taken(ledger)
    async with await SqlLedger.open(ledger_url) as ledger:
        books = await ledger.books(CLUSTER, POOL)
        line = only(books)
        assert (line.side, line.is_chosen, line.demand) == (Side.OWN, False, "d")
        assert books.own_nominal("a") == 4
        await ledger.commit(tx("return", 90, moves=(move(line, LineState.RETURNED),)))
        assert await ledger.post(until=minutes(600)) == 0
        assert await ledger.postings() == []
        report = await ledger.verify()
        assert report.findings == ()
        actions = [event.action for event in await ledger.audit(subject=line.line_id)]
        assert actions == ["Returned", "Changed", "Recalled"]


async def test_a_side_that_was_changed_by_hand_is_found(ledger: SqlLedger, ledger_url: str) -> None:
    await taken(ledger)
    by_hand(ledger_url, "UPDATE lines SET side = NULL")
    (finding,) = (await ledger.verify()).findings
    assert finding.row == "lines local/h100-1"


async def test_lines_of_loans_are_as_a_program_without_sides_wrote_them(ledger: SqlLedger, ledger_url: str) -> None:
    await lent(ledger)
    engine = make_engine(ledger_url)
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT side FROM lines"))).scalars().all() == [None]
        details = (await connection.execute(text("SELECT detail FROM audit"))).scalars().all()
    await engine.dispose()
    assert not any('"side"' in detail for detail in details)


async def test_a_program_that_knows_no_sides_lends_nothing_on_such_a_line_and_cannot_move_it(
    ledger_url: str,
) -> None:
    async with await SqlLedger.open(ledger_url) as ledger:
        await taken(ledger)
    by_hand(ledger_url, "UPDATE lines SET side = NULL")  # what it reads
    async with await SqlLedger.open(ledger_url) as old:
        books = await old.books(CLUSTER, POOL)
        line = only(books)
        assert not line.is_own
        assert nominals(books) == {("a", Side.OWN): 4, ("a", Side.BORROW): 0, ("b", Side.OWN): 8, ("b", Side.BORROW): 0}
        for state in (LineState.GRANTED, LineState.RETURNED):
            with pytest.raises(LedgerError, match="runs without a span"):
                await old.commit(tx(f"old/{state}", 90, moves=(move(line, state),)))
        assert await old.post(until=minutes(600)) == 0
        assert only(await old.books(CLUSTER, POOL)) == line
