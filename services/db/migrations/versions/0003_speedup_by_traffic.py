"""Add the speedup weighted by the user's traffic, next to the unweighted one.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = ("traffic_speedup", "traffic_low", "traffic_high")


def upgrade() -> None:
    """Add the columns; existing verdicts have the figure only in their body."""
    with op.batch_alter_table("verdicts") as table:
        for name in _COLUMNS:
            table.add_column(sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop the columns; only the unweighted figure remains."""
    with op.batch_alter_table("verdicts") as table:
        for name in _COLUMNS:
            table.drop_column(name)
