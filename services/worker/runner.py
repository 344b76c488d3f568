"""Works on one row: claims it, runs the agent or the referee under a watch, and stores the result."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from sqlalchemy.exc import SQLAlchemyError

from agent.candidates import Candidate
from agent.job import judge_candidate, run_job
from agent.redaction import known_secrets
from agent.spec import JobOutcome, JobSpec
from evaluator.client import Referee
from evaluator.counting import counted
from evaluator.devices import is_accelerator
from evaluator.errors import SandboxUnavailable, is_disk_trouble
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import as_json
from services.db.models import Bundle, Evaluation, Job
from services.db.outages import is_outage, through_outages
from services.db.session import Database
from services.db.trouble import folder_problem, trouble
from services.db.types import upsert
from services.errors import LeaseLost
from services.jobs import batches, events, lease, turns
from services.jobs.endings import end_evaluation, end_job
from services.jobs.lease import Lease, LeasedModel
from services.jobs.rows import LOOK, job_spec
from services.jobs.store import SqlJobStore
from services.leaderboard import recording
from services.memory.ownership import readable_owners
from services.memory.remembering import remember_job
from services.memory.store import SqlMemory
from services.observing.logs import belonging_to
from services.settings import Settings
from services.users import quotas
from services.worker.referee_queue import JobReferee, RefereeQueue
from services.worker.watch import Watch

_log = logging.getLogger(__name__)
# Fields kept from a task description. Omits the task's text, which the row holds, and the shapes that select a winner.
_OF_A_LOOK = (
    "ok", "verdict", "reason", "detail", "lint", "inferred", "dims", "direction", "inputs", "outputs", "parameters"
)  # fmt: skip
# Texts that a user sees after a cancellation or an internal error; details are in the log.
_CANCELLED = "cancelled; its processes were killed"
_FAULT = "an error of Kernelwright's own ({kind}: {error}); the log of the worker has its traceback"
_LOOK_AT_DISK_S = 2.0
# Omits the error's own message, which may name database hosts and users.
_CUT_OFF = "the database failed ({kind})"
Result = TypeVar("Result")


@dataclass(frozen=True)
class EvaluationOutcome:
    """How an evaluation ended; `result` is the referee's answer, if there is one."""

    state: str
    reason: str
    result: dict[str, Any] | None = None


Outcome = JobOutcome | EvaluationOutcome


def _without_result(held: Lease, state: str, reason: str) -> Outcome:
    if held.model is Evaluation:
        return EvaluationOutcome(state, reason)
    return JobOutcome(state, "not_judged" if state == "failed" else None, reason)


class Runner:
    """Works on rows for one worker process.

    Args:
        settings: leases, attempts, folders.
        database: where the rows are stored.
        queue: the queue for the referee that runs candidates.
        owner: this worker's identity, written into leases.
        refusal: returns why this worker may run nothing, or None; blocks until that is known.
        is_sick: returns whether the device's verdicts are no longer reliable; running rows are then released.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        queue: RefereeQueue,
        owner: str,
        refusal: Callable[[], str | None],
        is_sick: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._database = database
        self._queue = queue
        self._owner = owner
        self._refusal = refusal
        self._is_sick = is_sick
        self.stopping = threading.Event()
        self._cut_off: set[Lease] = set()

    def work_on_next(self, model: LeasedModel) -> bool:
        """Claim the next row of a table and work on it; return False if there is none for this worker."""
        if self.stopping.is_set():
            return False
        held = turns.take(
            self._database,
            model,
            self._queue.device,
            self._owner,
            self._settings.lease_seconds,
            self._settings.max_lost_workers,
        )
        if held is None:
            return False
        with belonging_to(held.row_id):
            if model is Job:
                self.work_on_job(held, alone=False)
            else:
                self._work_on_evaluation(held)
        return True

    def work_on_job(self, held: Lease, *, alone: bool = True, began_s: float | None = None) -> None:
        """Run a claimed job to its end.

        With `alone`, no other worker could run the job: if this one may run nothing, the job fails. The budget's seconds
        count from the monotonic time `began_s`, by default from now."""
        began_s = time.monotonic() if began_s is None else began_s
        spec, owner_id = self._patiently(lambda: self._begin(held))
        _log.info("attempt %d begins", held.attempt)
        refusal = self._refusal()
        if refusal is not None and alone:
            self.finish(held, _without_result(held, "failed", f"this worker runs nothing: {refusal}"))
            return
        if refusal is not None:  # the device became unhealthy as the job was claimed; not the job's fault
            self._release(held)
            return
        store = SqlJobStore(self._database, spec.job_id, held, partial(self._gives_back, held))
        out_dir = self._settings.job_dir(spec.job_id)
        judge = self._judge_for(owner_id)
        owners = readable_owners(owner_id, one_user=self._settings.one_user)
        memory = SqlMemory(self._database, owners, spec.job_id)

        def work() -> JobOutcome:
            out_dir.mkdir(parents=True, exist_ok=True)
            return run_job(spec, store, cast(Referee, judge), out_dir, memory, judge.profile, began_s)

        self._under_watch(held, judge, work)

    def _begin(self, held: Lease) -> tuple[JobSpec, str | None]:
        """Return the job's spec and owner, and log the start of the attempt as an event."""
        with self._database.write() as session:
            job = lease.locked_row(session, held)
            spec = batches.with_folder(job_spec(job), self._settings.job_dir(job.id) / "batch")
            spec = replace(spec, budget=quotas.within(session, job, spec.budget))
            batches.lay_out(session, spec)
            events.append(session, job.id, "job.started", {"attempt": held.attempt}, once=str(held.attempt))
            return spec, job.owner_id

    def _work_on_evaluation(self, held: Lease) -> None:
        row, spec = self._patiently(lambda: self._opened(held))
        refusal = self._refusal()
        if refusal is not None:
            self._release(held)
            return
        judge = self._judge_for(row.owner_id)
        referee = cast(Referee, judge)

        def work() -> EvaluationOutcome:
            if spec is not None:
                store = SqlJobStore(self._database, spec.job_id, held, partial(self._gives_back, held))
                candidate = Candidate(source=row.candidate_source, origin=row.origin, label=row.label)
                verdict = judge_candidate(spec, store, referee, candidate)
            elif row.effort == LOOK:
                task = TaskSource(name=row.task_name, source=row.task_source)
                found = judge.describe(task, deadline_s=row.deadline_s)
                shown = {name: value for name, value in found.as_json().items() if name in _OF_A_LOOK}
                shown["shapes"] = {"visible": found.shapes.get("visible", [])}
                return EvaluationOutcome("succeeded", found.reason, shown)
            else:
                task = TaskSource(name=row.task_name, source=row.task_source)
                source = CandidateSource(row.candidate_source, origin=row.origin, label=row.label)
                verdict = judge.evaluate(
                    task,
                    source,
                    effort=row.effort,
                    deadline_s=row.deadline_s,
                    submitted=True,
                    shapes=row.shapes,
                )
            return EvaluationOutcome("succeeded", verdict.reason, as_json(verdict))

        self._under_watch(held, judge, work)

    def _opened(self, held: Lease) -> tuple[Evaluation, JobSpec | None]:
        """Return the evaluation, and its job's spec if it has a job."""
        with self._database.write() as session:
            row: Evaluation = lease.locked_row(session, held)
            job = session.get(Job, row.job_id) if row.job_id else None
            return row, job_spec(job) if job else None

    def _judge_for(self, owner_id: str | None) -> JobReferee:
        """Return a job's referee whose turns count toward the user's usage."""
        measure = "gpu_seconds" if is_accelerator(self._queue.device) else "cpu_seconds"

        def used(elapsed_s: float) -> None:
            if owner_id is None:
                return
            try:
                with self._database.write() as session:
                    quotas.add_usage(session, owner_id, **{measure: elapsed_s})
            except SQLAlchemyError:
                _log.warning("%.1f s of user %s were not counted", elapsed_s, owner_id, exc_info=True)

        return self._queue.for_job(used)

    def _under_watch(self, held: Lease, judge: JobReferee, work: Callable[[], Outcome]) -> None:
        watch = Watch(
            self._database,
            held,
            self._settings.lease_seconds,
            stop_work=judge.kill,
            give_up=lambda: self._quietly(held, _without_result(held, "cancelled", _CANCELLED)),
            stopping=partial(self._gives_back, held),
        )
        try:
            with watch:
                outcome = self._once_there_is_room(work, judge)
        except LeaseLost:
            _log.info("%s belongs to another worker now", held.row_id)
            return
        except SandboxUnavailable as error:
            # A shutdown of this worker may have ended its sandbox first.
            if self._end_of_stopped(held):
                return
            outcome = _without_result(held, "failed", f"nothing here isolates a candidate: {error}")
        except Exception as error:  # noqa: BLE001 - every internal error must be stored in the row, not kill the thread
            if self._end_of_stopped(held):
                return
            told = trouble(error)
            if told is not None or is_outage(error):
                # Probably not the row's fault: release it for another attempt.
                reason = told or _CUT_OFF.format(kind=type(error).__name__)
                _log.warning("%s is given back: %s", held.row_id, reason)
                # Count the attempt only if the database answers: then the row itself may cause the fault, and retries would never end.
                self._release(held, stalled=self._database.answers(), reason=reason)
                return
            _log.exception("%s %s failed in attempt %d", held.model.__tablename__, held.row_id, held.attempt)
            first = str(error).partition("\n")[0][:300]
            self._retry_or_fail(held, _FAULT.format(kind=type(error).__name__, error=first))
            return
        # `_finish_evaluation` checks for a cancellation: a check beforehand would cost as much as ending the evaluation.
        if held.model is Evaluation or not self._end_of_stopped(held):
            self._quietly(held, outcome)

    def _end_of_stopped(self, held: Lease) -> bool:
        """End or release a row whose work was stopped from outside; return False if it was not stopped."""
        reason = self._patiently(lambda: self._wanted(held))
        if reason == "lost":
            return True
        if reason == "cancelled":
            self._quietly(held, _without_result(held, "cancelled", _CANCELLED))
            return True
        if self._gives_back(held):
            self._release(held)
            self._cut_off.discard(held)
            return True
        return False

    def _once_there_is_room(self, work: Callable[[], Result], judge: JobReferee) -> Result:
        """Run `work`; after a full disk, wait until files can be written and run it again from its stored state."""
        while True:
            try:
                return work()
            except OSError as error:
                folder = self._settings.data_dir.expanduser()
                if not is_disk_trouble(error) or folder_problem(folder) is None:
                    raise
                _log.warning("the work waits for room on the disk", exc_info=error)
                while folder_problem(folder) is not None:
                    if judge.stopped or self.stopping.wait(_LOOK_AT_DISK_S):
                        raise

    def _wanted(self, held: Lease) -> str | None:
        with self._database.read() as session:
            return lease.wanted(session, held)

    def _release(self, held: Lease, *, stalled: bool = False, reason: str = "") -> None:
        def release() -> None:
            with self._database.write() as session:
                lease.release(session, held, stalled=stalled, reason=reason)

        self._patiently(release)

    def _patiently(self, work: Callable[[], Result]) -> Result:
        """Retry during database outages unless this worker is stopping; its leases then expire."""
        return through_outages(work, give_up=self.stopping.is_set)

    def _gives_back(self, held: Lease) -> bool:
        """Whether to release the row; once True it stays True: an interrupted job must not fail or be cancelled if the device recovers."""
        if self.stopping.is_set() or self._is_sick():
            self._cut_off.add(held)
        return held in self._cut_off

    def _retry_or_fail(self, held: Lease, reason: str) -> None:
        """Release the row for another attempt, or fail it if none is left."""

        def again() -> bool:
            with self._database.write() as session:
                row = lease.locked_row(session, held)
                row.reason = reason
                if row.faults + 1 >= self._settings.max_attempts:
                    return False
                lease.release(session, held, faults=1)
                return True

        try:
            if self._patiently(again):
                return
        except LeaseLost:
            _log.info("%s belongs to another worker now", held.row_id)
            return
        self._quietly(
            held,
            _without_result(held, "failed", f"gave up after {counted(held.attempt, 'attempt')}: {reason}"),
        )

    def finish(self, held: Lease, outcome: Outcome) -> None:
        """Store how a row ended: for a job with its bundle in one transaction, then its memory entries.

        Raises:
            LeaseLost: another worker holds the row, or it has ended.
        """
        if isinstance(outcome, JobOutcome):
            self._finish_job(held, outcome)
        else:
            self._finish_evaluation(held, outcome)

    def _finish_job(self, held: Lease, outcome: JobOutcome) -> None:
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
                file = {"file_name": path.name, "content": content}
                upsert(session, Bundle, ["job_id"], {"job_id": job.id, **file}, file)
            end_job(
                session,
                job,
                outcome.state,
                outcome.reason,
                verdict=outcome.verdict_word,
                winner_sha256=outcome.winner_sha256,
                summary=as_json(outcome.summary) if outcome.summary else None,
            )
            if outcome.state == "succeeded":
                recording.enter(session, job)
        _log.info("ended as %s (%s)", outcome.state, outcome.verdict_word)
        remember_job(self._database, held.row_id, one_user=self._settings.one_user, secrets=known_secrets())

    def _finish_evaluation(self, held: Lease, outcome: EvaluationOutcome) -> None:
        with self._database.write() as session:
            row: Evaluation = lease.locked_row(session, held)
            if row.cancel_requested:
                outcome = EvaluationOutcome("cancelled", _CANCELLED)
            end_evaluation(session, row, outcome.state, outcome.reason, outcome.result)

    def _quietly(self, held: Lease, outcome: Outcome) -> None:
        try:
            self._patiently(lambda: self.finish(held, outcome))
        except LeaseLost:
            _log.info("%s was ended by another process", held.row_id)
