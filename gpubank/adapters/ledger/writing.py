"""Transactions of the bank, in one transaction of the database.

lock the pool's row → load the books → keys seen? → Books.applied, one by one → rows that changed, audit links
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import chain, rows
from gpubank.adapters.ledger.chain import Head, Link
from gpubank.adapters.ledger.changes import Changes, Row
from gpubank.adapters.ledger.reading import Known, pool_of, read
from gpubank.adapters.ledger.tables import demands, guarantees, keys, line_spans, lines, pools
from gpubank.decide.bill import follow, is_billed
from gpubank.domain.books import Applied, Books, Guarantee
from gpubank.domain.demand import Demand
from gpubank.domain.errors import ConflictError, LedgerError
from gpubank.domain.ledger import Span
from gpubank.domain.loan import Line
from gpubank.domain.transaction import Transaction

NOTES: Final = "note"
"""Scope of the keys of notes."""

MOST: Final = 64
"""Transactions of the bank that are written in one of the database: the pool's row is locked as long as that takes."""


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


class Committed(NamedTuple):
    """What a commit came to."""

    after: tuple[Books, ...]
    """The books after every transaction that stands, in order."""

    known: Known
    """The last of them, for when the database has committed."""


class _Applied(NamedTuple):
    tx: Transaction
    before: Books
    result: Applied


async def commit(connection: AsyncConnection, transactions: Sequence[Transaction], known: Known | None) -> Committed:
    """Write transactions of one pool in the open transaction of `connection`, up to `MOST` or the first refused one.

    Raises what `Books.applied` does where it refuses the very first; then nothing was written.
    """
    cluster, pool = transactions[0].cluster, transactions[0].pool
    await lock(connection, cluster, pool)
    before = await read(connection, cluster, pool, known)
    seen = await _seen(connection, _scope(before.books), [tx.key for tx in transactions[:MOST]])
    books, after, done = before.books, list[Books](), list[_Applied]()
    for tx in transactions[:MOST]:
        if tx.key not in seen:
            try:
                result = books.applied(tx)
            except (ConflictError, LedgerError):
                if not after:
                    raise
                break
            done.append(_Applied(tx, books, result))
            seen.add(tx.key)
            books = result.books
        after.append(books)
    if done:
        before = Known(books, await _write(connection, done))
    return Committed(tuple(after), before)


def _scope(books: Books) -> str:
    return f"{books.cluster}/{books.pool}"


async def _seen(connection: AsyncConnection, scope: str, names: Sequence[str]) -> set[str]:
    """Return those of the keys that were used before."""
    query = select(keys.c.key).where(keys.c.scope == scope, keys.c.key.in_(names))
    return set((await connection.execute(query)).scalars())


async def _write(connection: AsyncConnection, done: Sequence[_Applied]) -> Head:
    """Write the rows of applied transactions and their links; return the chain's new end."""
    sheet = _Sheet(await _open_spans(connection, done), await _incarnations(connection, done))
    for each in done:
        sheet.take(each)
    await sheet.changes.write(connection)
    return await chain.append(connection, sheet.links)


async def _open_spans(connection: AsyncConnection, done: Sequence[_Applied]) -> dict[str, Span]:
    """Return the open span of every line that changes and is billed already, by line id."""
    changed = {
        line.line_id
        for each in done
        for line in each.result.lines
        if (before := done[0].before.line(line.line_id)) is not None and is_billed(before)
    }
    if not changed:
        return {}
    query = select(line_spans).where(
        line_spans.c.cluster == done[0].before.cluster,
        line_spans.c.line_id.in_(changed),
        line_spans.c.ended_at.is_(None),
    )
    return {row["line_id"]: rows.span_of(row) for row in (await connection.execute(query)).mappings()}


async def _incarnations(connection: AsyncConnection, done: Sequence[_Applied]) -> dict[str, int]:
    """Return which row is that of a live demand, of every demand that changes."""
    changed = {demand.demand_id for each in done for demand in each.result.demands}
    if not changed:
        return {}
    live = select(demands.c.demand_id, demands.c.incarnation).where(
        demands.c.cluster == done[0].before.cluster, demands.c.demand_id.in_(changed), demands.c.ended_at.is_(None)
    )
    return {row.demand_id: row.incarnation for row in await connection.execute(live)}


class _Sheet:
    """Rows and links of applied transactions, one after the other."""

    def __init__(self, open_spans: dict[str, Span], incarnations: dict[str, int]) -> None:
        self.changes, self.links = Changes(), list[Link]()
        self._open_spans, self._incarnations = open_spans, incarnations

    def take(self, each: _Applied) -> None:
        """Write down what a transaction changed."""
        tx, before, result = each
        said = {"key": tx.key, "note": tx.note} if tx.note else {"key": tx.key}
        scope = _scope(before)

        def link(subject: str, action: str, *images: tuple[Table, Row]) -> None:
            self.links.append(Link(tx.at, tx.actor, subject, action, said, images))

        key_row, pool_row = {"scope": scope, "key": tx.key, "at": tx.at}, rows.pool_row(result.books)
        self.changes.put(pools, pool_row, {"revision": before.revision})
        self.changes.put(keys, key_row)
        link(scope, "Committed", (pools, pool_row), (keys, key_row))
        for guarantee in result.guarantees:
            link(guarantee.group, "Guaranteed", (guarantees, self._guarantee(before, guarantee)))
        for demand in result.demands:
            was = before.demand(demand.demand_id)
            action = demand.state.value if was is None or was.state is not demand.state else "Changed"
            link(demand.demand_id, action, (demands, self._demand(was, demand, result.books.revision)))
        for line in result.lines:
            stood = before.line(line.line_id)
            action = line.state.value if stood is None or stood.state is not line.state else "Changed"
            spans = [(line_spans, span) for span in self._spans(stood, line, tx.at)]
            link(line.line_id, action, (lines, self._line(stood, line)), *spans)

    def _guarantee(self, books: Books, guarantee: Guarantee) -> Row:
        row, version = rows.guarantee_row(books, guarantee), books.guarantee(guarantee.group).version
        self.changes.put(guarantees, row, {"version": version} if version else None)
        return row

    def _demand(self, before: Demand | None, demand: Demand, revision: int) -> Row:
        incarnation = revision if before is None else self._incarnations.get(demand.demand_id, revision)
        self._incarnations[demand.demand_id] = incarnation
        row = rows.demand_row(demand, incarnation)
        self.changes.put(demands, row, {"version": before.version} if before else None)
        return row

    def _line(self, before: Line | None, line: Line) -> Row:
        row = rows.line_row(line)
        self.changes.put(lines, row, {"version": before.version} if before else None)
        return row

    def _spans(self, before: Line | None, line: Line, at: datetime) -> list[Row]:
        """Let the line's spans follow it; return the rows that change."""
        was_open = None
        if before is not None and is_billed(before):
            was_open = self._open_spans.get(line.line_id)
            if was_open is None:
                raise LedgerError(f"line {line.line_id!r} runs without a span; `gpubank ledger verify` names the row")
        written: list[Row] = []
        for span in follow(was_open, line, at):
            row = rows.span_row(span)
            ends = was_open is not None and span.ordinal == was_open.ordinal
            self.changes.put(line_spans, row, {"ended_at": None} if ends else None)
            written.append(row)
            self._open_spans[line.line_id] = span
        return written
