"""Alembic's entry point: runs migrations in one transaction, under a lock, on the configured database."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from services.db.models import Base
from services.db.session import Database, database
from services.settings import get_settings

_LOCK = 0x6B65726E  # any number, the same in every process


def run() -> None:
    """Run the missing migrations."""
    bound: Database = context.config.attributes.get("database") or database(get_settings().database)
    with bound.write() as session:
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=connection.dialect.name == "sqlite",  # SQLite alters a table by copying it
            compare_type=True,
        )
        context.run_migrations()


run()
