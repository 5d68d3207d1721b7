"""Where groups stood in the organisation: valid time and recorded time, rows only added."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import chain, rows
from gpubank.adapters.ledger.chain import Link
from gpubank.adapters.ledger.tables import org
from gpubank.adapters.ledger.writing import insert_once
from gpubank.domain.errors import PolicyError
from gpubank.domain.ledger import OrgUnit


async def assign(connection: AsyncConnection, unit: OrgUnit, *, actor: str) -> None:
    """Add a row; one that stands already, word for word, is left alone."""
    if unit.valid_to is not None and unit.valid_to <= unit.valid_from:
        raise PolicyError(
            f"org unit of {unit.business_group!r} is valid from {unit.valid_from.isoformat()} to"
            f" {unit.valid_to.isoformat()}; give an end after the start"
        )
    row = rows.org_row(unit)
    if await insert_once(connection, org, row):
        link = Link(unit.recorded_at, actor, unit.business_group, "Assigned", {}, [(org, row)])
        await chain.append(connection, [link])
        return
    same = select(org.c.id).where(*(org.c[name].is_not_distinct_from(value) for name, value in row.items()))
    if (await connection.execute(same)).first() is None:
        raise PolicyError(
            f"org unit of {unit.business_group!r} from {unit.valid_from.isoformat()} was recorded otherwise at this"
            " very instant; record the correction at a later one"
        )


async def resolve(
    connection: AsyncConnection, group: str, *, at: datetime, known_at: datetime | None
) -> OrgUnit | None:
    """Where `group` stood at `at`, as far as was known at `known_at` (now where None)."""
    query = (
        select(org)
        .where(
            org.c.business_group == group, org.c.valid_from <= at, or_(org.c.valid_to.is_(None), org.c.valid_to > at)
        )
        .order_by(org.c.recorded_at.desc(), org.c.id.desc())
        .limit(1)
    )
    if known_at is not None:
        query = query.where(org.c.recorded_at <= known_at)
    row = (await connection.execute(query)).mappings().first()
    return None if row is None else rows.org_of(row)


async def history(connection: AsyncConnection, group: str | None) -> Sequence[OrgUnit]:
    """Every row, in the order in which they were recorded."""
    query = select(org).order_by(org.c.recorded_at, org.c.id)
    if group is not None:
        query = query.where(org.c.business_group == group)
    return [rows.org_of(row) for row in (await connection.execute(query)).mappings()]
