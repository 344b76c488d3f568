"""Private by default: a request's session sees only the rows of its user, whatever queries it runs.

Sessions add a condition to every SELECT, UPDATE and DELETE on the tables below, and to `Session.get`. A route that forgets to
filter by user still shows nothing of other users: it answers as if their rows did not exist. Public data must be in other
tables (the leaderboard) or read with a viewer that sees all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine, event, exists, false
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from services.db.models import Bundle, Candidate, Evaluation, Event, Job, MemoryEntry, Step, Verdict

_OWNED = (Job, Evaluation)
_OF_JOBS = (Candidate, Verdict, Step, Event, Bundle, MemoryEntry)
_OWNER = "owner_id"


@dataclass(frozen=True)
class Viewer:
    """The user that a session acts for.

    Attributes:
        user_id: the owner of rows created in the session; None: no owner.
        sees_all: whether the session sees all users' rows. Without it, and without a user, it sees none.
    """

    user_id: str | None
    sees_all: bool = False


#: For workers, commands on the service's machine, and all callers of a service without keys.
EVERYTHING = Viewer(None, sees_all=True)


class PrivateSession(Session):
    """A session that sees only one viewer's rows.

    Args:
        engine: the database engine.
        viewer: the viewer.
        reads_only: whether the session raises on writes.
    """

    def __init__(self, engine: Engine, viewer: Viewer, *, reads_only: bool = False) -> None:
        super().__init__(engine, expire_on_commit=False, autoflush=not reads_only)
        self.reads_only = reads_only
        self.info[_OWNER] = viewer.user_id
        self.conditions = [] if viewer.sees_all else _conditions(viewer.user_id)


@event.listens_for(PrivateSession, "do_orm_execute")
def _add_conditions(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        _refuse_to_write(state.session)
    conditions = state.session.conditions  # type: ignore[attr-defined]
    if conditions and not state.is_insert and not state.is_column_load and not state.is_relationship_load:
        state.statement = state.statement.options(*conditions)  # type: ignore[attr-defined]


@event.listens_for(PrivateSession, "before_flush")
def _refuse_to_write(session: Session, *_: Any) -> None:
    if session.reads_only:  # type: ignore[attr-defined]
        raise RuntimeError("this session is for reading; to write, use `Database.write`")


def owner_of(session: Session) -> str | None:
    """Return the user that owns rows created in this session."""
    owner: str | None = session.info.get(_OWNER)
    return owner


def sees_all(session: Session) -> bool:
    """Whether a session sees all rows: for an admin, this machine's own processes, or a service without keys."""
    return not getattr(session, "conditions", None)


@lru_cache(maxsize=512)
def _conditions(user_id: str | None) -> list[Any]:
    # The table, because a condition on the Job class would apply to itself; an alias, to stay apart from the query's own jobs.
    jobs = Job.__table__.alias("jobs_of_viewer")
    found = []
    for owned in _OWNED:
        mine = owned.owner_id == user_id if user_id is not None else false()
        found.append(with_loader_criteria(owned, mine, include_aliases=True))
    for model in _OF_JOBS:
        mine = false()
        if user_id is not None:
            mine = exists().where(jobs.c.id == model.job_id, jobs.c.owner_id == user_id)
        found.append(with_loader_criteria(model, mine, include_aliases=True))
    return found
