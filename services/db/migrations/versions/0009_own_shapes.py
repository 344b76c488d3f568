"""Add own shapes to evaluations.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing evaluations use sampled shapes."""
    # Not in batch mode: SQLite would copy the table and drop the rows that refer to it.
    op.add_column("evaluations", sa.Column("shapes", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Fail unfinished evaluations with own shapes, which would otherwise be judged at sampled ones without notice."""
    op.execute(
        "UPDATE evaluations SET state = 'failed', reason = 'this version of the service cannot judge at own shapes', "
        "finished_at = CURRENT_TIMESTAMP WHERE shapes IS NOT NULL AND state IN ('queued', 'running')"
    )
    op.execute("ALTER TABLE evaluations DROP COLUMN shapes")
