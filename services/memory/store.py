"""Implements `agent.memory.entries.Memory` on the database."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from agent.memory.entries import MemoryEntry, Question, Recalled
from agent.memory.features import Features
from agent.memory.similarity import most_similar
from services.db import models
from services.db.session import Database

_log = logging.getLogger(__name__)
# A comparison takes a few microseconds per entry; beyond this number the oldest are ignored.
_MOST_COMPARED = 2000


class SqlMemory:
    """The part of memory that one job may read.

    Args:
        database: where the entries are stored.
        owners: owners of the readable entries (see `services.memory.ownership.readable_owners`).
        job_id: the querying job; its own entries are excluded.
    """

    def __init__(self, database: Database, owners: Sequence[str], job_id: str) -> None:
        self._database = database
        self._owners = tuple(owners)
        self._job_id = job_id

    def similar(self, question: Question, limit: int) -> list[Recalled]:
        """See `Memory.similar`. On a database failure the job continues without memory."""
        row = models.MemoryEntry
        query = (
            select(row.id, row.kind, row.features, row.task_sha256, row.architecture)
            .where(row.owner.in_(self._owners), row.device == question.device)
            .where(row.job_id != self._job_id)
            .order_by(row.job_id.desc(), row.id)  # job ids increase with time
            .limit(_MOST_COMPARED)
        )
        try:
            with self._database.read() as session:
                found = session.execute(query).all()
                # order among equal similarity: same architecture, then kind "faster", then newest job (stable sort)
                found = sorted(
                    found, key=lambda one: (one.architecture != question.architecture, one.kind != "faster")
                )
                chosen = most_similar(
                    question.features,
                    (
                        (one.id, Features.from_json(one.features), f"{one.kind} {one.task_sha256}")
                        for one in found
                    ),
                    limit,
                )
                return [Recalled(_entry(session, number), score) for number, score in chosen]
        except (SQLAlchemyError, KeyError, TypeError, ValueError):
            _log.exception("memory could not be read")
            return []


def add_entries(session: Session, job_id: str, owner: str, entries: Sequence[MemoryEntry]) -> int:
    """Store a job's new entries and return their number."""
    query = select(models.MemoryEntry.kind, models.MemoryEntry.sha256).where(
        models.MemoryEntry.job_id == job_id
    )
    known = {(kind, sha256) for kind, sha256 in session.execute(query)}
    fresh = [entry for entry in entries if (entry.kind, entry.sha256) not in known]
    for entry in fresh:
        body = entry.to_json()
        session.add(
            models.MemoryEntry(
                job_id=job_id,
                owner=owner,
                kind=entry.kind,
                sha256=entry.sha256,
                task_sha256=entry.task_sha256,
                device=entry.device,
                architecture=entry.architecture,
                features=body["features"],
                body=body,
            )
        )
    return len(fresh)


def _entry(session: Session, number: int) -> MemoryEntry:
    row = session.get_one(models.MemoryEntry, number)
    return MemoryEntry.from_json(row.body)
