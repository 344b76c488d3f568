"""The referee for one machine and device. It keeps task sessions warm and answers requests."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evaluator.allocator import keep_freed_memory
from evaluator.description import Description, LintFinding, LintReport
from evaluator.devices import open_device
from evaluator.errors import DeviceFull, RoleFailure, SandboxUnavailable
from evaluator.referee.judging.evaluation import Evaluation
from evaluator.referee.lint.refusals import finding_of
from evaluator.referee.lint.report_store import ReportStore
from evaluator.referee.lint.rules.answers import HARDLY
from evaluator.referee.lint.run import lint, refusal
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.description import describe
from evaluator.referee.session.device_sharing import sharing_device
from evaluator.referee.session.task_memory import MoreMemoryNeeded
from evaluator.referee.session.task_session import Progress, TaskSession
from evaluator.request import Request
from evaluator.roles.tool_run import ToolResult, run_tool
from evaluator.sources import CandidateSource, TaskSource
from evaluator.submission import Submission, Submissions, livelier
from evaluator.timing.memory_parts import PARTS
from evaluator.verdict import Verdict, without_measurement
from evaluator.verdict_store import Question, VerdictStore

_MAX_SESSIONS = 2
#: With more referees than this on a device, each keeps only one task open, to leave memory for tasks being
#: judged.
_MANY_REFEREES = 2
#: Freed memory that stays in this process.
_KEPT_BYTES = 256 << 20
_log = logging.getLogger(__name__)
#: Lint rules for running out of memory. Other processes may have held that memory, so the report is not
#: final.
_MAYBE_MEMORY = ("out_of_memory", "not_judged")
#: An idle task held this long releases its memory between candidates if others are waiting for it.
_LONG_SECONDS = 60.0
_LIVELY = LintFinding(
    "weights_scaled",
    "warning",
    "with weights at the scale of the file, the output hardly depends on the inputs, so it is judged with larger weights",
    "to set your module's weights, define redraw(model, generator) in the file",
)
#: Share of the task's time that size inference may take, and the seconds that lint may take before a candidate
#: is judged.
_INFERENCE_SHARE, _LINT_SECONDS = 0.3, 120.0
_MOST_OPEN_SHAPES = 160
_TASK_WORDS = ("timeout", "out_of_memory", "not_judged")


class RefereeCore:
    """Answers the referee's requests, in its own process behind :class:`evaluator.client.Referee`.

    Args:
        device: ``cpu`` or ``cuda``.
        work_dir: folder for caches.
        minimum_tier: the weakest sandbox tier to accept.
        verdicts_dir: where verdicts are stored; None stores none.
        referees: how many referees share the device, including this one.
        fleet: an already opened fleet with the same settings.
    """

    def __init__(
        self,
        device: str,
        work_dir: Path,
        minimum_tier: str,
        verdicts_dir: Path | None = None,
        referees: int = 1,
        fleet: Fleet | None = None,
    ) -> None:
        keep_freed_memory(_KEPT_BYTES)  # judging softmax at 11 shapes: 4.0 s instead of 4.4
        # Referees of a batch have separate work folders but one folder of verdicts. Other shared stores lie
        # beside it.
        stores = verdicts_dir.parent if verdicts_dir else work_dir
        self.fleet = fleet or Fleet(
            open_device(device), work_dir, minimum_tier, stores=stores, referees=referees
        )
        if self.fleet.keeper is not None:
            self.fleet.keeper.make_room = self._make_room
        self._most_sessions = _MAX_SESSIONS if referees <= _MANY_REFEREES else 1
        self._verdicts = VerdictStore(verdicts_dir) if verdicts_dir else None
        self._lint_reports = ReportStore(stores / "lint")
        #: GPU memory that a task needs, where it is more than usual.
        self._needs_parts: dict[str, int] = {}
        #: Seconds waited for GPU memory so far.
        self._waited_s = 0.0
        #: Tasks whose output does not depend on the inputs more strongly with larger weights.
        self._no_livelier: set[str] = set()
        self._submissions = Submissions(stores / "spaces")
        self._sessions: OrderedDict[str, TaskSession] = OrderedDict()

    def self_check(self) -> dict[str, Any]:
        """The sandbox tier in use, the attacks it withstood, and the device."""
        return {"tier": self.fleet.tier, "attacks": self.fleet.attacks, "device": self.fleet.environment()}

    def session(self, task: TaskSource, expires_at: float = math.inf) -> TaskSession:
        """The warm session of a task, opened if needed. Raises RoleFailure if the task is refused."""
        session = self._sessions.pop(task.sha256, None)
        if session is None or session.process.dead:
            if session is not None:
                session.close()
            while len(self._sessions) >= self._most_sessions:
                self._sessions.popitem(last=False)[1].close()
            with _not_full():
                session = TaskSession(self.fleet, task, expires_at)
        self._sessions[task.sha256] = session
        return session

    def lint(self, task: TaskSource, deadline_s: float = 120.0, *, fresh: bool = False) -> LintReport:
        """The lint report, from the store if there is one, together with the source file that would be judged."""
        given, report = self._submitted(task, {}, time.monotonic() + deadline_s, fresh=fresh)
        return replace(report, inferred=given.inferred, source=given.task.source)

    def _submitted(
        self, task: TaskSource, space: Mapping[str, Any], expires_at: float, *, fresh: bool = False
    ) -> tuple[Submission, LintReport]:
        """The task as it will be judged, and its lint report."""
        try:
            given = self._submissions.read(
                task, space, self, _INFERENCE_SHARE * (expires_at - time.monotonic())
            )
        except RoleFailure as failure:
            return Submission(task), refusal(task, str(self.fleet.environment()["device"]), failure)
        found = given.inferred is not None and given.inferred.ok
        report = self._lint(given.task, expires_at, fresh=fresh, inferred=found)
        lies = [finding for finding in report.findings if finding.rule == "dims_lie"]
        if lies and given.inferred is not None and not space:
            # The file declares no shape space. Lint reports if the task is unsound at the sizes of its file.
            given = self._submissions.give_up(task, given.inferred, lies[0].sentence)
            report = self._lint(task, expires_at, fresh=fresh)
        lively = livelier(given) if report.varies_by < HARDLY else None
        if lively is not None and lively.task.sha256 not in self._no_livelier:
            again = self._lint(lively.task, expires_at, fresh=fresh, inferred=found)
            if again.ok and again.varies_by >= HARDLY:
                return lively, replace(again, findings=(*again.findings, _LIVELY))
            self._no_livelier.add(lively.task.sha256)
        return given, report

    def _lint(
        self, task: TaskSource, expires_at: float, *, fresh: bool = False, inferred: bool = False
    ) -> LintReport:
        environment = self.fleet.environment()
        device = str(environment["device"])
        report = None if fresh else self._lint_reports.get(task, environment)
        if report is not None:
            return replace(report, task=task.as_fields())
        report = self._looked_at(task, device, expires_at, inferred=inferred)
        if report.verdict in _MAYBE_MEMORY and self.fleet.gpu:
            # Other processes may have held the memory.
            report = self._looked_at(task, device, expires_at, inferred=inferred, all_of_it=True)
        self._lint_reports.put(task, environment, report)
        return report

    def _looked_at(
        self, task: TaskSource, device: str, expires_at: float, *, inferred: bool, all_of_it: bool = False
    ) -> LintReport:
        try:
            session = self.session(task, expires_at)
            session.process.expires_at = expires_at + self._take_memory(session, all_of_it=all_of_it)
            with _not_full():
                report = lint(session, device, inferred=inferred)
            session.process.expires_at = math.inf
        except RoleFailure as failure:
            report = refusal(task, device, failure)
        except SandboxUnavailable as failure:
            report = refusal(task, device, RoleFailure("not_judged", str(failure)))
        if not report.ok or session.process.dead:
            self._drop(task)
        return report

    def _take_memory(
        self, session: TaskSession, progress: Progress = lambda *_: None, *, all_of_it: bool = False
    ) -> float:
        """Reserves the GPU memory parts that a session is known to need, or ``all_of_it``.

        Returns the seconds waited.

        Raises:
            MoreMemoryNeeded: the session has shapes open in fewer parts.
            DeviceFull: other referees kept their parts for too long.
        """
        if not self.fleet.gpu:
            return 0.0
        usual = max(self._needs_parts.get(session.task.sha256, 0), self.fleet.budget.parts)
        count = PARTS if all_of_it else usual
        if session.shapes and session.memory.parts < count:
            raise MoreMemoryNeeded(count)

        def make_room() -> None:
            self._close_idle()
            progress("correctness", 0, 1, "waiting for the GPU's memory")

        began = time.monotonic()
        try:
            session.memory.take(count, make_room)
        finally:
            waited_s = time.monotonic() - began
            self._waited_s += waited_s
        return waited_s

    def _give_way(self) -> None:
        """Before the next request: releases memory that tasks have held for long, if others are waiting."""
        if self.fleet.gpu and self.fleet.memory_parts.wanted():
            held = [session for session in self._sessions.values() if session.memory.held_s > _LONG_SECONDS]
            for session in held:
                self._drop(session.task)

    def describe(
        self,
        task: TaskSource,
        deadline_s: float = 120.0,
        traffic: list[Any] | None = None,
        space: Mapping[str, Any] | None = None,
    ) -> Description:
        """The task's shape space and lint report, or why the task is refused."""
        self._load_compiler()  # its baselines compile in the background afterwards
        given, report = self._submitted(task, space or {}, time.monotonic() + deadline_s)
        if report.ok:
            found = self._describe(given.task, deadline_s, traffic)
        else:
            found = Description(verdict=report.verdict, reason=report.reason, detail=report.detail)
        return replace(found, lint=report, inferred=given.inferred, source=given.task.source)

    def _describe(
        self, task: TaskSource, deadline_s: float, traffic: list[Any] | None, *, all_of_it: bool = False
    ) -> Description:
        expires_at = time.monotonic() + deadline_s
        self._give_way()
        try:
            session = self.session(task, expires_at)
            session.process.expires_at = expires_at + self._take_memory(session, all_of_it=all_of_it)
            with _not_full():
                description = describe(session, traffic)
            session.process.expires_at = math.inf
            session.compile_in_background(description.shapes)
            return description
        except RoleFailure as failure:
            self._drop(task)
            if failure.word in _MAYBE_MEMORY and self.fleet.gpu and not all_of_it:
                # As for lint: other processes may have held the memory.
                left_s = max(1.0, expires_at - time.monotonic())
                return self._describe(task, left_s, traffic, all_of_it=True)
            word = failure.word if failure.word in _TASK_WORDS else "task_rejected"
            return Description(verdict=word, reason=failure.sentence, detail=failure.detail)
        except SandboxUnavailable as failure:
            return Description(verdict="not_judged", reason=str(failure))

    def build(self, task: TaskSource, candidate: CandidateSource, deadline_s: float) -> None:
        """Builds a candidate's extensions on a GPU machine before its task takes any GPU memory.

        The later evaluation finds the built files. A build that fails here fails again there, and is reported
        there.
        """
        expires_at = time.monotonic() + deadline_s
        with suppress(RoleFailure, SandboxUnavailable):
            session = self.session(task, expires_at)
            CandidateRun(self.fleet, session, candidate, expires_at).build_ahead()

    def evaluate(self, request: Request, progress: Progress) -> Verdict:
        """Returns the verdict and stores it for identical requests."""
        if request.is_timed:
            self._load_compiler()
        verdict = (
            self._judge_submitted(request, progress) if request.submitted else self._judge(request, progress)
        )
        if self._verdicts is not None:
            try:
                self._verdicts.keep(Question.of(request), verdict)
            except OSError as error:
                # A full disk must not cost this submission its verdict. It only costs the next one some time.
                _log.warning("could not store a verdict: %s", error)
        return verdict

    def _judge_submitted(self, request: Request, progress: Progress) -> Verdict:
        """Runs lint first, so that a worthless task is refused cheaply.

        The verdict names the file as submitted.
        """
        started, waited_s = time.monotonic(), self._waited_s
        given, report = self._submitted(
            request.task, request.space or {}, started + min(_LINT_SECONDS, request.deadline_s)
        )
        if not report.ok:
            word = "not_judged" if report.verdict == "not_judged" else "task_rejected"
            return self._no_session(request, word, report.reason, report.detail)
        left_s = request.deadline_s - (time.monotonic() - started) + self._waited_s - waited_s
        verdict = self._judge(replace(request, task=given.task, deadline_s=left_s), progress)
        return replace(verdict, task=request.task.as_fields())

    def _judge(self, request: Request, progress: Progress, *, alone: bool = False) -> Verdict:
        known = self._lint_reports.get(request.task, self.fleet.environment())
        if known is not None and known.verdict == "task_rejected":
            return self._no_session(request, known.verdict, known.reason, known.detail)
        self._give_way()
        try:
            session = self.session(request.task, time.monotonic() + request.deadline_s)
            session.process.expires_at = math.inf
        except RoleFailure as failure:
            self._drop(request.task)
            word = "not_judged" if failure.word == "not_judged" else "task_rejected"
            reason = f"{failure.sentence}; {finding_of(failure).mending}"
            return self._no_session(request, word, reason, failure.detail)
        except SandboxUnavailable as failure:
            return self._no_session(request, "not_judged", str(failure), "")
        evaluation = Evaluation(
            self.fleet,
            session,
            request,
            progress,
            alone=alone,
            take_memory=lambda: self._take_memory(session, progress, all_of_it=alone),
        )
        try:
            verdict = evaluation.judge()
        except MoreMemoryNeeded as more:
            self._needs_parts[request.task.sha256] = more.parts
            self._drop(request.task)
            return self._judge(request, progress, alone=alone)
        parts = session.memory.parts
        unusable = verdict.verdict in ("task_rejected", "not_judged") or evaluation.again
        # On a CPU, each open shape keeps up to 96 MiB of address space in a process with a limit. Close them
        # for the next candidate.
        if unusable or (not self.fleet.gpu and len(session.shapes) > _MOST_OPEN_SHAPES):
            self._drop(request.task)
        # With no time left, a second try could only time out, and that would be counted against the
        # candidate.
        took_s = verdict.elapsed_s - evaluation.waited_s
        if evaluation.again and not alone and took_s < request.deadline_s:
            if 0 < 2 * parts < PARTS:
                # All parts are free only after every other evaluation has ended.
                self._needs_parts[request.task.sha256] = 2 * parts
                self._drop(request.task)
                return self._judge(_rest(request, took_s), progress)
            self._close_idle(in_use=0)
            return self._judge(_rest(request, took_s), progress, alone=True)
        if evaluation.reference_failed and session.has_served and took_s < request.deadline_s:
            # A fault of the device in one of its baselines shows in whatever the process does next.
            _log.warning("%s; it is tried once more in a new process", verdict.reason)
            return self._judge(_rest(request, took_s), progress, alone=alone)
        session.has_served = session.has_served or not unusable
        return verdict

    def while_idle(self) -> None:
        """Called between requests: releases GPU memory that another referee's evaluation is waiting for."""
        if self.fleet.keeper is not None and self._sessions and self.fleet.memory_parts.wanted():
            self._close_idle(in_use=0)
            self.fleet.keeper.give_back()

    def _load_compiler(self) -> None:
        """Before something is timed: both sides of a pair come from a fork server that has torch's compiler."""
        for session in [one for one in self._sessions.values() if not one.has_compiler]:
            self._drop(session.task)
        self.fleet.load_compiler()

    def _close_idle(self, in_use: int = 1) -> None:
        """Closes every task except the most recent one, to free the memory of their references."""
        while len(self._sessions) > in_use:
            self._sessions.popitem(last=False)[1].close()

    def _make_room(self) -> None:
        """Frees a full device: drops tasks not in use and whatever was compiled ahead."""
        self._close_idle()
        for session in self._sessions.values():
            session.ahead.give_memory_back()

    def _drop(self, task: TaskSource) -> None:
        session = self._sessions.pop(task.sha256, None)
        if session is not None:
            session.close()

    def _no_session(self, request: Request, word: str, reason: str, detail: str) -> Verdict:
        return without_measurement(
            word,
            reason,
            task=request.task.as_fields(),
            candidate=request.candidate.as_fields(),
            effort=request.effort,
            splits=request.splits,
            environment=self.fleet.environment(),
            detail=detail,
        )

    def run_tool(
        self,
        program: str,
        files: Mapping[str, str],
        *,
        deadline_s: float,
        memory_bytes: int | None = None,
        device: bool = False,
        timed: bool = False,
    ) -> ToolResult:
        """Runs a trusted program beside untrusted files in a disposable process.

        With ``timed``, the program has two functions: `prepare`, in whose pauses others time, and `main`, during which nothing else is
        timed. Each has ``deadline_s``.
        """
        process = self.fleet.tool(memory_bytes, device=device)
        if not timed:
            return run_tool(process, program, files, deadline_s)
        stages = (
            ("prepare", sharing_device(self.fleet, process)),
            ("main", self.fleet.device_lock.exclusive()),
        )
        return run_tool(process, program, files, deadline_s, stages=stages)

    def close(self) -> None:
        """Ends every process."""
        for session in list(self._sessions.values()):
            session.close()
        self.fleet.close()


@contextmanager
def _not_full() -> Iterator[None]:
    """Guards work in the referee's own GPU process, where memory taken by other programs is not an internal error.

    Raises:
        DeviceFull: instead of torch's out-of-memory error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        first = str(error).partition("\n")[0][:300]
        sentence = f"other programs took the GPU's memory: {first}; try again when they have ended, or run fewer referees"
        raise DeviceFull("not_judged", sentence) from None


def _rest(request: Request, took_s: float) -> Request:
    """The same request with its remaining time."""
    return replace(request, deadline_s=request.deadline_s - took_s)
