"""`agent.store.JobStore` on the database.

When a method returns, its data is durable. Every write checks in its own transaction that this worker still holds the
lease. `candidate.proposed` and `candidate.judged` are written in one transaction with the row that they report; a SIGKILL
can therefore neither lose nor duplicate an event. Methods wait for a restarting database: a write may run twice, but it
stores its data once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from agent.candidates import Candidate
from agent.store import PHASES, worked_s
from evaluator.verdict import Verdict, as_json, from_json
from services.db import models
from services.db.models import Job
from services.db.outages import outliving
from services.db.session import Database
from services.db.types import shown_json, shown_text, storable_json, storable_text
from services.jobs import events, lease
from services.jobs.lease import Lease
from services.jobs.rows import candidate_row, proposed_data, step_value, verdict_row
from services.users import quotas

# The service itself writes these, because it knows about attempts and leases.
_OWN_EVENTS = ("job.queued", "job.started", "job.finished", "job.failed", "job.cancelled", "job.waiting")
# Written once per source (and phase), however often a resumed job repeats them.
_EVENTS_OF_SOURCE = ("candidate.proposed", "candidate.compiled", "candidate.judged")

# Maximum number of one job's verdicts and steps cached in memory: some megabytes.
_MOST_KNOWN = 256


class SqlJobStore:
    """The durable memory of one job.

    Args:
        database: where the job is stored.
        job_id: the job.
        held: the lease that writes are checked against: the job's own, or that of one of its external candidates.
        stopping: returns whether the worker must stop the job, for example because it is shutting down.
    """

    def __init__(self, database: Database, job_id: str, held: Lease, stopping: Callable[[], bool]) -> None:
        self._database = database
        self._job_id = job_id
        self._lease = held
        self.stopping = stopping
        self._known: dict[tuple[str, ...], Any] = {}
        self._known_owner: tuple[str | None, str, bool] | None = None

    @outliving
    def candidates(self) -> list[Candidate]:
        """See `JobStore.candidates`. Omits external candidates with a queued or running evaluation of their own.

        Otherwise the job would judge them at the same time.
        """
        awaited = exists().where(
            models.Evaluation.job_id == self._job_id,
            models.Evaluation.candidate_sha256 == models.Candidate.sha256,
            models.Evaluation.state.in_(("queued", "running")),
        )
        query = select(models.Candidate).where(models.Candidate.job_id == self._job_id, ~awaited)
        with self._database.read() as session:
            return [
                Candidate(
                    source=row.source,
                    origin=row.origin,
                    label=row.label,
                    parent_sha256=row.parent_sha256,
                    note=row.note,
                )
                for row in session.scalars(query.order_by(models.Candidate.number))
            ]

    @outliving
    def add_candidate(self, candidate: Candidate) -> bool:
        """See `JobStore.add_candidate`.

        Raises:
            LeaseLost: another worker has the job.
        """
        with self._writing() as session:
            if self._candidate(session, candidate.sha256) is not None:
                return False
            row = candidate_row(
                self._job_id,
                candidate.sha256,
                candidate.origin,
                shown_text(candidate.label),
                storable_text(candidate.source),
                parent_sha256=candidate.parent_sha256,
                note=shown_text(candidate.note),
            )
            session.add(row)
            events.append(session, self._job_id, "candidate.proposed", proposed_data(row), once=row.sha256)
            quotas.add_usage(session, self._owner(session)[0], candidates=1)
            self._progressed(session)
            return True

    @outliving
    def verdict(self, sha256: str, phase: str) -> Verdict | None:
        """See `JobStore.verdict`."""
        query = self._verdict_query(sha256, phase)
        found = self._read_once(("verdict", sha256, phase), lambda session: session.scalar(query))
        return from_json(found) if found else None

    @outliving
    def add_verdict(self, sha256: str, phase: str, verdict: Verdict) -> bool:
        """See `JobStore.add_verdict`.

        Raises:
            LeaseLost: another worker has the job.
        """
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r} is unknown; it is one of {', '.join(PHASES)}")
        body = shown_json(as_json(verdict))
        with self._writing() as session:
            if session.scalar(self._verdict_query(sha256, phase)) is not None:
                return False
            row = verdict_row(self._job_id, sha256, phase, body)
            session.add(row)
            candidate = self._candidate(session, sha256)
            data = {
                "id": candidate.id if candidate else None,
                "sha256": sha256,
                "origin": candidate.origin if candidate else None,
                "label": candidate.label if candidate else None,
                "phase": phase,
                "verdict": row.word,
                "reason": row.reason,
                "geomean_speedup": row.geomean_speedup,
                "ci95": [row.ci_low, row.ci_high] if row.ci_low is not None else None,
                "elapsed_s": verdict.elapsed_s,
            }
            events.append(session, self._job_id, "candidate.judged", data, once=f"{sha256}:{phase}")
            self._progressed(session)
            return True

    @outliving
    def step(self, name: str) -> object | None:
        """See `JobStore.step`."""
        return self._read_once(("step", name), lambda session: step_value(session, self._job_id, name))

    @outliving
    def finish_step(self, name: str, value: object) -> None:
        """See `JobStore.finish_step`.

        Raises:
            LeaseLost: another worker has the job.
        """
        with self._writing() as session:
            if session.get(models.Step, (self._job_id, name)) is None:
                session.add(
                    models.Step(job_id=self._job_id, name=name, value={"value": storable_json(value)})
                )
                self._progressed(session)

    @outliving
    def steps(self, prefix: str) -> dict[str, object]:
        """See `JobStore.steps`."""
        query = select(models.Step).where(
            models.Step.job_id == self._job_id, models.Step.name.startswith(prefix, autoescape=True)
        )
        with self._database.read() as session:
            return {row.name: row.value["value"] for row in session.scalars(query.order_by(models.Step.name))}

    @outliving
    def event(self, name: str, data: dict[str, Any]) -> None:
        """See `JobStore.event`. `budget.spent` also adds its `usd` and `tokens` to the job's bill.

        Raises:
            LeaseLost: another worker has the job.
        """
        if name in _OWN_EVENTS:
            return
        once = None
        if name in _EVENTS_OF_SOURCE and "sha256" in data:
            once = ":".join(str(data[key]) for key in ("sha256", "phase") if data.get(key) is not None)
        if name == "budget.spent" and data.get("request"):
            once = f"{data['request']}:{data.get('try') or 0}"
        with self._writing() as session:
            if events.append(session, self._job_id, name, data, once=once) and name == "budget.spent":
                self._bill(session, data)

    @outliving
    def seconds_before(self) -> float:
        """See `JobStore.seconds_before`."""
        query = select(models.Event.name, models.Event.time).where(models.Event.job_id == self._job_id)
        with self._database.read() as session:
            found = session.execute(query.order_by(models.Event.id)).all()
        started = [number for number, (name, _) in enumerate(found) if name == "job.started"]
        earlier = found[: started[-1]] if started else []  # this attempt's own start is already in the log
        return worked_s((name, time.timestamp()) for name, time in earlier)

    @outliving
    def stop_requested(self) -> str | None:
        """See `JobStore.stop_requested`. A lost lease or a worker shutdown stops a job like a cancellation, and an exhausted
        user quota stops it like a spent budget."""
        if self.stopping():
            return "cancelled"
        with self._database.read() as session:
            if lease.wanted(session, self._lease):
                return "cancelled"
            owner_id, device, pays = self._owner(session)
            if owner_id is None or self._lease.model is not Job:
                return None
            return "budget" if quotas.standing_of(session, owner_id).exhausted(device, pays=pays) else None

    def _read_once(self, key: tuple[str, ...], read: Callable[[Session], Any]) -> Any:
        """Cache stored values, which never change; missing ones are read again.

        A job reads the same step dozens of times; without the cache, these reads are a quarter of its storage cost. Each caller
        gets a copy.
        """
        if key not in self._known:
            with self._database.read() as session:
                found = read(session)
            if found is None:
                return None
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return copy.deepcopy(self._known[key])

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with self._database.write() as session:
            lease.locked_row(session, self._lease)
            if self._lease.model is not Job:
                events.lock_job(session, self._job_id)
            yield session

    def _owner(self, session: Session) -> tuple[str | None, str, bool]:
        """The job's owner, its device and whether it pays for models; none of these change."""
        if self._known_owner is None:
            job = session.get_one(Job, self._job_id)
            self._known_owner = job.owner_id, job.device, quotas.pays_models(job.request)
        return self._known_owner

    def _progressed(self, session: Session) -> None:
        """Reset the counters of failed attempts after new data was stored; what a resumed job merely repeats does not count.

        Finished steps count too: a worker that dies after half of a long job's steps has made progress.
        """
        row: Any = session.get_one(self._lease.model, self._lease.row_id)  # already locked by `_writing`
        row.stalled_attempts = row.faults = 0

    def _candidate(self, session: Session, sha256: str) -> models.Candidate | None:
        query = select(models.Candidate)
        return session.scalar(
            query.where(models.Candidate.job_id == self._job_id, models.Candidate.sha256 == sha256)
        )

    def _verdict_query(self, sha256: str, phase: str) -> Any:
        return select(models.Verdict.body).where(
            models.Verdict.job_id == self._job_id,
            models.Verdict.sha256 == sha256,
            models.Verdict.phase == phase,
        )

    def _bill(self, session: Session, data: dict[str, Any]) -> None:
        job = session.get(Job, self._job_id)
        if job is not None:
            job.usd += float(data.get("usd") or 0.0)
            job.tokens += int(data.get("tokens") or 0)
            quotas.add_usage(session, job.owner_id, usd=float(data.get("usd") or 0.0))
