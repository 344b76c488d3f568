"""Puts stored jobs onto the shelves of a running service, as its worker would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from services.db.ids import new_id
from services.db.models import Candidate, Job, Verdict, utc_now
from services.db.session import Database
from services.jobs import events
from services.jobs.endings import end_job
from services.jobs.rows import candidate_row, outline_of, proposed_data
from services.leaderboard import recording
from tests.browser import stored
from tests.services.service import Service


@dataclass(frozen=True)
class Shelf:
    """A service without a worker and the database that it reads."""

    service: Service
    database: Database

    @property
    def url(self) -> str:
        """Address of the service."""
        return self.service.url

    @property
    def client(self) -> httpx.Client:
        """A client of it; another one each time would take longer to make than most of its answers take."""
        return self.service.client

    def start_job(self, name: str = "scale", *, source: str = stored.REFERENCE, device: str = "cpu") -> str:
        """A running job without candidates; its id."""
        job_id = new_id()
        with self.database.write() as session:
            job = Job(
                id=job_id,
                name=name,
                device=device,
                task_name=name,
                task_sha256="0" * 64,
                task_source=source,
                request={},
                state="running",
                attempt=1,
                started_at=utc_now(),
                lease_owner="a test",
                lease_until=4e9,  # nobody else is to take it up
            )
            session.add(job)
            session.flush()
            events.append(session, job_id, "job.started", {"attempt": 1})
        return job_id

    def propose(self, job_id: str, made: Mapping[str, Any]) -> str:
        """Add a candidate without a verdict; its id."""
        with self.database.write() as session:
            row: Candidate = candidate_row(
                job_id,
                made["sha256"],
                made["origin"],
                made["label"],
                made["source"],
                parent_sha256=made["parent_sha256"],
                note=made["note"],
            )
            session.add(row)
            events.append(session, job_id, "candidate.proposed", proposed_data(row))
            return row.id

    def judge(self, job_id: str, made: Mapping[str, Any], phase: str, body: Mapping[str, Any]) -> None:
        """Store a verdict of a candidate."""
        summary = body["summary"]
        low, high = summary.get("geomean_ci95") or (None, None)
        with self.database.write() as session:
            session.add(
                Verdict(
                    job_id=job_id,
                    sha256=made["sha256"],
                    phase=phase,
                    word=body["verdict"],
                    reason=body["reason"],
                    geomean_speedup=summary.get("geomean_speedup"),
                    ci_low=low,
                    ci_high=high,
                    body=dict(body),
                    outline=outline_of(dict(body)),
                )
            )
            data = {
                "sha256": made["sha256"],
                "label": made["label"],
                "phase": phase,
                "verdict": body["verdict"],
            }
            events.append(session, job_id, "candidate.judged", data)

    def finish(self, job_id: str, winner: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """End the job with a winner."""
        with self.database.write() as session:
            job = events.lock_job(session, job_id)
            assert job is not None
            end_job(
                session,
                job,
                "succeeded",
                "1.50x over the best baseline",
                verdict="accepted",
                winner_sha256=winner["sha256"],
                summary=dict(summary),
            )
            recording.enter(session, job)
