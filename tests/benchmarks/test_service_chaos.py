"""A small storm on either database: everything ends as succeeded, and no rule of `benchmarks.chaos_checks` is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from agent.candidates import Candidate as Proposed
from benchmarks import chaos_checks
from benchmarks.chaos_deployment import Weather
from benchmarks.service_chaos import run
from services.db.models import Candidate, Event, Job, Verdict
from services.db.session import Database
from services.jobs import lease
from services.jobs.store import SqlJobStore
from tests.services.databases import new_job, new_sqlite

# Everything happens once at least, and comes to an end, so that the work that is left takes the same time on any machine.
POSTGRESQL = Weather(
    kill_every_s=2.0, redis_every_s=2.0, postgres_every_s=2.5, postgres_away_s=0.5, kills=3, shakes=1
)
JOBS = 8
SQLITE = Weather(kill_every_s=1.5, kills=3)


@pytest.mark.services("postgres", "redis")
@pytest.mark.parametrize(("storage", "weather"), [("postgresql", POSTGRESQL), ("sqlite", SQLITE)])
def test_a_small_storm_breaks_nothing(storage: str, weather: Weather) -> None:
    found = run(JOBS, 2, weather, storage, judging_s=0.05, limit_s=150)
    assert found["storm_ended_early"] == []
    assert found["missed"] == [], found
    told = sum(times for what, times in found["storm"].items() if "kill" in what and "Redis" not in what)
    # A quick machine has ended all jobs before the last kill is due.
    assert weather.kills is not None
    assert 1 <= told <= weather.kills, found["storm"]
    assert found["jobs"] == JOBS
    if storage == "postgresql":
        assert found["storm"]["PostgreSQL restarted"] == 1


class _Nobody:
    """A client of a service that knows of no job."""

    def jobs(self) -> list[Any]:
        return []


def judged(base: Database, folder: Path) -> str:
    """A job in progress, with a candidate that has its verdict."""
    job_id = new_job(base, folder)
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
    assert held is not None
    store = SqlJobStore(base, job_id, held, lambda: False)
    proposed = Proposed("a = 1", "human", "a")
    store.add_candidate(proposed)
    store.add_verdict(proposed.sha256, "screen", {"verdict": "incorrect"})
    store.event("budget.spent", {"request": "llm/1", "usd": 0.5, "tokens": 7})
    return job_id


def test_the_checks_see_what_is_broken(tmp_path: Path) -> None:
    base = new_sqlite(tmp_path)
    job_id = judged(base, tmp_path)

    def broken() -> set[str]:
        with base.read() as session:
            ids = list(session.scalars(select(Event.id).order_by(Event.id)))
        found = chaos_checks.broken(base, _Nobody(), {job_id: ids[:-1]})  # type: ignore[arg-type]
        return {rule for rule, count in found.items() if count}

    always = {
        "rows that have not ended",
        "leases left",
        "watched jobs whose stream missed or repeated an event",
        "jobs of which the API says something else",
    }
    assert broken() == always
    with base.write() as session:
        session.execute(delete(Verdict))
    assert broken() - always == {"candidates without a verdict", "verdicts not told exactly once"}
    with base.write() as session:
        session.execute(delete(Candidate))
        session.execute(delete(Event).where(Event.name == "job.queued"))
        session.get_one(Job, job_id).tokens = 8
    assert broken() - always == {
        "candidates not told exactly once",
        "verdicts not told exactly once",
        "stories without begin, end or order",
        "jobs with a wrong bill",
    }
    with base.write() as session:
        job = session.get_one(Job, job_id)
        job.state, job.lease_owner, job.lease_until, job.reason = "succeeded", None, None, ""
    assert {
        "jobs without all their candidates",
        "jobs without their one held-out verdict",
        "jobs without their bundle",
    } < broken()
    with base.write() as session:
        session.get_one(Job, job_id).state = "failed"
    assert "rows that ended otherwise than as succeeded" in broken()
    base.close()
