"""Databases of a test's own, and rows in them."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from services.db.session import Database
from services.db.upgrade import upgrade
from services.jobs import submit
from services.jobs.requests import OptimizeRequest
from services.settings import Settings
from tests.services.service import TINY_TASK


def new_sqlite(folder: Path) -> Database:
    """An empty SQLite database with the newest schema."""
    base = Database(f"sqlite:///{folder / 'test.db'}")
    upgrade(base)
    return base


def new_postgres(server_url: str, name: str) -> str:
    """URL of a new, quite empty database of that name on a test's PostgreSQL."""
    server = create_engine(server_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    server.dispose()
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def new_job(base: Database, folder: Path) -> str:
    """A queued job; its id."""
    with base.uncommitted() as session:
        return submit.create_job(session, OptimizeRequest(source=TINY_TASK), Settings(data_dir=folder))
