"""Memory across jobs.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import services.db.types

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table empty: jobs that ended before this migration have no entries."""
    op.create_table(
        "memory",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("task_sha256", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=16), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("features", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", services.db.types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "kind", "sha256", name="one_entry_per_lesson"),
    )
    with op.batch_alter_table("memory", schema=None) as batch_op:
        batch_op.create_index("memory_of_owner", ["owner", "device", "job_id", "id"], unique=False)


def downgrade() -> None:
    """Drop the table and all lessons in it."""
    with op.batch_alter_table("memory", schema=None) as batch_op:
        batch_op.drop_index("memory_of_owner")

    op.drop_table("memory")
