"""Working on one row: claim it, drive the agent or the referee under a watch, store how it ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from agent.candidates import Candidate
from agent.job import judge_candidate, run_job
from agent.redaction import known_secrets
from agent.spec import JobOutcome
from evaluator.client import Referee
from evaluator.errors import SandboxUnavailable
from evaluator.sources import CandidateSource, TaskSource
from services.db.models import Bundle, Evaluation, Job
from services.db.session import Database
from services.errors import LeaseLost
from services.jobs import batches, events, lease
from services.jobs.endings import end_evaluation, end_job
from services.jobs.lease import Lease, LeasedModel
from services.jobs.store import SqlJobStore
from services.jobs.submit import LOOK, job_spec
from services.memory.ownership import readable_owners
from services.memory.remembering import remember_job
from services.memory.store import SqlMemory
from services.observing.logs import belonging_to
from services.settings import Settings
from services.users import quotas
from services.worker.bench import Bench, Seat
from services.worker.watch import Watch

_log = logging.getLogger(__name__)
# What is kept of a description: neither the text, which is the row's, nor the shapes that choose a winner.
_OF_A_LOOK = (
    "ok", "verdict", "reason", "detail", "lint", "inferred", "dims", "direction", "inputs", "outputs", "parameters"
)  # fmt: skip
# What a crash of ours reads like to the person who waits for the job; details are in the log.
_FAULT = "internal fault ({kind}): {error}"


class Runner:
    """Works on rows for one worker process.

    Args:
        settings: leases, attempts, folders.
        database: where the rows are.
        bench: where candidates run.
        owner: this worker's identity, written into leases.
        refusal: why nothing may run here, or None; waits until that is known.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        bench: Bench,
        owner: str,
        refusal: Callable[[], str | None],
    ) -> None:
        self._settings = settings
        self._database = database
        self._bench = bench
        self._owner = owner
        self._refusal = refusal
        self._job_slot = threading.Lock()
        self.stopping = threading.Event()

    def run_job(self, job_id: str) -> None:
        """Work on a job, unless this process has one already (then a message will come again) or nobody needs to."""
        if not self._job_slot.acquire(blocking=False):
            return
        try:
            self._refusal()  # a row stays queued, and can be cancelled at once, until the sandbox has been checked
            held = self._claim(Job, job_id)
            if held is not None:
                with belonging_to(job_id):
                    self.work_on_job(held)
        finally:
            self._job_slot.release()
        if not self.stopping.is_set():
            with self._database.write() as session:
                lease.ask_for_messages(session, Job)

    def run_evaluation(self, evaluation_id: str) -> None:
        """Judge one (task, candidate), for POST /evaluate or as an external candidate of a job."""
        self._refusal()
        held = self._claim(Evaluation, evaluation_id)
        if held is not None:
            with belonging_to(evaluation_id):
                self._work_on_evaluation(held)

    def work_on_job(self, held: Lease) -> None:
        """Drive a claimed job to its end."""
        with self._database.write() as session:
            job = lease.locked_row(session, held)
            spec = batches.with_folder(job_spec(job), self._settings.job_dir(job.id) / "batch")
            spec = replace(spec, budget=quotas.within(session, job, spec.budget))
            owner_id = job.owner_id
            batches.lay_out(session, spec)
            events.append(session, job.id, "job.started", {"attempt": held.attempt})
        _log.info("attempt %d begins", held.attempt)
        refusal = self._refusal()
        if refusal is not None:
            self.finish_job(held, JobOutcome("failed", "not_judged", f"this worker runs nothing: {refusal}"))
            return
        store = SqlJobStore(self._database, spec.job_id, held, self.stopping.is_set)
        out_dir = self._settings.job_dir(spec.job_id)
        out_dir.mkdir(parents=True, exist_ok=True)
        seat = self._seat(owner_id)
        owners = readable_owners(owner_id, one_user=self._settings.one_user)
        memory = SqlMemory(self._database, owners, spec.job_id)
        self._under_watch(
            held,
            seat,
            lambda: run_job(spec, store, cast(Referee, seat), out_dir, memory, seat.profile),
            self.finish_job,
            lambda: JobOutcome("cancelled", None, "cancelled; its processes were killed"),
        )

    def _work_on_evaluation(self, held: Lease) -> None:
        with self._database.write() as session:
            row: Evaluation = lease.locked_row(session, held)
            job = session.get(Job, row.job_id) if row.job_id else None
            spec = job_spec(job) if job else None
        refusal = self._refusal()
        if refusal is not None:
            self._finish_evaluation(held, ("failed", f"this worker runs nothing: {refusal}", None))
            return
        seat = self._seat(row.owner_id)
        referee = cast(Referee, seat)

        def work() -> tuple[str, str, dict[str, Any] | None]:
            if spec is not None:
                store = SqlJobStore(self._database, spec.job_id, held, self.stopping.is_set)
                candidate = Candidate(source=row.candidate_source, origin=row.origin, label=row.label)
                verdict = judge_candidate(spec, store, referee, candidate)
            elif row.effort == LOOK:
                task = TaskSource(name=row.task_name, source=row.task_source)
                found = seat.describe(task, deadline_s=row.deadline_s)
                shown = {name: value for name, value in found.items() if name in _OF_A_LOOK}
                shown["shapes"] = {"visible": (found.get("shapes") or {}).get("visible", [])}
                return "succeeded", str(found.get("reason") or ""), shown
            else:
                task = TaskSource(name=row.task_name, source=row.task_source)
                source = CandidateSource(row.candidate_source, origin=row.origin, label=row.label)
                verdict = seat.evaluate(
                    task, source, effort=row.effort, deadline_s=row.deadline_s, submitted=True
                )
            return "succeeded", str(verdict.get("reason") or ""), verdict

        self._under_watch(
            held,
            seat,
            work,
            self._finish_evaluation,
            lambda: ("cancelled", "cancelled; its processes were killed", None),
        )

    def _seat(self, owner_id: str | None) -> Seat:
        """A seat at the bench whose turns count as the user's."""
        measure = "gpu_seconds" if self._bench.device == "cuda" else "cpu_seconds"

        def used(elapsed_s: float) -> None:
            if owner_id is None:
                return
            try:
                with self._database.write() as session:
                    quotas.add_usage(session, owner_id, **{measure: elapsed_s})
            except SQLAlchemyError:
                _log.warning("%.1f s of user %s were not counted", elapsed_s, owner_id, exc_info=True)

        return self._bench.seat(used)

    def _under_watch(
        self,
        held: Lease,
        seat: Seat,
        work: Callable[[], Any],
        finish: Callable[[Lease, Any], None],
        cancelled: Callable[[], Any],
    ) -> None:
        watch = Watch(
            self._database,
            held,
            self._settings.lease_seconds,
            stop_work=seat.kill,
            give_up=lambda: self._quietly(finish, held, cancelled()),
            stopping=self.stopping,
        )
        try:
            with watch:
                outcome = work()
        except LeaseLost:
            _log.info("%s is somebody else's now", held.row_id)
            return
        except SandboxUnavailable as error:
            outcome = self._failure(held, f"nothing here isolates a candidate: {error}")
        except Exception as error:  # noqa: BLE001 - every fault of ours must end in the row, not in a dead thread
            if self._end_of_stopped(held, finish, cancelled):
                return
            _log.exception("%s %s failed in attempt %d", held.model.__tablename__, held.row_id, held.attempt)
            try:
                self._retry_or_fail(held, finish, _FAULT.format(kind=type(error).__name__, error=error))
            except LeaseLost:
                _log.info("%s is somebody else's now", held.row_id)
            return
        if not self._end_of_stopped(held, finish, cancelled):
            self._quietly(finish, held, outcome)

    def _end_of_stopped(
        self, held: Lease, finish: Callable[[Lease, Any], None], cancelled: Callable[[], Any]
    ) -> bool:
        """End or give back a row whose work was stopped from outside; False when nobody stopped it."""
        with self._database.read() as session:
            reason = lease.wanted(session, held)
        if reason == "lost":
            return True
        if reason == "cancelled":
            self._quietly(finish, held, cancelled())
            return True
        if self.stopping.is_set():
            with self._database.write() as session:
                lease.release(session, held)
            return True
        return False

    def _retry_or_fail(self, held: Lease, finish: Callable[[Lease, Any], None], reason: str) -> None:
        """Let another attempt be made while there are any left; the attempt counts as stalled."""
        with self._database.write() as session:
            row = lease.locked_row(session, held)
            row.reason = reason
            if row.stalled_attempts < self._settings.max_attempts:
                row.state = "queued"
                row.lease_owner = row.lease_until = row.sent_at = None
                return
        self._quietly(finish, held, self._failure(held, f"gave up after {held.attempt} attempts: {reason}"))

    def _failure(self, held: Lease, reason: str) -> Any:
        return JobOutcome("failed", "not_judged", reason) if held.model is Job else ("failed", reason, None)

    def _claim(self, model: LeasedModel, row_id: str) -> Lease | None:
        if self.stopping.is_set():
            return None
        with self._database.write() as session:
            return lease.claim(
                session, model, row_id, self._owner, self._settings.lease_seconds, self._settings.max_attempts
            )

    def finish_job(self, held: Lease, outcome: JobOutcome) -> None:
        """Store how a job ended, with its bundle, in one transaction; then what it leaves in memory.

        Raises:
            LeaseLost: the job is somebody else's, or has ended.
        """
        if outcome.state == "waiting":
            with self._database.write() as session:
                job = lease.locked_row(session, held)
                spec = batches.with_folder(job_spec(job), self._settings.job_dir(job.id) / "batch")
                batches.pause(session, job, spec, outcome.reason)
            return
        path = outcome.bundle_path
        content = path.read_bytes() if path is not None and path.is_file() else None
        with self._database.write() as session:
            job = lease.locked_row(session, held)
            if content is not None and path is not None:
                _store_bundle(session, job.id, path.name, content)
            end_job(
                session,
                job,
                outcome.state,
                outcome.reason,
                verdict=outcome.verdict_word,
                winner_sha256=outcome.winner_sha256,
                summary=outcome.summary,
            )
        _log.info("ended as %s (%s)", outcome.state, outcome.verdict_word)
        remember_job(self._database, held.row_id, one_user=self._settings.one_user, secrets=known_secrets())

    def _finish_evaluation(self, held: Lease, ending: tuple[str, str, dict[str, Any] | None]) -> None:
        state, reason, result = ending
        with self._database.write() as session:
            end_evaluation(session, lease.locked_row(session, held), state, reason, result)

    @staticmethod
    def _quietly(finish: Callable[[Lease, Any], None], held: Lease, outcome: Any) -> None:
        try:
            finish(held, outcome)
        except LeaseLost:
            _log.info("%s was ended by somebody else", held.row_id)


def _store_bundle(session: Session, job_id: str, file_name: str, content: bytes) -> None:
    bundle = session.get(Bundle, job_id)
    if bundle is None:
        session.add(Bundle(job_id=job_id, file_name=file_name, content=content))
    else:
        bundle.file_name, bundle.content = file_name, content
