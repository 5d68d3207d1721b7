"""Tables of the ledger, as they stand after the last migration.

    pools ─┬─ guarantees
           ├─ demands          one row per opening; an ended row stays
           └─ lines ── line_spans ── postings
    uses   org   keys          audit ── audit_head

`lines`, `demands`, `guarantees` and `pools` hold the present and move by compare-and-set; everything else only grows.
What a row looked like before is in the audit chain, which holds an image of every row whenever it is written.
"""

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)


class UtcInstant(TypeDecorator[datetime]):
    """An instant: aware on both sides, UTC in the database (SQLite keeps no offset)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Write UTC; a naive value is a bug of the caller."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"instant {value.isoformat()!r} has no offset; give it a timezone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Read UTC, whatever the session's timezone is."""
        if value is None:
            return None
        assert isinstance(value, datetime)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


RowId = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite counts up INTEGER keys only; they have 64 bits there."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _name(name: str, **options: Any) -> Column[str]:
    return Column(name, String, nullable=False, **options)


def _workload(*, nullable: bool = False) -> tuple[Column[str], ...]:
    """Columns of a `WorkloadKey`."""
    return tuple(Column(f"workload_{part}", String, nullable=nullable) for part in ("uid", "namespace", "name", "job"))


def _of_pool() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["cluster", "pool"], ["pools.cluster", "pools.pool"])


pools = Table(
    "pools",
    metadata,
    _name("cluster", primary_key=True),
    _name("pool", primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("next_line", BigInteger, nullable=False),
)
"""One row per pool; locked by whoever writes anything of the pool."""

guarantees = Table(
    "guarantees",
    metadata,
    _name("cluster", primary_key=True),
    _name("pool", primary_key=True),
    _name("business_group", primary_key=True),
    Column("in_force", Integer, nullable=False),
    Column("releasing", Integer, nullable=False),
    Column("recalled", Boolean, nullable=False),
    Column("slack_since", UtcInstant),
    Column("version", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    _of_pool(),
    CheckConstraint("releasing >= 0 AND releasing <= in_force", name="releasing"),
)

lines = Table(
    "lines",
    metadata,
    _name("cluster", primary_key=True),
    _name("line_id", primary_key=True),
    _name("pool"),
    Column("number", BigInteger, nullable=False),
    _name("lender"),
    _name("borrower"),
    Column("side", String),
    Column("gpus", Integer, nullable=False),
    *_workload(),
    Column("term", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("replaces", String),
    Column("demand", String),
    Column("reason", Text, nullable=False),
    Column("offered_at", UtcInstant, nullable=False),
    Column("granted_at", UtcInstant),
    Column("moved_at", UtcInstant, nullable=False),
    Column("ended_at", UtcInstant),
    _of_pool(),
    CheckConstraint("gpus > 0", name="gpus"),
    Index(
        "ix_lines_open",
        "cluster",
        "pool",
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
    Index("ix_lines_offered_at", "offered_at", "number"),
    Index("ix_lines_revision", "cluster", "pool", "revision"),
    Index("ix_lines_workload_uid", "workload_uid"),
)

line_spans = Table(
    "line_spans",
    metadata,
    Column("id", RowId, primary_key=True),
    _name("cluster"),
    _name("line_id"),
    Column("ordinal", Integer, nullable=False),
    _name("pool"),
    _name("lender"),
    _name("borrower"),
    Column("gpus", Integer, nullable=False),
    *_workload(),
    Column("term", Integer, nullable=False),
    Column("started_at", UtcInstant, nullable=False),
    Column("ended_at", UtcInstant),
    Column("posted_until", UtcInstant),
    UniqueConstraint("cluster", "line_id", "ordinal"),
    ForeignKeyConstraint(["cluster", "line_id"], ["lines.cluster", "lines.line_id"]),
    CheckConstraint("gpus > 0", name="gpus"),
    CheckConstraint("ended_at >= started_at", name="order"),
    Index(
        "ix_line_spans_open",
        "cluster",
        "line_id",
        unique=True,
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
    Index(
        "ix_line_spans_unposted",
        "cluster",
        "pool",
        sqlite_where=text("ended_at IS NULL OR posted_until IS NULL OR posted_until <> ended_at"),
        postgresql_where=text("ended_at IS NULL OR posted_until IS NULL OR posted_until <> ended_at"),
    ),
)
"""What is billed. `ended_at` is written once; `posted_until` is how far the postings have got."""

postings = Table(
    "postings",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("span_id", RowId, ForeignKey("line_spans.id"), nullable=False),
    Column("hour", UtcInstant, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reversal", Boolean, nullable=False),
    Column("half", String, nullable=False),
    Column("entry", String, nullable=False),
    _name("account"),
    _name("cluster"),
    _name("pool"),
    _name("line_id"),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("posted_at", UtcInstant, nullable=False),
    UniqueConstraint("span_id", "hour", "attempt", "reversal", "half"),
    CheckConstraint("half IN ('borrower', 'lender')", name="half"),
    Index("ix_postings_hour", "cluster", "pool", "hour"),
    Index("ix_postings_account", "account", "hour"),
)

demands = Table(
    "demands",
    metadata,
    _name("cluster", primary_key=True),
    Column("demand_id", String, primary_key=True),
    Column("incarnation", BigInteger, primary_key=True),
    _name("pool"),
    _name("lender"),
    Column("kind", String, nullable=False),
    *_workload(nullable=True),
    Column("gpus", Integer, nullable=False),
    Column("pods", Integer, nullable=False),
    Column("idle", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("opened_at", UtcInstant, nullable=False),
    Column("due_at", UtcInstant, nullable=False),
    Column("moved_at", UtcInstant),
    Column("ended_at", UtcInstant),
    _of_pool(),
    CheckConstraint("gpus > 0", name="gpus"),
    CheckConstraint("idle >= 0", name="idle"),
    Index("ix_demands_revision", "cluster", "pool", "revision"),
    Index(
        "ix_demands_live",
        "cluster",
        "demand_id",
        unique=True,
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
    Index(
        "ix_demands_live_of_pool",
        "cluster",
        "pool",
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
)
"""`incarnation` is the pool's revision at which the row was begun: a demand that ended and waits again is a new row."""

uses = Table(
    "uses",
    metadata,
    _name("cluster", primary_key=True),
    Column("workload_uid", String, primary_key=True),
    Column("term", Integer, primary_key=True),
    _name("pool", primary_key=True),
    *_workload()[1:],
    _name("business_group"),
    Column("gpus", Integer, nullable=False),
    Column("admitted_at", UtcInstant, nullable=False),
    Column("gone_at", UtcInstant),
)

org = Table(
    "org",
    metadata,
    Column("id", RowId, primary_key=True),
    _name("business_group"),
    _name("cost_center"),
    _name("department"),
    Column("valid_from", UtcInstant, nullable=False),
    Column("valid_to", UtcInstant),
    Column("recorded_at", UtcInstant, nullable=False),
    CheckConstraint("valid_to > valid_from", name="validity"),
    UniqueConstraint("business_group", "valid_from", "recorded_at"),
)

keys = Table(
    "keys",
    metadata,
    Column("scope", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("at", UtcInstant, nullable=False),
)
"""Idempotency keys: of transactions (scope `<cluster>/<pool>`) and of notes (scope `note`)."""

audit = Table(
    "audit",
    metadata,
    Column("sequence", RowId, primary_key=True, autoincrement=False),
    Column("at", UtcInstant, nullable=False),
    Column("actor", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("action", String, nullable=False),
    Column("detail", Text, nullable=False),
    Column("previous", String, nullable=False),
    Column("digest", String, nullable=False),
    Index("ix_audit_subject", "subject", "sequence"),
)
"""The hash chain. `detail` is JSON as text: a database that rewrites numbers would break digests."""

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", String, nullable=False),
    CheckConstraint("id = 1", name="single"),
)
"""One row: the last link; locked by whoever appends."""

IMAGED: Final[tuple[Table, ...]] = (pools, guarantees, lines, line_spans, demands, uses, org, keys)
"""Tables whose rows are written into the audit chain whenever they are written here."""
