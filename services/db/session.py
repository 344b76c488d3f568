"""Engines and sessions.

A write session begins with BEGIN IMMEDIATE on SQLite: two workers that both read and then write would otherwise
deadlock, and SQLite ends such a deadlock with "database is locked" without waiting for busy_timeout.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from services.db.privacy import EVERYTHING, PrivateSession, Viewer
from services.db.trouble import database_problem
from services.db.types import dump_json

_BUSY_TIMEOUT_MS = 30_000
# SQLAlchemy keeps 5 and makes up to 10 more for as long as each is used: in a rush every request paid for a new process of the
# server's that knows no table and no statement yet. As many, but kept; those used last are taken first, which know most.
_MOST_CONNECTIONS = 15
_RESTED_S, _RESTS_SINCE = 1.0, "kernelwright_rests_since"
_WRITE_OPTION = "kernelwright_write"


class Database:
    """One database: an engine, with read sessions and write transactions.

    Args:
        url: SQLAlchemy URL of SQLite or PostgreSQL (`postgresql://` means psycopg 3).
    """

    def __init__(self, url: str) -> None:
        self.engine = _make_engine(url)
        self._write_engine = self.engine.execution_options(**{_WRITE_OPTION: True})
        self._read_engine = self.engine
        if self.engine.dialect.name == "postgresql":
            # Each statement sees what is committed either way, and a transaction costs two more trips to the server.
            self._read_engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._viewer = EVERYTHING

    def seen_by(self, viewer: Viewer) -> Database:
        """The same database with sessions that see what `viewer` may see, and make rows that are the viewer's."""
        seen = copy.copy(self)
        seen._viewer = viewer
        return seen

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading, which refuses to write."""
        with self._session(self._read_engine, reads_only=True) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A write transaction: committed at the end, rolled back when the block raises."""
        with self._session(self._write_engine) as session, session.begin():
            yield session

    @contextmanager
    def uncommitted(self) -> Iterator[Session]:
        """A session that can write and commits only when told to."""
        with self._session(self._write_engine) as session:
            yield session

    def answers(self) -> bool:
        """Whether the database can be read and written at this moment."""
        return database_problem(self) is None

    def _session(self, engine: Engine, *, reads_only: bool = False) -> Session:
        return PrivateSession(engine, self._viewer, reads_only=reads_only)

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


@lru_cache(maxsize=8)
def database(url: str) -> Database:
    """The process-wide `Database` of a URL."""
    return Database(url)


def _make_engine(url_text: str) -> Engine:
    url = make_url(url_text)
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            Path(url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        timeout = {"timeout": _BUSY_TIMEOUT_MS / 1000}
        engine = create_engine(
            url,
            json_serializer=dump_json,
            json_deserializer=from_json,
            hide_parameters=True,
            connect_args=timeout,
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    # Errors of the database are logged, and what was to be stored are people's sources and digests of their keys.
    engine = create_engine(
        url,
        json_serializer=dump_json,
        json_deserializer=from_json,
        hide_parameters=True,
        pool_size=_MOST_CONNECTIONS,
        max_overflow=0,
        pool_use_lifo=True,
    )
    _ping_after_rest(engine)
    return engine


def _ping_after_rest(engine: Engine) -> None:
    """Whether a connection still stands is asked where it has rested for a while, and not at every use as `pool_pre_ping`
    does: that is one more trip to the server in each session, and a request has two.
    """

    def rests(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_RESTS_SINCE] = time.monotonic()

    def used(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
        since = record.info.get(_RESTS_SINCE)
        if since is None or time.monotonic() - since < _RESTED_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            # all others are no better: the pool connects anew
            raise InvalidatePoolError(str(error)) from error

    event.listen(engine, "checkin", rests)
    event.listen(engine, "checkout", used)


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite, not guessed by the driver
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    # NORMAL loses nothing when a process is killed, only the last commits when the machine loses power
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
