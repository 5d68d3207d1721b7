"""The side that a line stands on.

A program of 0001 reads a line on the own side as one of the group to itself that is recalled: it grants nothing on it,
bills nothing for it, and cannot move it, for it has no span.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002_from_0001"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no side is the borrow side."""
    op.add_column("lines", sa.Column("side", sa.String(), nullable=True))
