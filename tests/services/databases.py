"""Databases of a test's own, and rows in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy

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


@contextmanager
def empty_postgres(server_url: str) -> Iterator[str]:
    """URL of a database of one test's own on a server that others use, without a schema."""
    name = f"own_{uuid.uuid4().hex}"
    server = sqlalchemy.create_engine(server_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    try:
        yield sqlalchemy.make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()


@contextmanager
def new_postgres(server_url: str) -> Iterator[Database]:
    """Such a database with the newest schema."""
    with empty_postgres(server_url) as url:
        base = Database(url)
        try:
            upgrade(base)
            yield base
        finally:
            base.close()


def new_job(base: Database, folder: Path) -> str:
    """A queued job; its id."""
    with base.uncommitted() as session:
        return submit.make_job(session, OptimizeRequest(source=TINY_TASK), Settings(data_dir=folder)).id


@contextmanager
def fresh_database(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """An empty database with the newest schema: SQLite in `folder`, or one of its own on the session's PostgreSQL."""
    if kind == "sqlite":
        base = new_sqlite(folder)
        yield base
        base.close()
    else:
        with new_postgres(request.getfixturevalue("postgres_url")) as base:
            yield base


BOTH_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services("postgres"))]
