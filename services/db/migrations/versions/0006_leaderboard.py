"""Add the global leaderboard, and columns for lists of jobs and candidates.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

import services.db.types

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ADDED: dict[str, tuple[str, Any]] = {
    "jobs": ("tally", sa.JSON(none_as_null=True)),
    "verdicts": ("outline", sa.JSON(none_as_null=True)),
    "candidates": ("lines", sa.Integer()),
}


def upgrade() -> None:
    """Create empty boards. Readers compute the values that existing rows lack in the new columns."""
    op.create_table(
        "leaderboards",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("task_sha256", sa.String(length=64), nullable=False),
        sa.Column("task_name", sa.String(length=200), nullable=False),
        sa.Column("harness", sa.String(length=16), nullable=False),
        sa.Column("platform", sa.String(length=16), nullable=False),
        sa.Column("device", sa.String(length=16), nullable=False),
        sa.Column("device_type", sa.String(length=200), nullable=False),
        sa.Column("versions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("changed_at", services.db.types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("task_sha256", "harness", "platform", name="one_board_per_platform"),
    )
    op.create_index("leaderboards_by_task", "leaderboards", ["harness", "task_name", "id"])
    op.create_table(
        "leaderboard_entries",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("board_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("winner_sha256", sa.String(length=64), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("geomean", sa.Float(), nullable=False),
        sa.Column("ci_low", sa.Float(), nullable=False),
        sa.Column("ci_high", sa.Float(), nullable=False),
        sa.Column("worst", sa.Float(), nullable=False),
        sa.Column("shapes", sa.Integer(), nullable=False),
        sa.Column("roofline_share", sa.Float(), nullable=True),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("entered_at", services.db.types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["leaderboards.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id"),
    )
    for name, columns in (
        ("entries_in_order", ["board_id", "live", "geomean", "id"]),
        ("entries_by_origin", ["board_id", "live", "origin", "geomean", "id"]),
        ("entries_by_model", ["board_id", "live", "model", "geomean", "id"]),
        ("entries_of_source", ["board_id", "winner_sha256"]),
    ):
        op.create_index(name, "leaderboard_entries", columns)
    op.create_table(
        "leaderboard_firsts",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("board_id", sa.Integer(), nullable=False),
        sa.Column("entry_id", sa.Integer(), nullable=False),
        sa.Column("since", services.db.types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["leaderboards.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["entry_id"], ["leaderboard_entries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("firsts_of_board", "leaderboard_firsts", ["board_id", "id"])
    op.create_index("ix_leaderboard_firsts_entry_id", "leaderboard_firsts", ["entry_id"])
    op.create_index("candidates_in_order", "candidates", ["job_id", "number"])
    for table, (name, kind) in _ADDED.items():
        # Not in batch mode: SQLite would copy the table, and these rows are large.
        op.add_column(table, sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Drop the boards and the added columns; everything else stays."""
    op.drop_index("candidates_in_order", table_name="candidates")
    for table, (name, _) in _ADDED.items():
        op.drop_column(table, name)
    op.drop_table("leaderboard_firsts")
    op.drop_table("leaderboard_entries")
    op.drop_table("leaderboards")
