"""An evaluation may name the shapes at which it is judged.

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
    """Those so far were judged at sampled ones."""
    # Not in batch mode: SQLite would copy the table, and drop what refers to it.
    op.add_column("evaluations", sa.Column("shapes", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """What still waits would be judged at sampled ones, and whoever asked would not know: it ends."""
    op.execute(
        "UPDATE evaluations SET state = 'failed', reason = 'this version of the service cannot judge at own shapes', "
        "finished_at = CURRENT_TIMESTAMP WHERE shapes IS NOT NULL AND state IN ('queued', 'running')"
    )
    op.execute("ALTER TABLE evaluations DROP COLUMN shapes")
