"""Rows that a commit changes, gathered so that each is written once and every table is asked at most twice.

    put: guarantees a 1→2, lines h100-7 new, lines h100-7 1→2, lines h100-3 4→5
    write: one UPDATE of guarantees; of lines one UPDATE (h100-3) and one INSERT (h100-7, as it came to stand)

An update holds only where the row stands as it was read: the pool's row is locked, so anything else means that
somebody writes to the ledger who does not ask for the lock.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, Update, bindparam, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import chain
from gpubank.adapters.ledger.tables import demands, guarantees, keys, line_spans, lines, pools
from gpubank.domain.errors import LedgerError

_ORDER: Final = (pools, guarantees, demands, lines, line_spans, keys)
"""Tables in the order in which they are written: what a row refers to stands before it."""

_NAMED: Final = 3
"""Rows that an error names at most."""

Row = Mapping[str, Any]


class _Change(NamedTuple):
    row: Row
    was: Row | None
    """Columns that an update relies on; None for a row that is begun."""


class Changes:
    """Rows to be written in one transaction of the database."""

    def __init__(self) -> None:
        self._by_table: dict[str, dict[tuple[Any, ...], _Change]] = {table.name: {} for table in _ORDER}

    def put(self, table: Table, row: Row, was: Row | None = None) -> None:
        """Have a row stand like this: a new one, or where the one in the table is as `was` says.

        Of a row that is put twice the last words count, and what the first relied on.
        """
        changes = self._by_table[table.name]
        key = tuple(row[name] for name in chain.key_columns(table))
        before = changes.get(key)
        changes[key] = _Change(row, was if before is None else before.was)

    async def write(self, connection: AsyncConnection) -> None:
        """Write them; raises `LedgerError`, and the transaction must be given up, where a row is not as it was."""
        for table in _ORDER:
            changes = self._by_table[table.name].values()
            # A row that ends makes room for the next one of its kind.
            await _update(connection, table, [(each.row, each.was) for each in changes if each.was is not None])
            if begun := [dict(each.row) for each in changes if each.was is None]:
                await connection.execute(insert(table), begun)


async def _update(connection: AsyncConnection, table: Table, changes: Sequence[tuple[Row, Row]]) -> None:
    if not changes:
        return
    values = [
        {f"new_{name}": value for name, value in row.items()} | {f"was_{name}": value for name, value in was.items()}
        for row, was in changes
    ]
    (relied_on,) = {tuple(was) for _, was in changes}
    result = await connection.execute(_statement(table, tuple(changes[0][0]), relied_on), values)
    if result.rowcount != len(changes):
        some = ", ".join(chain.row_key(table, row) for row, _ in changes[:_NAMED])
        one = "row" if len(changes) == 1 else f"one of {len(changes)} rows, of"
        raise LedgerError(f"{one} {some} changed under the pool's lock; somebody else writes to the ledger")


@cache
def _statement(table: Table, columns: tuple[str, ...], relied_on: tuple[str, ...]) -> Update:
    names = chain.key_columns(table)

    def bound(prefix: str, name: str) -> Any:
        return bindparam(f"{prefix}_{name}", type_=table.c[name].type)

    return (
        update(table)
        .where(
            *(table.c[name] == bound("new", name) for name in names),
            *(table.c[name].is_not_distinct_from(bound("was", name)) for name in relied_on),
        )
        .values({name: bound("new", name) for name in columns if name not in names})
    )
