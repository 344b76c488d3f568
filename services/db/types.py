"""Column types and SQL functions that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, Float
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from services.plain_text import plain


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC time. SQLite stores no time zone, so reads add it again."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; raise ValueError for a naive time."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone is ambiguous")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class epoch_seconds(FunctionElement[float]):  # noqa: N801 - reads as the SQL function that it is
    """The database's clock in seconds since 1970. Leases use it because workers' clocks need not agree."""

    type = Float()
    inherit_cache = True


@compiles(epoch_seconds, "sqlite")
def _epoch_sqlite(element: epoch_seconds, compiler: Any, **kwargs: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42 and Debian 12 has 3.40; julianday is exact to about 0.1 ms
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(epoch_seconds, "postgresql")
def _epoch_postgresql(element: epoch_seconds, compiler: Any, **kwargs: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


def upsert(
    session: Session, model: Any, key: Sequence[str], values: Mapping[str, Any], changed: Mapping[str, Any]
) -> None:
    """Insert a row, or update the row with the same `key` columns."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    row = insert(model).values(**values)
    session.execute(row.on_conflict_do_update(index_elements=key, set_=changed))


def storable_text(text: str) -> str:
    """Replace what a database cannot store: NUL characters and lone surrogates (compilers print both)."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\N{REPLACEMENT CHARACTER}")


def shown_text(text: str) -> str:
    """Return storable text for display, with control characters replaced, see `services.plain_text`. Not for code."""
    return plain(storable_text(text))


def storable_json(value: Any, text: Callable[[str], str] = storable_text) -> Any:
    """Return `value` with storable text, string keys, and None for numbers that JSON lacks (NaN, infinities)."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {text(str(key)): storable_json(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable_json(item, text) for item in value]
    return value


def shown_json(value: Any) -> Any:
    """As `storable_json`, but with `shown_text` for every string; for values that hold no sources."""
    return storable_json(value, shown_text)


def dump_json(value: Any) -> str:
    """Serialize a value for a JSON column; NaN and infinities become null, since PostgreSQL refuses them."""
    return json.dumps(storable_json(value), allow_nan=False, separators=(",", ":"))
