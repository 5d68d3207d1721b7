"""The ledger's first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_INSTANT = sa.DateTime(timezone=True)
_OPEN = sa.text("ended_at IS NULL")
_UNPOSTED = sa.text("ended_at IS NULL OR posted_until IS NULL OR posted_until <> ended_at")


def upgrade() -> None:
    """Make every table, and the link that the audit chain begins with."""
    op.create_table(
        "audit",
        sa.Column("sequence", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("previous", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
    )
    op.create_index("ix_audit_subject", "audit", ["subject", "sequence"])
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_audit_head_single"),
        sa.PrimaryKeyConstraint("id", name="pk_audit_head"),
    )
    op.create_table(
        "keys",
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_keys"),
    )
    op.create_table(
        "org",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("business_group", sa.String(), nullable=False),
        sa.Column("cost_center", sa.String(), nullable=False),
        sa.Column("department", sa.String(), nullable=False),
        sa.Column("valid_from", _INSTANT, nullable=False),
        sa.Column("valid_to", _INSTANT, nullable=True),
        sa.Column("recorded_at", _INSTANT, nullable=False),
        sa.CheckConstraint("valid_to > valid_from", name="ck_org_validity"),
        sa.PrimaryKeyConstraint("id", name="pk_org"),
        sa.UniqueConstraint(
            "business_group", "valid_from", "recorded_at", name="uq_org_business_group_valid_from_recorded_at"
        ),
    )
    op.create_table(
        "pools",
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("next_line", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "pool", name="pk_pools"),
    )
    op.create_table(
        "uses",
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("workload_uid", sa.String(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("workload_namespace", sa.String(), nullable=False),
        sa.Column("workload_name", sa.String(), nullable=False),
        sa.Column("workload_job", sa.String(), nullable=False),
        sa.Column("business_group", sa.String(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("admitted_at", _INSTANT, nullable=False),
        sa.Column("gone_at", _INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("cluster", "workload_uid", "term", "pool", name="pk_uses"),
    )
    op.create_table(
        "demands",
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("demand_id", sa.String(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("lender", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("workload_uid", sa.String(), nullable=True),
        sa.Column("workload_namespace", sa.String(), nullable=True),
        sa.Column("workload_name", sa.String(), nullable=True),
        sa.Column("workload_job", sa.String(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("pods", sa.Integer(), nullable=False),
        sa.Column("idle", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("opened_at", _INSTANT, nullable=False),
        sa.Column("due_at", _INSTANT, nullable=False),
        sa.Column("moved_at", _INSTANT, nullable=True),
        sa.Column("ended_at", _INSTANT, nullable=True),
        sa.CheckConstraint("gpus > 0", name="ck_demands_gpus"),
        sa.CheckConstraint("idle >= 0", name="ck_demands_idle"),
        sa.ForeignKeyConstraint(["cluster", "pool"], ["pools.cluster", "pools.pool"], name="fk_demands_pools"),
        sa.PrimaryKeyConstraint("cluster", "demand_id", "incarnation", name="pk_demands"),
    )
    op.create_index(
        "ix_demands_live",
        "demands",
        ["cluster", "demand_id"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index("ix_demands_revision", "demands", ["cluster", "pool", "revision"])
    op.create_index(
        "ix_demands_live_of_pool",
        "demands",
        ["cluster", "pool"],
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_table(
        "guarantees",
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("business_group", sa.String(), nullable=False),
        sa.Column("in_force", sa.Integer(), nullable=False),
        sa.Column("releasing", sa.Integer(), nullable=False),
        sa.Column("recalled", sa.Boolean(), nullable=False),
        sa.Column("slack_since", _INSTANT, nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("releasing >= 0 AND releasing <= in_force", name="ck_guarantees_releasing"),
        sa.ForeignKeyConstraint(["cluster", "pool"], ["pools.cluster", "pools.pool"], name="fk_guarantees_pools"),
        sa.PrimaryKeyConstraint("cluster", "pool", "business_group", name="pk_guarantees"),
    )
    op.create_table(
        "lines",
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("line_id", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("lender", sa.String(), nullable=False),
        sa.Column("borrower", sa.String(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("workload_uid", sa.String(), nullable=False),
        sa.Column("workload_namespace", sa.String(), nullable=False),
        sa.Column("workload_name", sa.String(), nullable=False),
        sa.Column("workload_job", sa.String(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("replaces", sa.String(), nullable=True),
        sa.Column("demand", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("offered_at", _INSTANT, nullable=False),
        sa.Column("granted_at", _INSTANT, nullable=True),
        sa.Column("moved_at", _INSTANT, nullable=False),
        sa.Column("ended_at", _INSTANT, nullable=True),
        sa.CheckConstraint("gpus > 0", name="ck_lines_gpus"),
        sa.ForeignKeyConstraint(["cluster", "pool"], ["pools.cluster", "pools.pool"], name="fk_lines_pools"),
        sa.PrimaryKeyConstraint("cluster", "line_id", name="pk_lines"),
    )
    op.create_index("ix_lines_offered_at", "lines", ["offered_at", "number"])
    op.create_index(
        "ix_lines_open",
        "lines",
        ["cluster", "pool"],
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index("ix_lines_revision", "lines", ["cluster", "pool", "revision"])
    op.create_index("ix_lines_workload_uid", "lines", ["workload_uid"])
    op.create_table(
        "line_spans",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("line_id", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("lender", sa.String(), nullable=False),
        sa.Column("borrower", sa.String(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("workload_uid", sa.String(), nullable=False),
        sa.Column("workload_namespace", sa.String(), nullable=False),
        sa.Column("workload_name", sa.String(), nullable=False),
        sa.Column("workload_job", sa.String(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("started_at", _INSTANT, nullable=False),
        sa.Column("ended_at", _INSTANT, nullable=True),
        sa.Column("posted_until", _INSTANT, nullable=True),
        sa.CheckConstraint("ended_at >= started_at", name="ck_line_spans_order"),
        sa.CheckConstraint("gpus > 0", name="ck_line_spans_gpus"),
        sa.ForeignKeyConstraint(["cluster", "line_id"], ["lines.cluster", "lines.line_id"], name="fk_line_spans_lines"),
        sa.PrimaryKeyConstraint("id", name="pk_line_spans"),
        sa.UniqueConstraint("cluster", "line_id", "ordinal", name="uq_line_spans_cluster_line_id_ordinal"),
    )
    op.create_index(
        "ix_line_spans_open",
        "line_spans",
        ["cluster", "line_id"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index(
        "ix_line_spans_unposted",
        "line_spans",
        ["cluster", "pool"],
        sqlite_where=_UNPOSTED,
        postgresql_where=_UNPOSTED,
    )
    op.create_table(
        "postings",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("span_id", _ROW_ID, nullable=False),
        sa.Column("hour", _INSTANT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reversal", sa.Boolean(), nullable=False),
        sa.Column("half", sa.String(), nullable=False),
        sa.Column("entry", sa.String(), nullable=False),
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("line_id", sa.String(), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("posted_at", _INSTANT, nullable=False),
        sa.CheckConstraint("half IN ('borrower', 'lender')", name="ck_postings_half"),
        sa.ForeignKeyConstraint(["span_id"], ["line_spans.id"], name="fk_postings_line_spans"),
        sa.PrimaryKeyConstraint("id", name="pk_postings"),
        sa.UniqueConstraint(
            "span_id", "hour", "attempt", "reversal", "half", name="uq_postings_span_id_hour_attempt_reversal_half"
        ),
    )
    op.create_index("ix_postings_account", "postings", ["account", "hour"])
    op.create_index("ix_postings_hour", "postings", ["cluster", "pool", "hour"])
    op.execute(f"INSERT INTO audit_head (id, sequence, digest) VALUES (1, 0, '{'0' * 64}')")


def downgrade() -> None:
    """History is append-only: there is no way back but a backup."""
    raise NotImplementedError("restore the backup that was taken before the upgrade")
