"""One transaction of the bank, as one transaction of the database.

lock the pool's row → key seen? → load the books → Books.applied → rows that changed, spans, audit links, key
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import CursorResult, Table, and_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import chain, rows
from gpubank.adapters.ledger.chain import Link
from gpubank.adapters.ledger.reading import Known, pool_of, read
from gpubank.adapters.ledger.tables import demands, guarantees, keys, line_spans, lines, pools
from gpubank.decide.bill import follow, is_billed
from gpubank.domain.books import Applied, Books
from gpubank.domain.errors import LedgerError
from gpubank.domain.loan import Line
from gpubank.domain.transaction import Transaction

NOTES = "note"
"""Scope of the keys of notes."""


async def lock(connection: AsyncConnection, cluster: str, pool: str) -> None:
    """Hold the pool's row until the transaction ends; it is made on first use."""
    query = select(pools.c.revision).where(pool_of(pools, cluster, pool)).with_for_update()
    if (await connection.execute(query)).first() is not None:
        return
    await insert_once(
        connection, pools, {"cluster": cluster, "pool": pool, "revision": 0, "capacity": 0, "next_line": 1}
    )
    await connection.execute(query)


async def insert_once(connection: AsyncConnection, table: Table, row: dict[str, Any]) -> bool:
    """Insert a row unless its primary key stands already; return whether it was inserted."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).values(row).on_conflict_do_nothing().returning(*table.primary_key.columns)
    return (await connection.execute(statement)).first() is not None


async def seen(connection: AsyncConnection, scope: str, key: str) -> bool:
    """Whether a key was used before."""
    query = select(keys.c.key).where(keys.c.scope == scope, keys.c.key == key)
    return (await connection.execute(query)).first() is not None


async def commit(connection: AsyncConnection, tx: Transaction, known: Known | None = None) -> Known:
    """Write `tx` in the open transaction of `connection`; return the books after it, for when it is committed."""
    scope = f"{tx.cluster}/{tx.pool}"
    await lock(connection, tx.cluster, tx.pool)
    before = await read(connection, tx.cluster, tx.pool, known)
    if await seen(connection, scope, tx.key):
        return before
    books = before.books
    applied = books.applied(tx)
    key_row = {"scope": scope, "key": tx.key, "at": tx.at}
    said = {"key": tx.key, "note": tx.note} if tx.note else {"key": tx.key}
    links = [Link(scope, "Committed", said, [(pools, rows.pool_row(applied.books)), (keys, key_row)])]
    links += await _write_guarantees(connection, books, applied, said)
    links += await _write_demands(connection, books, applied, said)
    links += await _write_lines(connection, books, applied, tx, said)
    await _put(connection, pools, rows.pool_row(applied.books), {"revision": books.revision})
    await connection.execute(keys.insert().values(key_row))
    return Known(applied.books, await chain.append(connection, links, at=tx.at, actor=tx.actor))


async def _write_guarantees(
    connection: AsyncConnection, books: Books, applied: Applied, said: dict[str, str]
) -> list[Link]:
    links = []
    for guarantee in applied.guarantees:
        row = rows.guarantee_row(books, guarantee)
        before = books.guarantee(guarantee.group).version
        await _put(connection, guarantees, row, {"version": before} if before else None)
        links.append(Link(guarantee.group, "Guaranteed", said, [(guarantees, row)]))
    return links


async def _write_demands(
    connection: AsyncConnection, books: Books, applied: Applied, said: dict[str, str]
) -> list[Link]:
    live = select(demands.c.demand_id, demands.c.incarnation).where(
        demands.c.cluster == books.cluster,
        demands.c.demand_id.in_([demand.demand_id for demand in applied.demands]),
        demands.c.ended_at.is_(None),
    )
    incarnations = {row.demand_id: row.incarnation for row in await connection.execute(live)} if applied.demands else {}
    links = []
    for demand in applied.demands:
        before = books.demand(demand.demand_id)
        row = rows.demand_row(demand, incarnations.get(demand.demand_id, applied.books.revision))
        await _put(connection, demands, row, {"version": before.version} if before else None)
        action = demand.state.value if before is None or before.state is not demand.state else "Changed"
        links.append(Link(demand.demand_id, action, said, [(demands, row)]))
    return links


async def _write_lines(
    connection: AsyncConnection, books: Books, applied: Applied, tx: Transaction, said: dict[str, str]
) -> list[Link]:
    links = []
    for line in applied.lines:
        before = books.line(line.line_id)
        row = rows.line_row(line)
        await _put(connection, lines, row, {"version": before.version} if before else None)
        spans = await _write_spans(connection, before, line, tx)
        action = line.state.value if before is None or before.state is not line.state else "Changed"
        links.append(Link(line.line_id, action, said, [(lines, row), *((line_spans, span) for span in spans)]))
    return links


async def _write_spans(
    connection: AsyncConnection, before: Line | None, line: Line, tx: Transaction
) -> Iterable[dict[str, Any]]:
    """Let the line's spans follow it; return the rows that were written."""
    if before is None or not is_billed(before):
        open_span = None
    else:
        query = select(line_spans).where(
            line_spans.c.cluster == line.cluster, line_spans.c.line_id == line.line_id, line_spans.c.ended_at.is_(None)
        )
        found = (await connection.execute(query)).mappings().one_or_none()
        if found is None:
            raise LedgerError(f"line {line.line_id!r} runs without a span; `gpubank ledger verify` names the row")
        open_span = rows.span_of(found)
    written = [rows.span_row(span) for span in follow(open_span, line, tx.at)]
    for row in written:
        ends = open_span is not None and row["ordinal"] == open_span.ordinal
        await _put(connection, line_spans, row, {"ended_at": None} if ends else None)
    return written


async def _put(connection: AsyncConnection, table: Table, row: dict[str, Any], was: dict[str, Any] | None) -> None:
    """Insert the row, or update the one that stands as `was` says; anything else means that the table was touched."""
    if was is None:
        await connection.execute(table.insert().values(row))
        return
    names = chain.key_columns(table)
    condition = and_(
        *(table.c[name] == row[name] for name in names),
        *(table.c[name].is_not_distinct_from(value) for name, value in was.items()),
    )
    changed = {name: value for name, value in row.items() if name not in names}
    result: CursorResult[Any] = await connection.execute(update(table).where(condition).values(changed))
    if result.rowcount != 1:
        raise LedgerError(
            f"row {chain.row_key(table, row)} changed under the pool's lock; somebody else writes to the ledger"
        )
