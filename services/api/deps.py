"""What routes ask for, as annotated types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Annotated, cast

from fastapi import Depends, Header, Query, Request
from sqlalchemy.orm import Session

from services.db.session import Database
from services.settings import Settings

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


# Both are coroutines since plain functions would each take a turn in the pool of threads, at every request.
async def get_settings(request: Request) -> Settings:
    """The settings that the application was made with."""
    return cast(Settings, request.app.state.settings)


async def get_database(request: Request) -> Database:
    """The application's database, for routes that outlive a session (streams)."""
    return cast(Database, request.app.state.database)


DatabaseDep = Annotated[Database, Depends(get_database)]
SettingsDep = Annotated[Settings, Depends(get_settings)]


def get_session(request: Request, database: DatabaseDep) -> Iterator[Session]:
    """A session that can write exactly when the method may; whoever writes commits, the rest is rolled back."""
    opened: AbstractContextManager[Session]
    opened = database.read() if request.method in _SAFE_METHODS else database.uncommitted()
    with opened as session:
        yield session


SessionDep = Annotated[Session, Depends(get_session)]
IdempotencyKey = Annotated[
    str | None,
    Header(description="same key and body within 24 hours: the same job, made once", max_length=200),
]
Limit = Annotated[int, Query(ge=1, le=100, description="how many at most")]
After = Annotated[
    str | None, Query(min_length=1, max_length=400, description="`next` of the page before, as it came")
]
