"""Client for the referee: starts it as a child process with a whitelisted environment and talks to it over pipes."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluator import errors
from evaluator.description import Description, LintReport
from evaluator.devices import open_device
from evaluator.errors import EvaluatorError, RefereeLost
from evaluator.folders import default_work_dir, verdicts_folder
from evaluator.request import Request
from evaluator.roles.tool_run import ToolResult
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict, from_json
from evaluator.verdict_store import VerdictStore

#: Environment variables passed to the referee: where programs are, never a key or a database address.
_PASSED = (
    "PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
    "VIRTUAL_ENV", "XDG_CACHE_HOME", "OMP_WAIT_POLICY", "KERNELWRIGHT_COMPILE_AHEAD",
)  # fmt: skip

ProgressCallback = Callable[[dict[str, Any]], None]


class Referee:
    """Starts a referee process and sends it requests. A context manager.

    Calls run one at a time, because they share a device and its clock. :meth:`kill` is safe from any thread.

    Args:
        device: ``cpu`` or ``cuda``.
        work_dir: folder for caches; see :func:`default_work_dir`.
        minimum_tier: the weakest sandbox tier to accept.
        visible_gpu: ``CUDA_VISIBLE_DEVICES`` for the referee and its roles; defaults to this process's value.
        verdicts_dir: where verdicts are stored; defaults to :func:`verdicts_folder` of the work folder.
        referees: how many referees share the device and its memory, including this one.

    Raises:
        SandboxUnavailable: this machine cannot isolate untrusted code at the required tier.
        EvaluatorError: there is no such device.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        work_dir: Path | None = None,
        minimum_tier: str = "landlock",
        visible_gpu: str | None = None,
        verdicts_dir: Path | None = None,
        referees: int = 1,
    ) -> None:
        self.device = device
        self._referees = referees
        self._work_dir = work_dir or default_work_dir()
        self._visible_gpu = visible_gpu
        self._verdicts_dir = verdicts_dir or verdicts_folder(self._work_dir)
        self._minimum_tier = minimum_tier
        self._lock = threading.Lock()
        self._killed = False
        self._process = self._start()

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[str]:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        if self._visible_gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._visible_gpu
        root = str(Path(__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "evaluator", "referee"]
        command += [
            "--device",
            self.device,
            "--work-dir",
            str(self._work_dir),
            "--verdicts-dir",
            str(self._verdicts_dir),
            "--minimum-tier",
            self._minimum_tier,
            "--client-pid",
            str(os.getpid()),
            "--referees",
            str(self._referees),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
            # A terminal's Ctrl-C must reach this process, not stop the referee halfway.
            start_new_session=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        message = (
            json.loads(line) if line else {"fatal": "RefereeLost", "message": "the referee did not start"}
        )
        if "fatal" in message:
            process.wait()
            kind = getattr(errors, str(message["fatal"]), EvaluatorError)
            raise (
                kind(message["message"])
                if issubclass(kind, EvaluatorError)
                else EvaluatorError(message["message"])
            )
        return process

    @property
    def alive(self) -> bool:
        """Whether the referee process is running."""
        return self._process.poll() is None

    def restart(self) -> None:
        """Starts a new referee after the old one was killed or lost. Compile caches stay."""
        self._stop()
        self._killed = False
        self._process = self._start()

    def _call(self, request: dict[str, Any], on_progress: ProgressCallback | None = None) -> Any:
        with self._lock:
            process = self._process
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                while line := process.stdout.readline():
                    message = json.loads(line)
                    if "progress" in message:
                        if on_progress is not None:
                            on_progress(message["progress"])
                        continue
                    if "error" in message:
                        raise EvaluatorError(message["error"])
                    return message["answer"]
            except (BrokenPipeError, ConnectionError, ValueError):
                pass
        words = "was killed" if self._killed else f"exited on its own (status {process.poll()})"
        raise RefereeLost(f"the referee {words} while a call was running")

    def self_check(self) -> dict[str, Any]:
        """The sandbox tier in use, the attacks it withstood, and facts about the device."""
        answer: dict[str, Any] = self._call({"call": "self_check"})
        return answer

    def describe(
        self,
        task: TaskSource,
        *,
        deadline_s: float = 120.0,
        traffic: Sequence[Mapping[str, Any]] | None = None,
        space: Mapping[str, Any] | None = None,
    ) -> Description:
        """The task's shape space, inputs and splits, or why it is refused.

        Judge candidates against its ``source``. ``space`` overrides inferred values, by dimension.
        """
        given = list(traffic) if traffic else None
        request = {"call": "describe", "task": asdict(task), "deadline_s": deadline_s, "traffic": given}
        request["space"] = dict(space) if space else None
        return Description.from_json(self._call(request))

    def lint(self, task: TaskSource, *, fresh: bool = False, deadline_s: float = 120.0) -> LintReport:
        """Reports what makes the task worthless or doubtful. Lint runs once per task and its report is stored.

        Args:
            task: the reference.
            fresh: run lint again even if a report is stored.
            deadline_s: seconds for opening the task and for all lint checks together.
        """
        request = {"call": "lint", "task": asdict(task), "deadline_s": deadline_s, "fresh": fresh}
        return LintReport.from_json(self._call(request))

    def evaluate(
        self,
        task: TaskSource,
        candidate: CandidateSource,
        *,
        effort: str = "screen",
        splits: Sequence[str] = ("visible", "adversarial"),
        shapes: Mapping[str, list[dict[str, Any]]] | None = None,
        traffic: Sequence[Mapping[str, Any]] | None = None,
        deadline_s: float | None = None,
        reuse: bool = False,
        submitted: bool = False,
        space: Mapping[str, Any] | None = None,
        energy: bool = False,
        on_progress: ProgressCallback | None = None,
    ) -> Verdict:
        """Judges a candidate and returns the verdict.

        Args:
            task: the reference.
            candidate: the submission to judge.
            effort: ``screen`` or ``confirm``.
            splits: which shapes to use.
            shapes: shapes to use instead of sampled ones, by split.
            traffic: shapes (``dims``), each with a ``weight``, that replace the task's own ``TRAFFIC``. The
                visible and validation splits start with them, and the summary is weighted by them.
            deadline_s: seconds for the whole evaluation; 900 by default.
            reuse: return the stored verdict of an earlier evaluation of the same sources, if there is one. It is
                marked ``reused``. Held-out shapes are always drawn and judged anew.
            submitted: the task comes from a user. Lint runs first, and the shape space is inferred if the file
                declares none. Without this flag, such a task has only the one shape of its file.
            space: overrides for the inferred space; see :meth:`describe`.
            energy: with ``confirm``, also measure joules per call. Stored verdicts are not reused then.
            on_progress: called with stage, done, total and text.

        Raises:
            RefereeLost: the referee died or was killed during the call.
        """
        request = Request(
            task,
            candidate,
            effort,
            tuple(splits),
            shapes,
            deadline_s or 900.0,
            list(traffic) if traffic else None,
            submitted,
            space,
            energy,
        )
        if reuse and not energy:
            device = open_device(self.device, self._visible_gpu)
            kept = VerdictStore(self._verdicts_dir).answer(request, device, self._minimum_tier)
            if kept is not None:
                return kept
        return self.judge(request, on_progress)

    def judge(self, request: Request, on_progress: ProgressCallback | None = None) -> Verdict:
        """See :meth:`evaluate`; stored verdicts are not reused."""
        return from_json(self._call({"call": "evaluate", "request": request.as_json()}, on_progress))

    def run_tool(
        self,
        program: str,
        files: Mapping[str, str],
        *,
        deadline_s: float = 120.0,
        memory_bytes: int | None = None,
        device: bool = False,
        timed: bool = False,
    ) -> ToolResult:
        """Runs trusted ``program`` beside untrusted ``files`` in a disposable sandboxed process.

        With ``timed``, the program has two functions: `prepare`, in whose pauses other referees time, and `main`, during which none
        does.
        """
        answer = self._call(
            {
                "call": "run_tool",
                "program": program,
                "files": dict(files),
                "deadline_s": deadline_s,
                "memory_bytes": memory_bytes,
                "device": device,
                "timed": timed,
            }
        )
        outputs = {name: base64.b64decode(data) for name, data in answer.pop("outputs").items()}
        return ToolResult(**answer, outputs=outputs)

    def build(self, task: TaskSource, candidate: CandidateSource, *, deadline_s: float = 900.0) -> None:
        """Builds a candidate's extensions before its evaluation.

        See :meth:`evaluator.referee.judging.core.RefereeCore.build`.

        Raises:
            RefereeLost: the referee died or was killed during the call.
        """
        self._call(
            {
                "call": "build",
                "task": asdict(task),
                "candidate": asdict(candidate),
                "deadline_s": deadline_s,
            }
        )

    def kill(self) -> None:
        """Kills the referee and every process it started. A running call raises RefereeLost."""
        self._killed = True
        try:
            os.kill(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _stop(self) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def close(self) -> None:
        """Shuts the referee down cleanly."""
        self._stop()
