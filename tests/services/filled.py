"""A service over a database with something in it, on both databases."""

from __future__ import annotations

from dataclasses import dataclass

from services.db.models import Event
from services.db.session import Database
from services.db.types import storable_json
from services.jobs.rows import candidate_row, verdict_row
from tests.services.ranked import ended_job
from tests.services.service import Service


@dataclass(frozen=True)
class Filled:
    """A service without a worker over a database with three ranked jobs; the first has many candidates and events."""

    service: Service
    database: Database
    jobs: list[str]


def fill(base: Database) -> list[str]:
    """Three ranked jobs, the first with forty candidates more; their ids."""
    jobs = [ended_job(base, speed) for speed in (1.5, 2.0, 1.7)]
    with base.write() as session:
        for number in range(40):
            sha256 = f"{number:064x}"[::-1]
            session.add(candidate_row(jobs[0], sha256, "llm", f"number {number}", "x = 1\n"))
            body = {"verdict": "incorrect", "reason": "no", "summary": {}}
            session.add(verdict_row(jobs[0], sha256, "screen", storable_json(body)))
            session.add(Event(job_id=jobs[0], name="candidate.proposed", data={"sha256": sha256}))
    return jobs
