"""Describes storage trouble in one sentence: a full disk, a read-only folder, a damaged database.

Every thread and request hits such trouble repeatedly. `OncePerTrouble` logs it once instead of as hundreds of tracebacks, and
GET /readyz reports it for as long as it lasts (`database_problem`, `folder_problem`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from evaluator.errors import is_disk_trouble
from services.db.outages import is_outage

_FULL = "the disk is full: free some space, and what waits goes on by itself"
_READ_ONLY = (
    "the folder of the database cannot be written: make it writable, and what waits goes on by itself"
)
_DAMAGED = (
    "the database file is damaged: stop the service and put a backup in its place (docs/operations.md); nothing can be "
    "stored until then"
)
_OF_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_IOERR: "the disk with the database fails to read or write",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BYTES = 64 << 10
_PATIENCE_S = 5.0
_AGAIN_S = 600.0
# Writes a fixed row that no worker uses: the check is a real write, and the table does not grow.
_WRITE = """
INSERT INTO turns (kind, device, owner, served_at) VALUES ('readyz', '', '', :now)
ON CONFLICT (kind, device, owner) DO UPDATE SET served_at = excluded.served_at
"""
_READS = ("SELECT max(id) FROM events", "SELECT max(id) FROM jobs", "SELECT max(id) FROM verdicts")


def trouble(error: BaseException | None) -> str | None:
    """Return the sentence for storage trouble or an unavailable database; None for any other error."""
    known = of_storage(error)
    if known is not None or not isinstance(error, DBAPIError) or not is_outage(error):
        return known
    if isinstance(error.orig, sqlite3.Error) and _code(error.orig) not in _BUSY:
        return None  # one of our own statements is wrong
    return f"the database failed ({type(error).__name__}): what runs waits for it"


def of_storage(error: BaseException | None) -> str | None:
    """Return the sentence if the disk, its folder or the database file is at fault, else None."""
    if isinstance(error, OSError):
        return _of_file(error) if is_disk_trouble(error) else None
    found = error.orig if isinstance(error, DBAPIError) else error
    return _OF_SQLITE.get(_code(found)) if isinstance(found, sqlite3.Error) else None


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, without the extended bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def database_problem(engine: Engine) -> str | None:
    """Read and write the database; return why that fails, or None if it works."""
    try:
        url = engine.url
        if url.get_backend_name() == "sqlite" and url.database:
            _use(url.database)
        else:
            with engine.begin() as connection:
                for query in _READS:
                    connection.execute(text(query))
                connection.execute(text(_WRITE), {"now": time.time()})
    except (SQLAlchemyError, sqlite3.Error) as error:
        if isinstance(error, sqlite3.Error) and _code(error) in _BUSY:
            return None  # another connection is writing
        return trouble(error) or type(error).__name__
    return None


def _use(path: str) -> None:
    """Read and write a database file through a new connection; existing ones may still return cached data."""
    address = f"file:{quote(path)}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE_S, isolation_level=None)) as connection:
        for query in _READS:
            connection.execute(query).fetchall()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_WRITE, {"now": time.time()})
        connection.execute("COMMIT")


def folder_problem(folder: Path) -> str | None:
    """Write a temporary file into a folder; return why that fails, or None if it works."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_BYTES))
            file.flush()
    except OSError as error:
        return _of_file(error)
    return None


def _of_file(error: OSError) -> str:
    words = (error.strerror or type(error).__name__).lower()
    return f"the data folder cannot be written ({words}): mend that, and what waits goes on by itself"


class OncePerTrouble(logging.Filter):
    """Log filter that reduces trouble to its sentence, without a traceback, and repeats it only after ten minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`; drop a sentence that was logged in the last ten minutes."""
        error = record.exc_info[1] if record.exc_info else getattr(record, "trouble", None)
        sentence = trouble(error)
        if sentence is None:
            return True
        now_s = time.monotonic()
        if now_s - self._told.get(sentence, -_AGAIN_S) < _AGAIN_S:
            return False
        self._told[sentence] = now_s
        record.msg, record.args = sentence, ()
        record.exc_info = record.exc_text = None
        return True
