"""Private by default: a session of a request sees the rows of one user, whatever query is made in it.

The condition is added to every SELECT, UPDATE and DELETE that names one of the tables below, also to `Session.get`, so that a
route that forgets about users shows nothing of others: it answers as if their rows did not exist. What everybody may see
(a leaderboard) needs a session that says so.
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
    """For whom a session is.

    Attributes:
        user_id: the user that rows made in the session belong to; None: nobody.
        sees_all: whether it sees everybody's rows. Without it, and without a user, it sees none.
    """

    user_id: str | None
    sees_all: bool = False


#: Workers, commands on the service's machine, and everybody where there are no keys.
EVERYTHING = Viewer(None, sees_all=True)


class PrivateSession(Session):
    """A session of one viewer's.

    Args:
        engine: the database's.
        viewer: for whom.
        reads_only: whether it refuses to write.
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
        raise RuntimeError("this session is for reading; whoever writes takes `Database.write`")


def owner_of(session: Session) -> str | None:
    """The user that rows made in this session belong to."""
    owner: str | None = session.info.get(_OWNER)
    return owner


def sees_all(session: Session) -> bool:
    """Whether a session is that of an admin, of the machine itself, or of anybody where there are no keys."""
    return not getattr(session, "conditions", None)


@lru_cache(maxsize=512)
def _conditions(user_id: str | None) -> list[Any]:
    # not the class, or the condition would be added to itself; by a name of its own, or a query's own jobs would be meant
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
