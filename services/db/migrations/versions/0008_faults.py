"""Count internal faults separately from workers that died.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_LEASED = ("jobs", "evaluations")


def upgrade() -> None:
    """Add the column with 0: it is unknown which earlier attempts were faults."""
    for table in _LEASED:
        # Not in batch mode: SQLite would copy the table and drop the rows that refer to it.
        op.add_column(table, sa.Column("faults", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Merge both counts into one."""
    for table in _LEASED:
        rows = sa.table(table, sa.column("stalled_attempts"), sa.column("faults"))
        op.execute(sa.update(rows).values(stalled_attempts=rows.c.stalled_attempts + rows.c.faults))
        op.execute(f"ALTER TABLE {table} DROP COLUMN faults")
