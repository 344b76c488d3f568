"""One evaluation from start to end: (task, candidate) -> verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from evaluator.errors import DeviceFull, RoleFailure, SandboxUnavailable
from evaluator.referee.checking import large, limits, micro_batches, new_weights
from evaluator.referee.checking.correctness import cases, check, check_again, remarks
from evaluator.referee.checking.investigation import Investigation
from evaluator.referee.checking.run_state import RunState, Stages
from evaluator.referee.judging import shape_results
from evaluator.referee.judging.shape_results import (
    captured_fields,
    facts,
    summary_of,
    timed_result,
    untimed_result,
)
from evaluator.referee.lint.refusals import finding_of
from evaluator.referee.measuring import calibration, energy, measure, pairs
from evaluator.referee.measuring.verify import Checker
from evaluator.referee.memory.budget import had_its_part, held_most
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control
from evaluator.referee.session.drawn_shapes import Chosen
from evaluator.referee.session.expectation import Case
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import Progress, TaskSession
from evaluator.referee.session.yielding import GivingWay
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.request import Request
from evaluator.roles import protocol
from evaluator.shapes.sampler import SPLITS
from evaluator.shapes.space import Dims
from evaluator.timing.cores import on_core
from evaluator.verdict import NO_ROOM, Finding, ShapeResult, Verdict

_UNTIMED = ("adversarial",)
#: The Triton interpreter runs the programs of a grid one after another, about 2 ms of Python each. Thousands
#: of rows take a minute.
_INTERPRETED_CAP_BYTES = 64 << 10
_INTERPRETED = "its Triton kernels ran in Triton's interpreter on the CPU: this shows whether they are correct, not how fast they are"
_COMPILED_BEFORE = (
    "its process reused compiled files from an earlier process, so the first call did not include compilation"
)


class Evaluation:
    """Runs one :class:`Request` and produces the verdict. Never raises for what a role does."""

    def __init__(
        self,
        fleet: Fleet,
        session: TaskSession,
        request: Request,
        progress: Progress,
        *,
        alone: bool = False,
        take_memory: Callable[[], object] = lambda: None,
    ) -> None:
        self.fleet = fleet
        #: Reserves GPU memory for the session. Nothing before this call needs the device.
        self._take_memory = take_memory
        self._alone = alone  #: No other evaluation computes on the device meanwhile.
        self.again = False  #: Memory ran out; try again with the device to itself.
        self.session = session
        self.request = request
        self.progress = progress
        self.run_state = RunState()
        self._started = time.monotonic()
        self.waited_s = 0.0  #: For GPU memory.
        expires_at = self._started + request.deadline_s
        self._confirms = request.effort == "confirm"
        self.candidate = CandidateRun(fleet, session, request.candidate, expires_at)
        self.control = Control(fleet, session)
        self._others_aa: dict[str, Any] | None = None
        self._chosen = Chosen(session.traffic)
        #: Timed outputs whose values have not been checked yet.
        self._unseen: list[Checker] = []

    def judge(self) -> Verdict:
        """Runs every stage and returns the verdict."""
        try:
            word, reason, detail = self._judge()
        except Rejected as rejected:
            word, reason, detail = rejected.word, rejected.sentence, ""
            self.run_state.findings += rejected.findings
        except (DeviceFull, torch.OutOfMemoryError) as failure:
            word, reason, detail = self._no_room(str(failure).partition("\n")[0][:300])
        except RoleFailure as failure:
            word, reason, detail = failure.word, failure.sentence, failure.detail
            ran_out = self.fleet.keeper is not None and failure.word == "out_of_memory"
            at_fault = not ran_out or self._was_at_fault(failure)
            if failure.role == "reference":
                word = word if word == "not_judged" else "task_rejected"
                reason = f"the reference itself failed: {reason}; {finding_of(failure).mending}"
            elif failure.role == "control":
                word = "out_of_memory" if ran_out and not self.again else "not_judged"
                reason = f"the baseline could not be timed next to the candidate: {reason}"
            if not at_fault:
                word, reason, detail = self._no_room(reason)
        except SandboxUnavailable as failure:
            word, reason, detail = "not_judged", str(failure), ""
        finally:
            self.candidate.close()
            self.control.close()
            self.fleet.unpin(self.session.process)
            if self.session.process.frozen and not self.session.process.dead:
                self.session.process.thaw()
        return self._verdict(word, reason, detail)

    # -- memory ------------------------------------------------------------------------------------------------

    def _was_at_fault(self, failure: RoleFailure) -> bool:
        """GPU only: whether a process that ran out of memory, or left none for a baseline, asked for too much."""
        if protocol.TOO_SMALL in failure.sentence:
            return self.fleet.room.can_tell(alone=self._alone)  # memory use grows when that much is free
        assert self.fleet.keeper is not None
        if self.session.ahead.give_memory_back() and not self._alone:
            return False  # the referee's compilers used some of it
        self.control.close()
        if failure.role == "reference" and not self._alone:
            return False  # it is tried again with the whole device
        if not self.fleet.room.can_tell(alone=self._alone):
            return False
        candidate = [self.candidate.process] if self.candidate.process is not None else []
        with self.fleet.device_lock.exclusive():
            if failure.role == "control":
                return any(held_most(self.fleet.keeper, process) for process in candidate)
            ended = [*candidate, self.session.process] if failure.role == "reference" else candidate
            return had_its_part(self.fleet.keeper, ended)

    def _no_room(self, reason: str) -> tuple[str, str, str]:
        """The verdict for a candidate that found no room on a GPU used by other programs."""
        self.again = not self._alone
        sentence = f"the GPU has no free memory for this evaluation: {reason}; run it again when other work on the GPU has ended"
        self.run_state.findings.append(Finding(NO_ROOM, "info", sentence))
        return "not_judged", sentence, ""

    # -- stages ------------------------------------------------------------------------------------------------

    def _judge(self) -> tuple[str, str, str]:
        clock = Stages(self.run_state.stages_s)
        self.progress("compile", 0, 1, "building the candidate")
        self.candidate.build_ahead()
        if self.fleet.rehearses:
            self.candidate.rehearse(list(self.session.shapes.values()), self.fleet.device.architecture)
        clock.lap("compile")
        self._take_memory()
        clock.lap("waiting")
        # Other processes held the memory meanwhile, so this wait does not count against the candidate.
        self.waited_s = self.run_state.stages_s["waiting"]
        self.candidate.expires_at += self.waited_s
        with self._computing() as way:
            opened = self._prepare(clock, way)
        if self.candidate.interpreted:
            self.run_state.findings.append(Finding("interpreted", "info", _INTERPRETED))
            self._add_untimed(opened, tuple(opened))
            return "accepted", self._reason(), ""
        timed = [(split, shape) for split in opened if split not in _UNTIMED for shape in opened[split]]
        shapes = [shape for _, shape in timed]
        explained = self._investigation(opened, shapes)
        # An explanation thread may be using the device meanwhile.
        with self._computing(lets_in=not explained.watches) as way, explained.beside():
            self._compile_baselines(shapes, way)
        clock.lap("baseline_compile")
        self.run_state.explain(explained.explanation)
        while not self._clocked(timed, clock):
            self.fleet.unpin(self.session.process)
            with self._computing() as way:
                self._compile_baselines(shapes, way)
                self._ready_control(shapes)
            clock.lap("baseline_compile")
        self._look_at_timed_outputs()
        clock.lap("verification")
        self._add_untimed(opened, _UNTIMED)
        return "accepted", self._reason(), ""

    def _add_untimed(self, opened: dict[str, list[OpenShape]], splits: tuple[str, ...]) -> None:
        run = self.run_state
        for split in splits:
            run.results += [untimed_result(split, at, run.outcomes[at.key]) for at in opened.get(split, [])]

    @contextmanager
    def _computing(self, *, lets_in: bool = True) -> Iterator[GivingWay]:
        """Brackets use of the device while nothing is timed.

        With ``lets_in``, other referees may time meanwhile.
        """
        lock, reference = self.fleet.device_lock, self.session.process
        with lock.exclusive() if self._alone else lock.shared() as hold:
            way = GivingWay(self.fleet, hold if lets_in else None, reference, self.candidate, self.control)
            reference.meanwhile = self.candidate.meanwhile = way.during
            try:
                yield way
            finally:
                reference.meanwhile = self.candidate.meanwhile = None
                if self.candidate.process is not None:
                    self.candidate.process.meanwhile = None

    def _prepare(self, clock: Stages, way: GivingWay) -> dict[str, list[OpenShape]]:
        """Everything before timing: open the reference, build and load the candidate, check correctness.

        Every shape is opened before the candidate starts, so the reference's memory is reserved first and the
        candidate gets what is left.
        """
        chosen = self._choose()
        if not any(chosen.values()):
            raise RoleFailure(
                "task_rejected", "no shape of the task fits this machine's memory cap", role="reference"
            )
        opened = {split: [self._open(dims) for dims in shapes] for split, shapes in chosen.items()}
        every = [shape for shapes in opened.values() for shape in shapes]
        self.session.memory.check(at.inputs.needs for at in every)
        self.candidate.expects = every
        clock.lap("reference")
        timed = [at for split in opened if split not in _UNTIMED for at in opened[split]]
        if not self.candidate.interpreted:
            # These can run while the candidate is built and checked.
            self.session.begin_baselines(timed, thorough=self.request.thorough, every=self._confirms)
        self.candidate.build(list({shape.key: shape for shape in every}.values()))
        clock.lap("compile")
        self.candidate.start()
        clock.lap("load")
        if self.candidate.given_files:
            self.run_state.findings.append(Finding("compiled_before", "info", _COMPILED_BEFORE))
        if not self._confirms:
            self.control.begin(timed)
        self._check_all(every, way)
        self.candidate.keep_files()
        self.control.join()
        clock.lap("correctness")
        return opened

    def _compile_baselines(self, shapes: list[OpenShape], way: GivingWay) -> None:
        """Prepares the baselines for timing."""
        self.session.compile_baselines(
            shapes,
            self.progress,
            thorough=self.request.thorough,
            every=self._confirms,
            between=way.between,
            has_device=not way.lets_in,
        )

    def _clocked(self, timed: list[tuple[str, OpenShape]], clock: Stages) -> bool:
        """The stages that need the device's clock.

        Returns False if something must be done first while the clock is released: a baseline still has to be
        compiled, or a GPU's control is not ready because only now the best baseline is known.
        """
        self.progress("timing", 0, len(timed), "waiting for the device's clock")
        shapes = [shape for _, shape in timed]
        unknown = self.fleet.gpu and not self._confirms and not all(shape.ranked for shape in shapes)
        with self.fleet.device_lock.exclusive(), on_core(self.fleet.core):
            clock.lap("waiting")
            ranked = self.session.rank_baselines(shapes, self.progress)
            clock.lap("baselines")
            if ranked := ranked and not unknown:
                if self._confirms:
                    # The memory is needed for processes as fresh as those they are compared with.
                    self.candidate.close()
                self._aa(shapes)
                clock.lap("aa")
                (self._time_in_pairs if self._confirms else self._time_all)(timed)
                clock.lap("timing")
        return ranked

    def _investigation(self, opened: dict[str, list[OpenShape]], timed: list[OpenShape]) -> Investigation:
        shapes = timed or [shape for shapes in opened.values() for shape in shapes]
        effort, expires_at = self.request.effort, self.candidate.expires_at
        return Investigation(self.fleet, self.session, self.candidate, shapes, effort, expires_at)

    def _choose(self) -> dict[str, list[Dims]]:
        request, drawn = self.request, self.session.drawn
        cap_bytes = _INTERPRETED_CAP_BYTES if self.candidate.interpreted else None
        self._chosen = drawn.choose(request.splits, request.shapes, request.traffic, cap_bytes)
        self.run_state.findings += [Finding("shapes_not_apart", "info", one) for one in self._chosen.remarks]
        return self._chosen.shapes

    def _open(self, dims: Dims) -> OpenShape:
        self._check_deadline()
        return self.session.open(dims)

    def _check_deadline(self) -> None:
        limit_s = self.request.deadline_s
        if time.monotonic() - self._started - self.waited_s > limit_s:
            raise RoleFailure("timeout", f"it did not finish within {limit_s:.0f} s: set a longer deadline")

    def _check_all(self, shapes: Sequence[OpenShape], way: GivingWay) -> None:
        """Checks every shape in turn, then again in random order with fresh contents, so that shapes alternate."""
        unique = list({shape.key: shape for shape in shapes}.values())
        for done, shape in enumerate(unique):
            self._check_deadline()
            way.between()
            self.progress("correctness", done, len(unique), f"checking {_words(shape.dims)}")
            side = self.candidate.open(shape)
            outcome = self.run_state.outcomes.setdefault(shape.key, Outcome())
            if shape.large:
                large.check(side, shape, outcome, self.run_state.findings)
                self.fleet.trim()
            else:
                check(side, shape, cases(self.session, shape, self.run_state.findings), outcome)
        again = random.SystemRandom().sample(unique, len(unique)) if len(unique) > 1 else []
        for shape in again:
            self._check_deadline()
            way.between()
            side, outcome = self.candidate.sides[shape.key], self.run_state.outcomes[shape.key]
            if shape.large:
                large.check(side, shape, outcome, self.run_state.findings, ("task",))
                continue
            check_again(side, shape, outcome, self.run_state.findings, self._earlier(shape))
        new_weights.check(self.candidate, unique, self.run_state)
        micro_batches.check(self.candidate, unique, self.run_state)
        self.run_state.findings += remarks(list(self.run_state.outcomes.values()), self.session.precision)

    def _earlier(self, shape: OpenShape) -> list[Case]:
        kept: list[Case] = shape.checks.get("cases", [])
        return kept

    def _time_all(self, timed: Sequence[tuple[str, OpenShape]]) -> None:
        """Times one pair of processes: the one that passed the checks, and a control."""
        effort = measure.effort_for(self.request.effort, gpu=self.fleet.gpu)
        order = random.SystemRandom().sample(list(timed), len(timed))
        clock = measure.SharedClock(len(order), gpu=self.fleet.gpu)
        for done, (split, shape) in enumerate(order):
            self._check_deadline()
            self.progress("timing", done, len(order), f"timing {_words(shape.dims)}")
            outcome = self.run_state.outcomes[shape.key]
            side = self.candidate.sides[shape.key]
            rivals = self.control.rivals(shape)
            timing = measure.measure(
                self.session,
                shape,
                side,
                rivals,
                outcome,
                self._earlier(shape),
                clock.next(effort),
                unseen=self._unseen,
            )
            self.run_state.results.append(timed_result(split, shape, outcome, timing))

    def _ready_control(self, shapes: list[OpenShape]) -> None:
        """GPU only: prepares the rest of a `screen`'s control, which was not ready during the checks."""
        if self.fleet.gpu and not self._confirms:
            self.control.begin([shape for shape in shapes if shape.ranked])
            self.control.join()

    def _look_at_timed_outputs(self) -> None:
        """Checks timed outputs that were drawn but not compared yet, after the clock is released."""
        self.fleet.unpin(self.session.process)
        with self._computing() as way:
            for checker in self._unseen:
                way.between()
                checker.compare_pending()
            limits.look(self.candidate, list(self.session.shapes.values()), self.run_state)

    def _time_in_pairs(self, timed: Sequence[tuple[str, OpenShape]]) -> None:
        """Times several pairs of new processes."""
        todo = [
            pairs.Timed(shape, self.run_state.outcomes[shape.key], self._earlier(shape)) for _, shape in timed
        ]
        done, least = 0, pairs.LEAST * len(todo)

        def step(number: int, at: pairs.Timed) -> None:
            nonlocal done
            self._check_deadline()
            words = f"pair {number + 1} of processes: timing {_words(at.shape.dims)}"
            self.progress("timing", done, max(least, done + 1), words)
            done += 1

        gpu = self.fleet.gpu
        effort = measure.effort_for(self.request.effort, gpu=gpu)
        pairs.time_in_pairs(self.session, self.candidate, todo, effort, step, captured=gpu, warm=True)
        joules: dict[int, dict[str, Any]] = {}
        if self.request.energy:
            found = energy.measure_energy(
                self.session, self.candidate, todo, self._check_deadline, self.progress
            )
            self.run_state.energy, joules = found
        for (split, _), at in zip(timed, todo, strict=True):
            result = timed_result(split, at.shape, at.outcome, pairs.figure(at.eager))
            result = replace(result, warm=at.warm, energy=joules.get(at.shape.key))
            if gpu:
                result = replace(result, captured=captured_fields(at))
            self.run_state.results.append(result)

    def _aa(self, timed: Sequence[OpenShape]) -> None:
        """Runs the A/A calibration once per session."""
        if self.session.aa is None and not self._confirms:
            # Another referee of this device may have just done it for the same task. Timing is expensive, so
            # reuse it.
            self._others_aa = self.fleet.baseline_store.agreement(
                self.fleet.environment(), self.request.task.sha256
            )
        if self.session.aa is None and self._others_aa is None and timed:
            shape = self._aa_shape(timed)
            self.session.aa = calibration.gate(self.session, shape, self.progress)
            self.fleet.baseline_store.keep_agreement(
                self.fleet.environment(), self.request.task.sha256, self.session.aa
            )

    def _aa_shape(self, timed: Sequence[OpenShape]) -> OpenShape:
        """The shape at which the reference is timed against itself.

        It is a timed shape. If all timed shapes are large, a third process would not fit, so it is the largest
        other shape. If there are only large shapes, it is the smallest of them.
        """
        small = [shape for shape in timed if not shape.large]
        if small:
            target_us = self.fleet.device.block_target_us / 4
            return min(small, key=lambda shape: abs(shape.best.median_us - target_us))
        others = [shape for shape in self.session.shapes.values() if not shape.large]
        if others:
            return max(others, key=lambda shape: shape.inputs.input_bytes)
        return min(timed, key=lambda shape: shape.inputs.input_bytes)

    # -- words -------------------------------------------------------------------------------------------------

    def _results(self) -> list[ShapeResult]:
        """The measurements, each with the stratum of its shape."""
        weight, stratum = self._chosen.traffic.weight, self._chosen.stratum
        found = self.run_state.results
        return [replace(r, weight=weight(r.dims), stratum=stratum(r.split, r.dims)) for r in found]

    def _reason(self) -> str:
        summary = summary_of(self._results(), self._chosen.traffic)
        if summary.geomean_speedup is None or summary.geomean_ci95 is None:
            shapes = len(self.run_state.outcomes)
            if self.candidate.interpreted:
                return f"correct at {shapes} shapes; not timed: {_INTERPRETED}"
            return "correct at every shape; nothing was timed"
        low, high = summary.geomean_ci95
        rivals = shape_results.against(self._results(), self.session.unavailable)
        return (
            f"correct at {len(self.run_state.outcomes)} shapes; {summary.geomean_speedup:.2f}x "
            f"[{low:.2f}, {high:.2f}] against {rivals} at each of {summary.shapes} timed shapes"
        )

    def _verdict(self, word: str, reason: str, detail: str) -> Verdict:
        run, request = self.run_state, self.request
        accepted = word == "accepted"
        results = self._results() if accepted else []
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
            precision=self.session.precision,
            environment={**self.fleet.environment(), "ceilings": self.fleet.ceilings_digest()},
            shapes=tuple(sorted(results, key=lambda r: (SPLITS.index(r.split), str(r.dims)))),
            summary=summary_of(results, self._chosen.traffic),
            timing={
                **facts(request.effort),
                "quads": min((len(r.log_ratios) for r in results if r.timed), default=0),
                "pairs": min((max(len(r.pairs), 1) for r in results if r.timed), default=0),
                "aa": self.session.aa or self._others_aa,
                "throttle": pairs.over_all([r.clock for r in results]),
            },
            setup_s=self.candidate.setup_s,
            first_call_s=next((o.first_call_s for o in run.outcomes.values() if o.checks), None),
            compile_s=self.candidate.compile_s,
            stages_s=run.stages_s,
            elapsed_s=time.monotonic() - self._started,
            energy=run.energy,
            detail=detail,
            labels=run.labels if accepted else (),
            kernels=run.kernels if accepted else (),
        )


def _words(dims: Dims) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items()) or "the task's shape"
