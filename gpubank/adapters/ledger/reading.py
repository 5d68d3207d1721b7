"""The open books of a pool, read whole once and from then on by the rows that have changed.

    known books at revision r, read when the audit chain ended with link s
        the chain still ends with s         nothing has been written since: the known books are the books
        the chain still holds s             rows of later revisions than r are read and take the place of known ones
        it does not (a backup came back)    the books are read whole

Every row bears the pool's revision at its last change, ended rows too, so nothing that changed is missed; and a chain
that holds a link holds everything that was written before it. What is known is never what a caller has half done: a
transaction is taken note of only once it is committed.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sqlalchemy import RowMapping, Table, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import rows
from gpubank.adapters.ledger.chain import Head
from gpubank.adapters.ledger.tables import audit, audit_head, demands, guarantees, lines, pools
from gpubank.domain.bookkeeper import followed
from gpubank.domain.books import Books
from gpubank.domain.demand import Demand

UNCHAINED: Final = Head(0, "")
"""Before the first link: what was read then is read anew."""


class Known(NamedTuple):
    """The books of a pool as they were read, or written, last."""

    books: Books
    head: Head
    """Last link of the audit chain at that moment, or one before it."""


def pool_of(table: Table, cluster: str, pool: str) -> Any:
    """Return the condition that a row is of the pool."""
    return and_(table.c.cluster == cluster, table.c.pool == pool)


async def read(connection: AsyncConnection, cluster: str, pool: str, known: Known | None = None) -> Known:
    """Read the open books of a pool, empty ones where it has no row; only what is not `known` is read."""
    head = await _head(connection)
    if known is not None and known.head == head != UNCHAINED:
        return known
    found = (await connection.execute(select(pools).where(pool_of(pools, cluster, pool)))).mappings().one_or_none()
    if found is None:
        return Known(Books(cluster=cluster, pool=pool), head)
    if known is None or known.books.revision > found["revision"] or not await _holds(connection, known.head):
        return Known(await _whole(connection, found), head)
    if known.books.revision == found["revision"]:
        return Known(known.books, head)
    return Known(await _since(connection, found, known.books), head)


async def _head(connection: AsyncConnection) -> Head:
    row = (await connection.execute(select(audit_head.c.sequence, audit_head.c.digest))).one_or_none()
    return Head(int(row.sequence), str(row.digest)) if row is not None and row.sequence else UNCHAINED


async def _holds(connection: AsyncConnection, head: Head) -> bool:
    """Whether the chain still holds a link that was its last one."""
    query = select(audit.c.digest).where(audit.c.sequence == head.sequence)
    row = (await connection.execute(query)).one_or_none()
    return row is not None and row.digest == head.digest


async def _whole(connection: AsyncConnection, pool: RowMapping) -> Books:
    cluster, name = pool["cluster"], pool["pool"]
    open_lines = select(lines).where(pool_of(lines, cluster, name), lines.c.ended_at.is_(None))
    live = select(demands).where(pool_of(demands, cluster, name), demands.c.ended_at.is_(None))
    in_force = select(guarantees).where(pool_of(guarantees, cluster, name))
    # Sorted here, for databases do not agree on the order of text.
    return Books(
        cluster=cluster,
        pool=name,
        revision=pool["revision"],
        capacity=pool["capacity"],
        next_line=pool["next_line"],
        guarantees=tuple(
            sorted(
                (rows.guarantee_of(row) for row in (await connection.execute(in_force)).mappings()),
                key=lambda guarantee: guarantee.group,
            )
        ),
        lines=tuple(
            sorted(
                (rows.line_of(row) for row in (await connection.execute(open_lines)).mappings()),
                key=lambda line: line.line_id,
            )
        ),
        demands=tuple(
            sorted(
                (rows.demand_of(row) for row in (await connection.execute(live)).mappings()),
                key=lambda demand: demand.demand_id,
            )
        ),
    )


async def _since(connection: AsyncConnection, pool: RowMapping, known: Books) -> Books:
    """Bring known books up to date by the rows of later revisions."""

    async def changed(table: Table) -> Iterable[RowMapping]:
        later = pool_of(table, known.cluster, known.pool), table.c.revision > known.revision
        return (await connection.execute(select(table).where(*later))).mappings()

    last: dict[str, Demand] = {}
    for demand in map(rows.demand_of, await changed(demands)):
        # One that ended and was opened again has a row of each.
        if (other := last.get(demand.demand_id)) is None or other.revision < demand.revision:
            last[demand.demand_id] = demand
    return followed(
        known,
        revision=pool["revision"],
        capacity=pool["capacity"],
        next_line=pool["next_line"],
        lines={line.line_id: line for line in map(rows.line_of, await changed(lines))},
        demands=last,
        guarantees={row.group: row for row in map(rows.guarantee_of, await changed(guarantees))},
    )
