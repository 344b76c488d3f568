"""Explains a correct candidate outside the timed part: static analysis, observation, no-op replay.

Nothing here decides the verdict. It adds ``info`` and ``warning`` findings, labels and the list of kernels. If the
candidate dies while observed, hangs, or lies, that becomes one more finding.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from dataclasses import replace

from evaluator.errors import RoleFailure, SandboxUnavailable
from evaluator.integrity import observation, static
from evaluator.integrity.observation import Observation
from evaluator.integrity.static import Analysis
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import twin
from evaluator.referee.session.expectation import Case, difference
from evaluator.referee.session.outcome import Explanation
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol
from evaluator.roles.arena import sealed_text
from evaluator.roles.process import RoleProcess
from evaluator.verdict import Finding, KernelShare

_STATIC_SECONDS = 20.0
#: Far more than source of the allowed size needs. Torch's own data counts too.
_STATIC_MEMORY_BYTES = 2 << 30
_MAX_ANALYSIS_BYTES = 1 << 20
_CALL_SECONDS = 30.0
#: Upper limit in seconds for everything here. An evaluation that is nearly out of time allows less.
_BUDGET_SECONDS = {"screen": 10.0, "confirm": 60.0}
#: By effort: how many shapes are observed, and how many of them are replayed without the candidate's kernels.
_SHAPES = {"screen": 1, "confirm": 4}
_REPLAYS = {"screen": 0, "confirm": 2}
_SHOWN_KERNELS = 12
#: For a call without the candidate's own kernels. glibc fills new memory with the complement of this byte, so an
#: empty kernel leaves zeros.
_MUTED_CALL_SECONDS, _ZEROS = 20.0, 255


class Investigation:
    """Runs the investigation in its own thread while the evaluation continues.

    Args:
        fleet: starts its processes.
        session: of the task.
        judged: the candidate, built and found correct.
        shapes: where it was checked, timed shapes first.
        effort: ``screen`` or ``confirm``.
        expires_at: monotonic time at which the evaluation ends.
    """

    def __init__(
        self,
        fleet: Fleet,
        session: TaskSession,
        judged: CandidateRun,
        shapes: list[OpenShape],
        effort: str,
        expires_at: float = math.inf,
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._judged = judged
        self._candidate = judged.candidate
        # Starting a second process with the device and its profiler takes seconds, more than a whole screen.
        unseen = fleet.gpu and effort == "screen"
        self._shapes = [] if unseen else _spread(shapes, _SHAPES[effort])
        self._replays = _REPLAYS[effort]
        self._expires_at = min(expires_at, time.monotonic() + _BUDGET_SECONDS[effort])
        self.explanation = Explanation()

    @property
    def watches(self) -> bool:
        """Whether it runs a process of the candidate."""
        return bool(self._shapes)

    def run(self) -> Explanation:
        """The explanation. Never raises for what a candidate does."""
        found = self.explanation
        analysis = self._analyze()
        found.findings += [Finding(*one) for one in analysis.findings]
        seen: list[tuple[OpenShape, Observation]] = []
        decoys: list[OpenShape] = []
        process = self._judged.watched_twin(self._expires_at)
        try:
            if self._shapes:
                process.start()
            for shape in self._shapes:
                seen.append((shape, self._observe(process, shape, analysis)))
            decoys = self._replay(process, seen)
        except (RoleFailure, SandboxUnavailable, OSError, ValueError) as failure:
            words = static.clean(str(failure), 300)
            found.findings.append(
                Finding("not_observed", "info", f"could not observe which kernels run: {words}")
            )
        finally:
            process.close()
        if decoys:
            evidence = (
                f"at {_all_of(decoys)} the outputs stay right when its own kernels are replaced by nothing: "
                "they do not compute the answer"
            )
            found.findings.append(Finding("decoy_kernel", "warning", evidence))
        idle = [shape for shape, one in seen if not one.runs_own]
        if analysis.has_kernels and idle:
            evidence = f"it brings kernels of its own, but none of them was seen to run at {_all_of(idle)}"
            found.findings.append(Finding("fallback_ran", "warning", evidence))
        past = [shape for shape, one in seen if one.runs_own and not one.own_calls]
        if past:
            evidence = (
                f"at {_all_of(past)} its own kernels are launched past the calls of their language, "
                "so whether the outputs need them was not tested"
            )
            found.findings.append(Finding("not_replaced", "info", evidence))
        observed = [one for _, one in seen]
        rewritten = bool(seen) and not any(one.runs_own or one.compiled or one.graphs for one in observed)
        reference = self._reference(seen[0][0]) if rewritten else None
        found.labels = observation.labels(observed, bool(decoys), reference)
        found.kernels = _merged(observed)
        return found

    # -- the three looks ---------------------------------------------------------------------------------------

    def _analyze(self) -> Analysis:
        """Static analysis in a disposable process, because parsing hostile source can crash an interpreter."""
        process: RoleProcess | None = None
        source = self._candidate.source[: static.MAX_READ].encode("utf-8", "replace").decode()
        files = {"candidate.py": source}
        text = sealed_text(json.dumps({"program": static.PROGRAM, "files": files}).encode())
        try:
            process = self._fleet.tool(_STATIC_MEMORY_BYTES, device=False)
            process.expires_at = self._expires_at
            with tempfile.TemporaryFile() as sink:
                process.request_json(protocol.TOOL, {}, _STATIC_SECONDS, (text, sink.fileno()))
                sink.seek(0)
                return static.from_json(json.loads(sink.read(_MAX_ANALYSIS_BYTES)))
        except (RoleFailure, SandboxUnavailable, OSError, ValueError, RecursionError) as failure:
            words = static.clean(str(failure), 300)
            return Analysis(((static.NOT_ANALYZED, "info", f"its text could not be analyzed: {words}"),))
        finally:
            os.close(text)
            if process is not None:
                process.close()

    def _observe(self, run: CandidateRun, shape: OpenShape, analysis: Analysis) -> Observation:
        side = run.open(shape)
        side.fill(1)
        answer = side.process.request_json(protocol.KERNELS, {"shape": side.key}, _CALL_SECONDS)
        return observation.read(answer, analysis, gpu=self._fleet.gpu)

    def _replay(self, run: CandidateRun, seen: list[tuple[OpenShape, Observation]]) -> list[OpenShape]:
        """The shapes at which the candidate is right when its own kernels are replaced by nothing (E53).

        The referee chooses contents that the process has not seen and compares as always. Only the replacement
        happens in the process. A candidate that detects it can spoil the test, and only gains or loses a label.
        """
        decoys = []
        for shape, one in sorted(seen, key=lambda pair: pair[0].inputs.input_bytes):
            cases = shape.checks.cases[:2]
            if not one.own_calls or not cases or self._replays <= 0:
                continue
            self._replays -= 1
            # The expected form of the outputs comes from one normal call at this shape.
            side = run.open(shape)
            side.process.request_json(protocol.KERNELS, {"shape": side.key}, _CALL_SECONDS)
            try:
                if _right_without_kernels(side, cases):
                    decoys.append(shape)
            except RoleFailure:
                break  # it needs its kernels
        return decoys

    def _reference(self, shape: OpenShape) -> Observation | None:
        """What the reference itself runs at a shape. Observed once per session."""
        if shape.checks.observation is None:
            run = CandidateRun(
                self._fleet,
                self._session,
                twin(self._session.task),
                self._expires_at,
                "control",
                watched=True,
            )
            try:
                run.start()
                shape.checks.observation = (self._observe(run, shape, Analysis()),)
            except (RoleFailure, SandboxUnavailable, OSError, ValueError):
                shape.checks.observation = ()
            finally:
                run.close()
        return next(iter(shape.checks.observation), None)


def _right_without_kernels(side: Side, cases: list[Case]) -> bool:
    """Whether the outputs are right although the candidate's own kernels, some of which were called, did not run.

    Raises:
        RoleFailure: the module failed without its kernels, which only shows that it needs them.
    """
    called = 0
    for case in cases:
        _mute(side, muted=True)
        side.ready(_MUTED_CALL_SECONDS, poison=_ZEROS)
        side.write(0, case.contents)
        block = side.block(1, _MUTED_CALL_SECONDS)
        words = difference(case, block.report.metas, side.outputs(block, 0))
        called += _mute(side, muted=False)
        if words:
            return False
    return called > 0


def _mute(side: Side, *, muted: bool) -> int:
    """Switches own kernels off or on. Returns the process's count of calls since the last switch."""
    calls = side.process.request_json(protocol.MUTE, {"muted": muted}, _MUTED_CALL_SECONDS).get("calls")
    return calls if type(calls) is int else 0


def _spread(shapes: list[OpenShape], count: int) -> list[OpenShape]:
    """Some of the shapes, from the largest to the smallest."""
    unique = list({shape.key: shape for shape in shapes}.values())
    unique.sort(key=lambda shape: -shape.inputs.input_bytes)
    if len(unique) <= count:
        return unique
    steps = [round(index * (len(unique) - 1) / max(count - 1, 1)) for index in range(count)]
    return [unique[step] for step in steps]


def _merged(seen: list[Observation]) -> tuple[KernelShare, ...]:
    """One list over all shapes: mean shares, highest call counts."""
    kernels: dict[tuple[str, str], KernelShare] = {}
    for one in seen:
        for kernel in one.kernels:
            key = (kernel.kind, kernel.name)
            before = kernels.get(key, replace(kernel, share=0.0, calls=0))
            share = round(before.share + kernel.share / len(seen), 4)
            kernels[key] = replace(before, share=share, calls=max(before.calls, kernel.calls))
    return tuple(sorted(kernels.values(), key=lambda kernel: -kernel.share)[:_SHOWN_KERNELS])


def _all_of(shapes: list[OpenShape]) -> str:
    return "; ".join(shape.where for shape in shapes)
