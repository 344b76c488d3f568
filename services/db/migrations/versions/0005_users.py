"""Add users, keys, ownership, usage, and the audit log.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import services.db.types

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TIME = services.db.types.UtcDateTime(timezone=True)
_OWNED = ("jobs", "evaluations")


def upgrade() -> None:
    """Add the tables. Existing rows get no owner: all callers see them without keys, and only scope admin once keys exist."""
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("quotas", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=True),
        sa.Column("revoked_at", _TIME, nullable=True),
        sa.Column("replaced_by", sa.String(length=32), nullable=True),
        sa.Column("last_used_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("prefix"),
    )
    op.create_index("ix_api_keys_user_id", "api_keys", ["user_id"])
    op.create_table(
        "login_sessions",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("token_sha256"),
    )
    op.create_index("ix_login_sessions_key_id", "login_sessions", ["key_id"])
    op.create_index("ix_login_sessions_expires_at", "login_sessions", ["expires_at"])
    op.create_table(
        "usage",
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("candidates", sa.Integer(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "day"),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("time", _TIME, nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=True),
        sa.Column("key_prefix", sa.String(length=16), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    # Never use batch_alter_table here or below: it would drop the old jobs table and every row that refers to jobs.
    for table in _OWNED:
        op.add_column(table, sa.Column("owner_id", sa.String(length=32), nullable=True))
        op.create_index(f"{table}_of_owner", table, ["owner_id", "id"])
        op.create_index(f"{table}_of_owner_by_state", table, ["owner_id", "state"])
    op.rename_table("idempotency_keys", "earlier_idempotency_keys")
    op.create_table(
        "idempotency_keys",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        *_idempotency_columns(),
        sa.PrimaryKeyConstraint("owner_id", "key", name="idempotency_keys_of_owners"),
    )
    op.execute(
        "INSERT INTO idempotency_keys (owner_id, key, body_sha256, made_id, created_at) "
        "SELECT '', key, body_sha256, made_id, created_at FROM earlier_idempotency_keys"
    )
    op.drop_table("earlier_idempotency_keys")


def downgrade() -> None:
    """Drop users and keys, and users' idempotency keys, which are not unique without the owner."""
    op.rename_table("idempotency_keys", "later_idempotency_keys")
    op.create_table(
        "idempotency_keys",
        *_idempotency_columns(),
        sa.PrimaryKeyConstraint("key", name="idempotency_keys_pkey"),
    )
    op.execute(
        "INSERT INTO idempotency_keys (key, body_sha256, made_id, created_at) "
        "SELECT key, body_sha256, made_id, created_at FROM later_idempotency_keys WHERE owner_id = ''"
    )
    op.drop_table("later_idempotency_keys")
    for table in _OWNED:
        op.drop_index(f"{table}_of_owner_by_state", table)
        op.drop_index(f"{table}_of_owner", table)
        op.execute(f"ALTER TABLE {table} DROP COLUMN owner_id")
    for table in ("audit", "usage", "login_sessions", "api_keys", "users"):
        op.drop_table(table)


def _idempotency_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("made_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
    ]
