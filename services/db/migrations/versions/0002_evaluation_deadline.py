"""Add a deadline to evaluations.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing evaluations keep the earlier default of 900 s."""
    with op.batch_alter_table("evaluations") as table:
        table.add_column(sa.Column("deadline_s", sa.Double(), nullable=False, server_default="900"))


def downgrade() -> None:
    """Drop the column; all evaluations share one deadline again."""
    with op.batch_alter_table("evaluations") as table:
        table.drop_column("deadline_s")
