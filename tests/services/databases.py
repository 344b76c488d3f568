"""Databases of a test's own, and rows in them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

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


def new_job(base: Database, folder: Path) -> str:
    """A queued job; its id."""
    with base.uncommitted() as session:
        return submit.create_job(session, OptimizeRequest(source=TINY_TASK), Settings(data_dir=folder))


@contextmanager
def fresh_database(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """An empty database with the newest schema: SQLite in `folder`, or one of its own on the session's PostgreSQL."""
    if kind == "sqlite":
        base = new_sqlite(folder)
    else:
        server = Database(request.getfixturevalue("postgres_url"))
        name = f"test_{secrets.token_hex(6)}"
        with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        base = Database(server.engine.url.set(database=name).render_as_string(hide_password=False))
        server.close()
        upgrade(base)
    yield base
    base.close()


BOTH_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services("postgres"))]
