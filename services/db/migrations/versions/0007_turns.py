"""Add priorities, and the time at which each user was last served.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LEASED = ("jobs", "evaluations")


def upgrade() -> None:
    """Add the columns and the table. Waiting rows keep their order: all get the default priority."""
    for table in _LEASED:
        # Not in batch mode: SQLite would copy the table and drop the rows that refer to it.
        op.add_column(table, sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        op.create_index(f"{table}_by_turn", table, ["state", "device", "owner_id", "priority", "id"])
    op.create_table(
        "turns",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("device", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=32), nullable=False),
        sa.Column("served_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "device", "owner"),
    )


def downgrade() -> None:
    """Drop them; waiting rows are served by age again."""
    op.drop_table("turns")
    for table in _LEASED:
        op.drop_index(f"{table}_by_turn", table)
        op.execute(f"ALTER TABLE {table} DROP COLUMN priority")
