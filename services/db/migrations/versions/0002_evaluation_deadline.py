"""How long an evaluation may take.

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
    """Evaluations stored before this one keep the default that was in force."""
    with op.batch_alter_table("evaluations") as table:
        table.add_column(sa.Column("deadline_s", sa.Double(), nullable=False, server_default="900"))


def downgrade() -> None:
    """Back to one deadline for all."""
    with op.batch_alter_table("evaluations") as table:
        table.drop_column("deadline_s")
