"""The audit chain: every link holds the digest of the one before it, and images of the rows that were written with it.

The chain's last link is kept in a row of its own, which whoever appends locks until it commits; so links are
numbered without gaps, and links of a transaction that failed never were. A chain alone does not show that its end
was cut off together with everything written since: publish the head that `verify` prints.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger.tables import IMAGED, audit, audit_head
from gpubank.domain.errors import LedgerError
from gpubank.domain.ledger import audit_digest

_UNCHAINED: Final = frozenset({"id", "posted_until"})
"""Columns that no image holds: numbers of the database's own, and how far the postings have got."""

_LATER: Final = frozenset({("lines", "side")})
"""Columns that came with a later schema: NULL stands in no image, as in those of programs that do not know them."""

ROWS: Final = "rows"
"""Field of a link's detail that holds the images: `{table: [row, ...]}`."""


class Link(NamedTuple):
    """What is to be appended: when, by whom, and what about what."""

    at: datetime
    actor: str
    subject: str
    action: str
    detail: Mapping[str, Any]
    rows: Sequence[tuple[Table, Mapping[str, Any]]] = ()


def instant(at: datetime) -> str:
    """Write an instant as digests and images have it: UTC, always with microseconds."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def canonical(detail: Mapping[str, Any]) -> str:
    """Write a detail as JSON; raises `LedgerError` for what JSON cannot say."""
    try:
        return json.dumps(detail, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"audit detail is not JSON: {error}; give strings, numbers, lists and maps") from error


def image(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row as the chain keeps it; a column that the row lacks is NULL."""
    values = {
        column.name: row.get(column.name)
        for column in table.columns
        if column.name not in _UNCHAINED and not ((table.name, column.name) in _LATER and row.get(column.name) is None)
    }
    return {name: instant(value) if isinstance(value, datetime) else value for name, value in values.items()}


def row_key(table: Table, values: Mapping[str, Any]) -> str:
    """Name a row by its natural key, as in `lines h100-pool-7`; also what findings print."""
    return f"{table.name} " + "/".join(str(values[name]) for name in key_columns(table))


def key_columns(table: Table) -> tuple[str, ...]:
    """Columns that name a row for people and in images, whatever number the database gave it."""
    return _KEYS[table.name]


def fingerprint(values: Mapping[str, Any]) -> bytes:
    """Digest of an image."""
    return hashlib.sha256(canonical(values).encode()).digest()


_KEYS: Final = {table.name: tuple(column.name for column in table.primary_key.columns) for table in IMAGED} | {
    "line_spans": ("cluster", "line_id", "ordinal"),
    "org": ("business_group", "valid_from", "recorded_at"),
}


class Head(NamedTuple):
    """The chain's last link."""

    sequence: int
    digest: str


async def append(connection: AsyncConnection, links: Iterable[Link]) -> Head:
    """Append links in order and return the last; the head stays locked until the transaction ends."""
    head = (await connection.execute(select(audit_head).with_for_update())).mappings().one_or_none()
    if head is None:
        raise LedgerError("audit chain has no head: table audit_head was emptied; restore it from a backup")
    sequence, digest = int(head["sequence"]), str(head["digest"])
    values = []
    for link in links:
        images: dict[str, list[dict[str, Any]]] = {}
        for table, row in link.rows:
            images.setdefault(table.name, []).append(image(table, row))
        text = canonical({**link.detail, ROWS: images} if images else link.detail)
        sequence, previous = sequence + 1, digest
        # The digest is taken of what a reader will parse, not of what the caller happened to hand in.
        digest = audit_digest(
            previous,
            sequence=sequence,
            at=instant(link.at),
            actor=link.actor,
            subject=link.subject,
            action=link.action,
            detail=json.loads(text),
        )
        values.append(
            {
                "sequence": sequence,
                "at": link.at,
                "actor": link.actor,
                "subject": link.subject,
                "action": link.action,
                "detail": text,
                "previous": previous,
                "digest": digest,
            }
        )
    if values:
        await connection.execute(insert(audit), values)
        await connection.execute(update(audit_head).values(sequence=sequence, digest=digest))
    return Head(sequence, digest)
