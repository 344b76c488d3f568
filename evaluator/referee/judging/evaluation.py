"""One evaluation from start to end: (task, candidate) -> verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from evaluator.counting import counted
from evaluator.errors import DeviceFull, RoleFailure, SandboxUnavailable, Unsteady
from evaluator.referee.checking import large, limits, micro_batches, new_weights
from evaluator.referee.checking.correctness import cases, check, check_again, remarks
from evaluator.referee.checking.investigation import Investigation
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
from evaluator.referee.session.device_sharing import DeviceSharing
from evaluator.referee.session.drawn_shapes import Chosen
from evaluator.referee.session.outcome import Outcome, Rejected, RunState
from evaluator.referee.session.task_session import Progress, TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import FIRST_CALL_SECONDS
from evaluator.request import UNTIMED, Request
from evaluator.roles import protocol
from evaluator.shapes.sampler import SPLITS
from evaluator.shapes.space import Dims
from evaluator.timing.cores import on_core
from evaluator.verdict import NO_ROOM, UNSTEADY, Finding, ShapeResult, Verdict

#: Longest wait for work that stopped processes left on the device.
_REST_SECONDS = 5.0
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
        self.reference_failed = False
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
            self.run_state.findings.append(rejected.finding)
        except (DeviceFull, torch.OutOfMemoryError) as failure:
            word, reason, detail = self._no_room(str(failure).partition("\n")[0][:300])
        except RoleFailure as failure:
            word, reason, detail = failure.word, failure.sentence, failure.detail
            if isinstance(failure, Unsteady):
                self.run_state.findings.append(Finding(UNSTEADY, "info", failure.sentence))
            ran_out = self.fleet.keeper is not None and failure.word == "out_of_memory"
            at_fault = not ran_out or self._was_at_fault(failure)
            if failure.role == "reference":
                self.reference_failed = True
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
            return self.fleet.budget.can_tell(alone=self._alone)  # memory use grows when that much is free
        assert self.fleet.keeper is not None
        if self.session.ahead.give_memory_back() and not self._alone:
            return False  # the referee's compilers used some of it
        self.control.close()
        if failure.role == "reference" and not self._alone:
            return False  # it is tried again with the whole device
        if not self.fleet.budget.can_tell(alone=self._alone):
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
        run = self.run_state
        self.progress("compile", 0, 1, "building the candidate")
        self.candidate.build_ahead()
        if self.fleet.rehearses:
            self.candidate.rehearse(list(self.session.shapes.values()), self.fleet.device.architecture)
        run.lap("compile")
        self._take_memory()
        run.lap("waiting")
        # Other processes held the memory meanwhile, so this wait does not count against the candidate.
        self.waited_s = run.stages_s["waiting"]
        self.candidate.expires_at += self.waited_s
        with self._computing() as sharing:
            opened = self._prepare(sharing)
        if self.candidate.interpreted:
            run.findings.append(Finding("interpreted", "info", _INTERPRETED))
            self._add_untimed(opened, tuple(opened))
            return "accepted", self._reason(), ""
        timed = [(split, shape) for split in opened if split not in UNTIMED for shape in opened[split]]
        shapes = [shape for _, shape in timed]
        explained = Investigation(
            self.fleet,
            self.session,
            self.candidate,
            shapes or [shape for shapes in opened.values() for shape in shapes],
            self.request.effort,
            self.candidate.expires_at,
        )
        # The watched process cannot be stopped for others. It takes a second; compilers, which take a minute, can.
        with self._computing(shares=not explained.watches):
            explained.run()
        run.lap("integrity")
        with self._computing() as sharing:
            self._compile_baselines(shapes, sharing)
        run.lap("baseline_compile")
        run.explanation = explained.explanation
        run.findings += run.explanation.findings
        while not self._clocked(timed):
            self.fleet.unpin(self.session.process)
            with self._computing() as sharing:
                self._compile_baselines(shapes, sharing)
                if self.fleet.gpu and not self._confirms:
                    # The rest of a `screen`'s control, whose best baselines were not known during the checks.
                    self.control.begin([shape for shape in shapes if shape.ranked])
                    self.control.join()
            run.lap("baseline_compile")
        self._look_at_timed_outputs()
        run.lap("verification")
        self._add_untimed(opened, UNTIMED)
        return "accepted", self._reason(), ""

    def _add_untimed(self, opened: dict[str, list[OpenShape]], splits: tuple[str, ...]) -> None:
        run = self.run_state
        for split in splits:
            run.results += [untimed_result(split, at, run.outcomes[at.key]) for at in opened.get(split, [])]

    @contextmanager
    def _computing(self, *, shares: bool = True) -> Iterator[DeviceSharing]:
        """Brackets use of the device while nothing is timed.

        With ``shares``, other referees may time meanwhile.
        """
        lock, reference = self.fleet.device_lock, self.session.process
        with lock.exclusive() if self._alone else lock.shared() as hold:
            sharing = DeviceSharing(
                self.fleet, hold if shares else None, reference, self.candidate, self.control
            )
            reference.meanwhile = self.candidate.meanwhile = sharing.while_waiting
            try:
                yield sharing
            finally:
                reference.meanwhile = self.candidate.meanwhile = None
                if self.candidate.process is not None:
                    self.candidate.process.meanwhile = None

    def _prepare(self, sharing: DeviceSharing) -> dict[str, list[OpenShape]]:
        """Everything before timing: open the reference, build and load the candidate, check correctness.

        Every shape is opened before the candidate starts, so the reference's memory is reserved first and the
        candidate gets what is left.
        """
        chosen = self._choose()
        if not any(chosen.values()):
            raise RoleFailure(
                "task_rejected", "no shape of the task fits this machine's memory cap", role="reference"
            )
        opened: dict[str, list[OpenShape]] = {split: [] for split in chosen}
        for split, shapes in chosen.items():
            for dims in shapes:
                self._check_deadline()
                opened[split].append(self.session.open(dims))
        every = [shape for shapes in opened.values() for shape in shapes]
        self.session.memory.check(at.inputs.needs for at in every)
        self.candidate.expects = every
        self.run_state.lap("reference")
        timed = [at for split in opened if split not in UNTIMED for at in opened[split]]
        if not self.candidate.interpreted:
            # These can run while the candidate is built and checked.
            self.session.begin_baselines(timed, thorough=self.request.thorough, every=self._confirms)
        self.candidate.build(list({shape.key: shape for shape in every}.values()))
        self.run_state.lap("compile")
        self.candidate.start()
        self.run_state.lap("load")
        if self.candidate.given_files:
            self.run_state.findings.append(Finding("compiled_before", "info", _COMPILED_BEFORE))
        if not self._confirms:
            self.control.begin(timed)
        self._check_all(every, sharing)
        self.candidate.keep_files()
        self.control.join()
        self.run_state.lap("correctness")
        return opened

    def _compile_baselines(self, shapes: list[OpenShape], sharing: DeviceSharing) -> None:
        """Prepares the baselines for timing."""
        self.session.compile_baselines(
            shapes,
            self.progress,
            thorough=self.request.thorough,
            every=self._confirms,
            between=sharing.between_steps,
            has_device=not sharing.shares,
        )

    def _clocked(self, timed: list[tuple[str, OpenShape]]) -> bool:
        """The stages that need the device's clock.

        Returns False if something must be done first while the clock is released: a baseline still has to be
        compiled, or a GPU's control is not ready because only now the best baseline is known.
        """
        self.progress("timing", 0, len(timed), "waiting for the device's clock")
        shapes = [shape for _, shape in timed]
        unknown = self.fleet.gpu and not self._confirms and not all(shape.ranked for shape in shapes)
        with self.fleet.device_lock.exclusive(), on_core(self.fleet.core):
            if self.fleet.keeper is not None:
                # Another referee's stopped compilers may have left work in the device's queues, which must not count as
                # this candidate's. The watch deals with what still runs after this.
                self.fleet.keeper.idle_within(_REST_SECONDS)
            self.run_state.lap("waiting")
            ranked = self.session.rank_baselines(shapes, self.progress)
            self.run_state.lap("baselines")
            if ranked := ranked and not unknown:
                if self._confirms:
                    # The memory is needed for processes as fresh as those they are compared with.
                    self.candidate.close()
                self._aa(shapes)
                self.run_state.lap("aa")
                (self._time_in_pairs if self._confirms else self._time_all)(timed)
                self.run_state.lap("timing")
        return ranked

    def _choose(self) -> dict[str, list[Dims]]:
        request, drawn = self.request, self.session.drawn
        cap_bytes = _INTERPRETED_CAP_BYTES if self.candidate.interpreted else None
        self._chosen = drawn.choose(request.splits, request.shapes, request.traffic, cap_bytes)
        self.run_state.findings += [Finding("shapes_not_apart", "info", one) for one in self._chosen.remarks]
        return self._chosen.shapes

    def _check_deadline(self) -> None:
        limit_s = self.request.deadline_s
        if time.monotonic() - self._started - self.waited_s > limit_s:
            raise RoleFailure("timeout", f"it did not finish within {limit_s:.0f} s: set a longer deadline")

    def _check_all(self, shapes: Sequence[OpenShape], sharing: DeviceSharing) -> None:
        """Checks every shape in turn, then again in random order with fresh contents, so that shapes alternate."""
        unique = list({shape.key: shape for shape in shapes}.values())
        for done, shape in enumerate(unique):
            self._check_deadline()
            sharing.between_steps()
            self.progress("correctness", done, len(unique), f"checking {shape.where}")
            side = self.candidate.open(shape)
            # Generated code for a network of 120 layers compiles for more than two minutes.
            side.first_call_seconds = max(FIRST_CALL_SECONDS, self.request.deadline_s / 3)
            outcome = self.run_state.outcomes.setdefault(shape.key, Outcome())
            if not shape.checks.cases:  # those of the last candidate are not used again
                shape.checks.notes.clear()
            if shape.large:
                large.check(side, shape, outcome)
                self.fleet.trim()
            else:
                check(side, shape, cases(self.session, shape), outcome)
        again = random.SystemRandom().sample(unique, len(unique)) if len(unique) > 1 else []
        for shape in again:
            self._check_deadline()
            sharing.between_steps()
            side, outcome = self.candidate.sides[shape.key], self.run_state.outcomes[shape.key]
            if shape.large:
                large.check(side, shape, outcome, ("task",))
                continue
            check_again(side, shape, outcome)
        new_weights.check(self.candidate, unique, self.run_state)
        micro_batches.check(self.candidate, unique, self.run_state)
        self.run_state.findings += remarks(list(self.run_state.outcomes.values()), self.session.precision)

    def _time_all(self, timed: Sequence[tuple[str, OpenShape]]) -> None:
        """Times one pair of processes: the one that passed the checks, and a control."""
        effort = measure.effort_for(self.request.effort, gpu=self.fleet.gpu)
        order = random.SystemRandom().sample(list(timed), len(timed))
        clock = measure.SharedClock(len(order), gpu=self.fleet.gpu)
        for done, (split, shape) in enumerate(order):
            self._check_deadline()
            self.progress("timing", done, len(order), f"timing {shape.where}")
            outcome = self.run_state.outcomes[shape.key]
            side = self.candidate.sides[shape.key]
            rivals = self.control.rivals(shape)
            timing = measure.measure(
                self.session,
                shape,
                side,
                rivals,
                outcome,
                clock.next(effort),
                unseen=self._unseen,
            )
            self.run_state.results.append(timed_result(split, shape, outcome, timing))

    def _look_at_timed_outputs(self) -> None:
        """Checks timed outputs that were drawn but not compared yet, after the clock is released."""
        self.fleet.unpin(self.session.process)
        with self._computing() as sharing:
            for checker in self._unseen:
                sharing.between_steps()
                checker.compare_pending()
            limits.check(self.candidate, list(self.session.shapes.values()), self.run_state)

    def _time_in_pairs(self, timed: Sequence[tuple[str, OpenShape]]) -> None:
        """Times several pairs of new processes."""
        todo = [pairs.Timed(shape, self.run_state.outcomes[shape.key]) for _, shape in timed]
        done, least = 0, pairs.LEAST * len(todo)

        def step(number: int, at: pairs.Timed) -> None:
            nonlocal done
            self._check_deadline()
            words = f"pair {number + 1} of processes: timing {at.shape.where}"
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
            shape = calibration.shape_for(self.session, timed)
            self.session.aa = calibration.gate(self.session, shape, self.progress)
            self.fleet.baseline_store.keep_agreement(
                self.fleet.environment(), self.request.task.sha256, self.session.aa
            )

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
                return f"correct at {counted(shapes, 'shape')}; not timed: {_INTERPRETED}"
            return "correct at every shape; nothing was timed"
        low, high = summary.geomean_ci95
        rivals = shape_results.against(self._results(), self.session.unavailable)
        return (
            f"correct at {counted(len(self.run_state.outcomes), 'shape')}; {summary.geomean_speedup:.2f}x "
            f"[{low:.2f}, {high:.2f}] against {rivals} at each of {counted(summary.shapes, 'timed shape')}"
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
        checked = [shape for shape in self.session.shapes.values() if shape.key in run.outcomes]
        notes = dict.fromkeys(note for shape in checked for note in shape.checks.notes)
        return Verdict(
            verdict=word,
            reason=reason,
            findings=(*run.findings, *notes),
            task=request.task.as_fields(),
            candidate=request.candidate.as_fields(),
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
            labels=run.explanation.labels if accepted else (),
            kernels=run.explanation.kernels if accepted else (),
        )
