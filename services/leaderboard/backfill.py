"""Putting jobs on the leaderboard that ended before it was kept, or while the referee's version was another."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import exists, select

from services.db.models import Job, LeaderboardEntry
from services.db.session import Database
from services.jobs import events
from services.leaderboard import recording
from services.leaderboard.eligibility import NotListed


def backfill(database: Database) -> tuple[int, Counter[str]]:
    """Enter every job that ranks and has no entry, the one that ended first before the others, as of when it ended.

    Each in a transaction of its own, so that ending jobs wait for none but their own board; safe to repeat or to break off.

    Returns:
        How many were entered, and how often each reason kept a job out.
    """
    entered = exists().where(LeaderboardEntry.job_id == Job.id)
    missing = select(Job.id).where(Job.state == "succeeded", Job.from_catalog, ~entered)
    with database.read() as session:
        ids = session.scalars(missing.order_by(Job.finished_at, Job.id)).all()
    made, kept_out = 0, Counter[str]()
    for job_id in ids:
        with database.write() as session:
            job = events.lock_job(session, job_id)
            if job is None:
                continue
            standing = recording.standing_of(session, job)
            if isinstance(standing, NotListed):
                kept_out[standing.reason] += 1
            elif recording.enter(session, job, job.finished_at) is not None:
                made += 1
    return made, kept_out
