"""Retries work while the database is unavailable: it restarts, fails over, or is short of space or connections.

A worker must not lose minutes of judging because the database restarted. Retried work must be idempotent: a commit whose
response was lost may have succeeded.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError

PATIENCE_S = 600.0
_PROGRAM_LIMITS = "54"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
Result = TypeVar("Result")
Given = ParamSpec("Given")
_log = logging.getLogger(__name__)


def is_outage(error: BaseException) -> bool:
    """Whether the database was unavailable, rather than rejecting the statement (PEP 249's operational errors).

    Those errors include PostgreSQL's class 54 (program limits, such as a value too long for an index), which is no outage: it
    never goes away, and a caller would wait forever. A damaged SQLite file counts as an outage: it works again once the
    operator has restored it.
    """
    if isinstance(error, DatabaseError) and getattr(error.orig, "sqlite_errorcode", None) in _DAMAGED:
        return True
    if str(getattr(getattr(error, "orig", None), "sqlstate", None) or "").startswith(_PROGRAM_LIMITS):
        return False
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, (OperationalError, InterfaceError))


def through_outages(
    work: Callable[[], Result], *, give_up: Callable[[], bool] = lambda: False, patience_s: float = PATIENCE_S
) -> Result:
    """Run `work`, and retry it after outages; it must be idempotent.

    Args:
        work: one whole transaction.
        give_up: called before each retry; True raises the error instead, for example because the process is stopping.
        patience_s: how long an outage may last before its error is raised.
    """
    began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except DBAPIError as error:
            away_s = time.monotonic() - began_s
            if not is_outage(error) or away_s > patience_s or give_up():
                raise
            words = "the database is away (%s); trying again"
            _log.warning(words, type(error.orig).__name__, extra={"trouble": error})
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Stoppable(Protocol):
    def stopping(self) -> bool: ...


Owner = TypeVar("Owner", bound=_Stoppable)


def outliving(
    method: Callable[Concatenate[Owner, Given], Result],
) -> Callable[Concatenate[Owner, Given], Result]:
    """Decorate a method to retry after outages until its owner is `stopping`; the method must be idempotent."""

    @wraps(method)
    def patient(self: Owner, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return through_outages(lambda: method(self, *args, **kwargs), give_up=self.stopping)

    return patient
