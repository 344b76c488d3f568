"""Databases of a test's own, and rows in them."""

from __future__ import annotations

import functools
import tempfile
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


@functools.cache
def newest_sqlite() -> bytes:
    """A file of SQLite with the newest schema and no rows: migrations take longer than most tests that need them."""
    with tempfile.TemporaryDirectory() as folder:
        base = Database(f"sqlite:///{folder}/test.db")
        upgrade(base)
        base.close()
        return (Path(folder) / "test.db").read_bytes()


@functools.cache
def _newest_postgres(server_url: str) -> str:
    """Name of a database with the newest schema and no rows, which others on its server are copies of; it goes with the server."""
    name = f"newest_{uuid.uuid4().hex}"
    _on_server(server_url, f"CREATE DATABASE {name}")
    base = Database(_url_of(server_url, name))
    upgrade(base)
    base.close()  # one that is in use cannot be copied
    return name


def new_sqlite(folder: Path) -> Database:
    """An empty SQLite database with the newest schema."""
    file = folder / "test.db"
    file.write_bytes(newest_sqlite())
    return Database(f"sqlite:///{file}")


@contextmanager
def empty_postgres(server_url: str, template: str = "template1") -> Iterator[str]:
    """URL of a database of one test's own on a server that others use, without a schema unless its template has one."""
    name = f"own_{uuid.uuid4().hex}"
    _on_server(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield _url_of(server_url, name)
    finally:
        _on_server(server_url, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def new_postgres(server_url: str) -> Iterator[Database]:
    """Such a database with the newest schema."""
    with empty_postgres(server_url, _newest_postgres(server_url)) as url:
        base = Database(url)
        try:
            yield base
        finally:
            base.close()


def _on_server(url: str, command: str) -> None:
    server = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(command))


def _url_of(server_url: str, name: str) -> str:
    return sqlalchemy.make_url(server_url).set(database=name).render_as_string(hide_password=False)


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
