"""Engines and sessions.

On SQLite a write session begins with BEGIN IMMEDIATE. Otherwise two workers that both read and then write would
deadlock, and SQLite ends such a deadlock with "database is locked" without waiting for busy_timeout.
"""

from __future__ import annotations

import copy
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session

from services.db.privacy import EVERYTHING, PrivateSession, Viewer
from services.db.trouble import database_problem
from services.db.types import dump_json

_BUSY_TIMEOUT_MS = 30_000
# SQLAlchemy's default maximum, but all connections stay open: PostgreSQL starts a process for each new one.
_MOST_CONNECTIONS = 15
_WRITE_OPTION = "kernelwright_write"


class Database:
    """One database: an engine with read sessions and write transactions.

    Args:
        url: SQLAlchemy URL of SQLite or PostgreSQL (`postgresql://` means psycopg 3).
    """

    def __init__(self, url: str) -> None:
        self.engine = _make_engine(url)
        self._write_engine = self.engine.execution_options(**{_WRITE_OPTION: True})
        self._read_engine = self.engine
        if self.engine.dialect.name == "postgresql":
            # Either way each statement sees committed data, but a transaction costs two more round trips.
            self._read_engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._viewer = EVERYTHING

    def seen_by(self, viewer: Viewer) -> Database:
        """Return the same database with sessions that see only the viewer's rows and create rows that the viewer owns."""
        seen = copy.copy(self)
        seen._viewer = viewer
        return seen

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a read-only session; it raises on writes."""
        with self._session(self._read_engine, reads_only=True) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a write transaction: committed at the end, rolled back if the block raises."""
        with self._session(self._write_engine) as session, session.begin():
            yield session

    @contextmanager
    def uncommitted(self) -> Iterator[Session]:
        """Open a writable session that commits only when the caller calls commit."""
        with self._session(self._write_engine) as session:
            yield session

    def answers(self) -> bool:
        """Whether the database can be read and written now."""
        return database_problem(self.engine) is None

    def _session(self, engine: Engine, *, reads_only: bool = False) -> Session:
        return PrivateSession(engine, self._viewer, reads_only=reads_only)

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


@lru_cache(maxsize=8)
def database(url: str) -> Database:
    """Return the process-wide `Database` of a URL."""
    return Database(url)


def _make_engine(url_text: str) -> Engine:
    url = make_url(url_text)
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    # Database errors are logged, and statement parameters hold users' sources and key digests.
    options = {"json_serializer": dump_json, "json_deserializer": from_json, "hide_parameters": True}
    if url.get_backend_name() != "sqlite":
        return create_engine(
            url,
            **options,
            pool_size=_MOST_CONNECTIONS,
            max_overflow=0,
            pool_use_lifo=True,
            pool_pre_ping=True,
        )
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(url, **options, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # _begin_sqlite begins transactions, not the driver
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    _use_write_ahead_log(cursor)
    # NORMAL loses nothing if a process is killed, and only the last commits if the machine loses power.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Waits for other processes that open a new database at the same time, which SQLite does not do by itself here."""
    until = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
