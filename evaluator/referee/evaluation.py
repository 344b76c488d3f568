"""One evaluation, start to end: (task, candidate) -> verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.errors import RoleFailure, SandboxUnavailable
from evaluator.integrity.investigation import Explanation, Investigation
from evaluator.referee import calibration, measure
from evaluator.referee.candidate import CandidateRun
from evaluator.referee.captured import measure_captured
from evaluator.referee.control import Control
from evaluator.referee.correctness import Outcome, Rejected, cases, check, make_case, remarks
from evaluator.referee.expectation import Case
from evaluator.referee.fleet import Fleet
from evaluator.referee.open_shape import OpenShape
from evaluator.referee.side import Side
from evaluator.referee.task_session import Progress, TaskSession
from evaluator.referee.warm import measure_warm
from evaluator.shapes.sampler import SPLITS
from evaluator.shapes.space import Dims, check_shape
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import on_core
from evaluator.timing.statistics import summarize
from evaluator.verdict import Finding, KernelShare, ShapeResult, Verdict

_UNTIMED = ("adversarial",)
#: Programs of a grid run one after the other there, each in about 2 ms of Python; thousands of rows take a minute.
_INTERPRETED_CAP_BYTES = 64 << 10
_INTERPRETED = (
    "its Triton kernels ran in Triton's interpreter on the CPU, which shows whether they are right and says nothing "
    "about their speed"
)


@dataclass
class Request:
    """What is to be judged and how."""

    task: TaskSource
    candidate: CandidateSource
    effort: str = "screen"
    splits: tuple[str, ...] = ("visible", "adversarial")
    shapes: dict[str, list[Dims]] | None = None
    deadline_s: float = 900.0


@dataclass
class _Run:
    findings: list[Finding] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)
    results: list[ShapeResult] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    kernels: tuple[KernelShare, ...] = ()

    def explain(self, explanation: Explanation) -> None:
        """Takes over what was found out about a correct candidate; its seconds lie within those of other stages."""
        self.findings += explanation.findings
        self.labels, self.kernels = explanation.labels, explanation.kernels
        self.stages_s["integrity"] = explanation.elapsed_s


class Evaluation:
    """Runs one :class:`Request` and words the verdict; never raises for what a role does."""

    def __init__(self, fleet: Fleet, session: TaskSession, request: Request, progress: Progress) -> None:
        self.fleet = fleet
        self.session = session
        self.request = request
        self.progress = progress
        self.run_state = _Run()
        self._started = time.monotonic()
        expires_at = self._started + request.deadline_s
        self.candidate = CandidateRun(fleet, session, request.candidate, expires_at)
        self.control = Control(fleet, session)

    def judge(self) -> Verdict:
        """The verdict."""
        try:
            word, reason, detail = self._judge()
        except Rejected as rejected:
            word, reason, detail = rejected.word, rejected.sentence, ""
            self.run_state.findings += rejected.findings
        except RoleFailure as failure:
            word, reason, detail = failure.word, failure.sentence, failure.detail
            if failure.role == "reference":
                word = word if word == "not_judged" else "task_rejected"
                reason = f"the reference itself failed: {reason}"
            elif failure.role == "control":
                word, reason = "not_judged", f"the baseline could not be timed beside the candidate: {reason}"
        except SandboxUnavailable as failure:
            word, reason, detail = "not_judged", str(failure), ""
        finally:
            self.candidate.close()
            self.control.close()
            if self.session.process.frozen and not self.session.process.dead:
                self.session.process.thaw()
        return self._verdict(word, reason, detail)

    # -- stages ------------------------------------------------------------------------------------------------

    def _judge(self) -> tuple[str, str, str]:
        clock = _Stages(self.run_state.stages_s)
        lock = self.fleet.device_lock
        with lock.shared():
            opened = self._prepare(clock)
        if self.candidate.interpreted:
            self.run_state.findings.append(Finding("interpreted", "info", _INTERPRETED))
            for split in opened:
                self.run_state.results += [self._untimed(split, shape) for shape in opened[split]]
            return "accepted", self._reason(), ""
        timed = [(split, shape) for split in opened if split not in _UNTIMED for shape in opened[split]]
        explained = self._investigation(opened, [shape for _, shape in timed])
        every = self.request.effort == "confirm"
        with lock.shared(), explained.beside():
            self.session.compile_baselines([shape for _, shape in timed], self.progress, every=every)
        clock.lap("baseline_compile")
        self.run_state.explain(explained.explanation)
        self.progress("timing", 0, len(timed), "waiting for the device's clock")
        with lock.exclusive(), on_core(self.fleet.core):
            clock.lap("waiting")
            self.session.rank_baselines([shape for _, shape in timed], self.progress)
            clock.lap("baselines")
            self._aa([shape for _, shape in timed])
            clock.lap("aa")
            self._time_all(timed)
            clock.lap("timing")
        self.fleet.unpin(self.session.process)
        for split in opened:
            if split in _UNTIMED:
                self.run_state.results += [self._untimed(split, shape) for shape in opened[split]]
        return "accepted", self._reason(), ""

    def _prepare(self, clock: _Stages) -> dict[str, list[OpenShape]]:
        """Everything before the clock: reference, build, load, correctness."""
        chosen = self._shapes()
        if not any(chosen.values()):
            raise RoleFailure(
                "task_rejected", "no shape of the task fits this machine's memory cap", role="reference"
            )
        opened = {split: [self._open(dims) for dims in shapes] for split, shapes in chosen.items()}
        every = [shape for shapes in opened.values() for shape in shapes]
        clock.lap("reference")
        self.progress("compile", 0, 1, "building the candidate")
        self.candidate.build(list({shape.key: shape for shape in every}.values()))
        clock.lap("compile")
        self.candidate.start()
        clock.lap("load")
        self._check_all(every)
        clock.lap("correctness")
        return opened

    def _investigation(self, opened: dict[str, list[OpenShape]], timed: list[OpenShape]) -> Investigation:
        shapes = timed or [shape for shapes in opened.values() for shape in shapes]
        effort, expires_at = self.request.effort, self.candidate.expires_at
        return Investigation(self.fleet, self.session, self.candidate, shapes, effort, expires_at)

    def _shapes(self) -> dict[str, list[Dims]]:
        given = self.request.shapes or {}
        for split in (*self.request.splits, *given):
            if split not in SPLITS:
                raise RoleFailure("task_rejected", f"unknown split {split!r}; known: {', '.join(SPLITS)}")
        cap_bytes = _INTERPRETED_CAP_BYTES if self.candidate.interpreted else None
        chosen = {
            split: [check_shape(self.session.space, dims) for dims in given[split]]
            if split in given
            else self.session.sample(split, cap_bytes)
            for split in self.request.splits
        }
        if cap_bytes is None:
            return chosen
        small = {split: self.session.fitting(shapes, cap_bytes) for split, shapes in chosen.items()}
        # Rather slow than unseen, where somebody asked for large shapes only.
        return small if any(small.values()) else chosen

    def _open(self, dims: Dims) -> OpenShape:
        self._check_deadline()
        return self.session.open(dims)

    def _check_deadline(self) -> None:
        if time.monotonic() - self._started > self.request.deadline_s:
            raise RoleFailure(
                "timeout", f"the evaluation did not finish within {self.request.deadline_s:.0f} s"
            )

    def _check_all(self, shapes: Sequence[OpenShape]) -> None:
        """First every shape in turn, then again in random order with fresh contents: shapes alternate."""
        unique = list({shape.key: shape for shape in shapes}.values())
        for done, shape in enumerate(unique):
            self._check_deadline()
            self.progress("correctness", done, len(unique), f"checking {_words(shape.dims)}")
            side = self.candidate.open(shape)
            outcome = self.run_state.outcomes.setdefault(shape.key, Outcome())
            check(side, shape, cases(self.session, shape, self.run_state.findings), outcome)
        again = random.SystemRandom().sample(unique, len(unique)) if len(unique) > 1 else []
        for shape in again:
            self._check_deadline()
            case = make_case(self.session, shape, "task", self.run_state.findings)
            check(self.candidate.sides[shape.key], shape, [case], self.run_state.outcomes[shape.key])
        self.run_state.findings += remarks(list(self.run_state.outcomes.values()), self.session.precision)

    def _earlier(self, shape: OpenShape) -> list[Case]:
        kept: list[Case] = shape.checks.get("cases", [])
        return kept

    def _time_all(self, timed: Sequence[tuple[str, OpenShape]]) -> None:
        effort = measure.EFFORTS[self.request.effort]
        order = random.SystemRandom().sample(list(timed), len(timed))
        for done, (split, shape) in enumerate(order):
            self._check_deadline()
            self.progress("timing", done, len(order), f"timing {_words(shape.dims)}")
            outcome = self.run_state.outcomes[shape.key]
            side = self.candidate.sides[shape.key]
            rivals = self.control.rivals(shape)
            timing = measure.measure(self.session, shape, side, rivals, outcome, self._earlier(shape), effort)
            captured, warm = self._regimes(shape, side, outcome, timing)
            self.run_state.results.append(
                ShapeResult(
                    dims=shape.dims,
                    split=split,
                    dtype=shape.output_metas[0].dtype,
                    correct=True,
                    error={"max_ratio": outcome.max_ratio, "max_abs": outcome.max_abs},
                    timed=True,
                    baselines={b.name: {"median_us": b.median_us} for b in shape.baselines if not b.failure},
                    best_baseline=timing.baseline,
                    baseline_us=timing.baseline_us,
                    candidate_us=timing.candidate_us,
                    speedup=timing.speedup,
                    ci95=timing.ci95,
                    decision=timing.decision,
                    log_ratios=timing.log_ratios,
                    disturbed_quads=timing.disturbed,
                    captured=captured,
                    warm=warm,
                    clock=timing.clock,
                    cycles=timing.cycles,
                )
            )

    def _regimes(
        self, shape: OpenShape, side: Side, outcome: Outcome, cold: measure.Timing
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """What ``confirm`` reports beside the headline: captured calls (on a GPU), and warm ones."""
        if self.request.effort != "confirm":
            return None, None
        arguments = (self.session, shape, side, self.control, outcome, self._earlier(shape))
        captured = None
        if self.fleet.gpu:
            timing = measure_captured(*arguments, measure.EFFORTS["confirm"], cold)
            captured = {"why_not": timing} if isinstance(timing, str) else timing.as_fields()
        return captured, measure_warm(*arguments, cold)

    def _untimed(self, split: str, shape: OpenShape) -> ShapeResult:
        outcome = self.run_state.outcomes[shape.key]
        error = {"max_ratio": outcome.max_ratio, "max_abs": outcome.max_abs}
        return ShapeResult(shape.dims, split, shape.output_metas[0].dtype, True, error)

    def _aa(self, timed: Sequence[OpenShape]) -> None:
        """Once per session."""
        if self.session.aa is None and timed:
            target_us = self.fleet.device.block_target_us / 4
            shape = min(timed, key=lambda s: abs(s.best.median_us - target_us))
            self.session.aa = calibration.gate(self.fleet, self.session, shape, self.progress)

    # -- words -------------------------------------------------------------------------------------------------

    def _reason(self) -> str:
        summary = self._summary()
        if summary["geomean_speedup"] is None:
            shapes = len(self.run_state.outcomes)
            if self.candidate.interpreted:
                return f"correct at {shapes} shapes; not timed: {_INTERPRETED}"
            return "correct at every shape; nothing was timed"
        low, high = summary["geomean_ci95"]
        return (
            f"correct at {len(self.run_state.outcomes)} shapes; {summary['geomean_speedup']:.2f}x "
            f"[{low:.2f}, {high:.2f}] against the best baseline at each of {summary['shapes']} timed shapes"
        )

    def _summary(self) -> dict[str, Any]:
        timed = [result for result in self.run_state.results if result.timed]

        def of(results: list[ShapeResult]) -> dict[str, Any]:
            return summarize([r.log_ratios for r in results], [r.decision or "undecided" for r in results])

        by_split = {split: of([r for r in timed if r.split == split]) for split in {r.split for r in timed}}
        overfit = None
        if "visible" in by_split and "held_out" in by_split:
            overfit = by_split["visible"]["geomean_speedup"] / by_split["held_out"]["geomean_speedup"]
        return {**of(timed), "overfit_index": overfit, "by_split": by_split}

    def _verdict(self, word: str, reason: str, detail: str) -> Verdict:
        run, request = self.run_state, self.request
        accepted = word == "accepted"
        results = sorted(run.results, key=lambda r: (SPLITS.index(r.split), str(r.dims))) if accepted else []
        if not accepted:
            run.results = []
        if self.session.unavailable:
            evidence = "; ".join(
                f"{name}: {why[:160]}" for name, why in sorted(self.session.unavailable.items())
            )
            run.findings.append(Finding("baseline_unavailable", "warning", evidence))
        return Verdict(
            verdict=word,
            reason=reason,
            findings=tuple(run.findings),
            task={"name": request.task.name, "sha256": request.task.sha256},
            candidate={
                "sha256": request.candidate.sha256,
                "origin": request.candidate.origin,
                "label": request.candidate.label,
            },
            effort=request.effort,
            splits=tuple(request.splits),
            environment=self.fleet.environment(),
            shapes=tuple(results),
            summary=self._summary(),
            timing={
                **measure.facts(request.effort),
                "quads": min((len(r.log_ratios) for r in results if r.timed), default=0),
                "aa": self.session.aa,
                "throttle": _throttle(results),
            },
            setup_s=self.candidate.setup_s,
            first_call_s=next((o.first_call_s for o in run.outcomes.values() if o.checks), None),
            compile_s=self.candidate.compile_s,
            stages_s=run.stages_s,
            elapsed_s=time.monotonic() - self._started,
            detail=detail,
            labels=run.labels if accepted else (),
            kernels=run.kernels if accepted else (),
        )


def _throttle(results: list[ShapeResult]) -> dict[str, Any] | None:
    """Over all shapes: lowest and highest clock in MHz, and every reason for which it was held back."""
    clocks = [result.clock for result in results if result.clock is not None]
    if not clocks:
        return None
    return {
        "sm_mhz": [min(c["sm_mhz"][0] for c in clocks), max(c["sm_mhz"][1] for c in clocks)],
        "reasons": sorted({reason for clock in clocks for reason in clock["reasons"]}),
    }


class _Stages:
    """Seconds per stage, in order."""

    def __init__(self, target: dict[str, float]) -> None:
        self._target = target
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._target[name] = now - self._last
        self._last = now


def _words(dims: Dims) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items()) or "the task's shape"
