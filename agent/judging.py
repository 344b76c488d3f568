"""Judges one candidate, once per phase, and stores the referee's verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.candidates import Candidate
from agent.dispatch.domain import dims_key
from agent.spec import JobSpec
from agent.store import JobStore
from evaluator.description import Description
from evaluator.errors import EvaluatorError, RefereeLost, SandboxUnavailable
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import NO_ROOM, UNSTEADY, Verdict, as_json, from_json, without_measurement

if TYPE_CHECKING:
    from evaluator.client import Referee

# phase -> (splits, effort). Held-out shapes run once per job, on optimized.py, and are only reported.
PHASES: dict[str, tuple[tuple[str, ...], str]] = {
    "screen": (("visible", "adversarial"), "screen"),
    "validation": (("validation",), "screen"),
    "held_out": (("held_out",), "confirm"),
}
_PROGRESS_EVERY_S = 1.0
#: Before each retry of a judging. Those after the first are for a machine whose times vary too much: noise often ends after seconds.
_PAUSES_S = (0.0, 10.0, 30.0)


class JobStopped(Exception):
    """A stop request ended the judging of a candidate.

    Attributes:
        reason: why the job stops, for example "cancelled".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def judge_candidate(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    candidate: Candidate,
    screened: Callable[[Verdict], None] = lambda _: None,
    *,
    may_put_off: bool = False,
) -> Verdict:
    """Screen a candidate and validate it if accepted; skip phases whose verdict is stored.

    Args:
        spec: the job's spec.
        store: the job's store.
        referee: judges the candidate.
        candidate: the candidate.
        screened: called with an accepted screen verdict before validation begins.
        may_put_off: whether the caller judges the candidates in `put_off` again later, see `judge_phase`.

    Returns:
        The validation verdict if there is one, else the screen verdict.

    Raises:
        JobStopped: if a stop was requested; nothing is stored for the phase that ran.
    """
    verdict = judge_phase(spec, store, referee, candidate, "screen", may_put_off=may_put_off)
    if verdict.verdict == "accepted":
        screened(verdict)
        verdict = judge_phase(spec, store, referee, candidate, "validation", may_put_off=may_put_off)
    return verdict


def judge_phase(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    candidate: Candidate,
    phase: str,
    splits: tuple[str, ...] | None = None,
    *,
    may_put_off: bool = False,
) -> Verdict:
    """Judge one phase; also judges optimized.py on the held-out shapes.

    `splits` narrows the phase: the delivered file is screened on adversarial shapes only, since its members' speed on
    the visible shapes is already known.

    A judging that fails (the referee was killed or crashed, the machine is too noisy) is retried once with a fresh referee, and
    if noise was the cause, twice more after pauses. If every retry fails, the verdict is `not_judged`, which never counts
    against the candidate.
    With `may_put_off`, an out-of-memory failure is not retried immediately, because other processes still hold the memory;
    the verdict is not stored, and the next call judges the candidate again.

    Raises:
        JobStopped: if a stop was requested while the referee was lost; nothing is stored then.
        SandboxUnavailable: if this machine has no working sandbox.
    """
    known = store.verdict(candidate.sha256, phase)
    if known is not None:
        return known
    verdict = _evaluate(spec, store, referee, candidate, phase, splits)
    for pause_s in _PAUSES_S:
        if verdict.verdict != "not_judged" or (pause_s and not _is_unsteady(verdict)):
            break
        raise_if_stopped(store)
        step = f"{PUT_OFF_STEPS}{candidate.sha256}/{phase}"
        if may_put_off and short_of_memory(verdict) and store.step(step) is None:
            reason = f"{verdict.reason}; it is judged again before the job ends"
            store.finish_step(step, as_json(verdict))
            store.event("candidate.retried", {"sha256": candidate.sha256, "phase": phase, "reason": reason})
            return verdict
        reason = verdict.reason + (f"; it is judged again in {pause_s:.0f} s" if pause_s else "")
        store.event("candidate.retried", {"sha256": candidate.sha256, "phase": phase, "reason": reason})
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            raise_if_stopped(store)
            time.sleep(0.5)
        restart_referee(referee)
        verdict = _evaluate(spec, store, referee, candidate, phase, splits)
    if not store.add_verdict(candidate.sha256, phase, verdict):
        return store.verdict(candidate.sha256, phase) or verdict
    store.event(
        "candidate.judged",
        {
            "sha256": candidate.sha256,
            "label": candidate.label,
            "origin": candidate.origin,
            "phase": phase,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "geomean_speedup": verdict.summary.geomean_speedup,
            "ci95": verdict.summary.geomean_ci95,
            "elapsed_s": verdict.elapsed_s,
        },
    )
    return verdict


def _is_unsteady(verdict: Verdict) -> bool:
    return any(finding.rule == UNSTEADY for finding in verdict.findings)


PUT_OFF_STEPS = "put-off/"


def put_off(store: JobStore) -> set[str]:
    """Candidates whose judging was deferred for lack of memory and is still pending."""
    found = (step.removeprefix(PUT_OFF_STEPS).split("/") for step in store.steps(PUT_OFF_STEPS))
    return {sha256 for sha256, phase in found if store.verdict(sha256, phase) is None}


def settle_put_off(store: JobStore) -> None:
    """Store the first verdict of deferred candidates that were not retried before the budget ran out."""
    for step, verdict in store.steps(PUT_OFF_STEPS).items():
        sha256, phase = step.removeprefix(PUT_OFF_STEPS).split("/")
        if isinstance(verdict, dict) and store.verdict(sha256, phase) is None:
            store.add_verdict(sha256, phase, from_json(verdict))


def short_of_memory(verdict: Verdict) -> bool:
    """Whether a `not_judged` verdict is due to a lack of memory, which may be free again later."""
    rules = {finding.rule for finding in verdict.findings}
    return verdict.verdict == "not_judged" and (NO_ROOM in rules or "memory" in verdict.reason.lower())


FURTHER_STEPS = "timed/"


@dataclass(frozen=True)
class Further:
    """A result stored by `judge_further`: the requested shapes and the verdict on them."""

    asked: list[dict[str, Any]]
    verdict: Verdict


def judge_further(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    candidate: Candidate,
    shapes: Sequence[Mapping[str, Any]],
) -> None:
    """Judge a validated candidate at additional validation shapes and store the result as a step.

    A `not_judged` result is stored too, so the same shapes are not requested again.

    Raises:
        JobStopped: if a stop was requested while the referee was lost; nothing is stored then.
        SandboxUnavailable: if this machine has no working sandbox.
    """
    number = len(further_verdicts(store, candidate.sha256))
    listed = [dict(dims) for dims in shapes]
    verdict = _evaluate(spec, store, referee, candidate, "validation", None, {"validation": listed})
    if verdict.verdict == "not_judged":
        raise_if_stopped(store)
        restart_referee(referee)
    value = {"asked": listed, "verdict": as_json(verdict)}
    store.finish_step(f"{FURTHER_STEPS}{candidate.sha256}/{number:03}", value)


def further_verdicts(store: JobStore, sha256: str = "") -> list[Further]:
    """Results of `judge_further` for one candidate, or for all, in order."""
    prefix = f"{FURTHER_STEPS}{sha256}/" if sha256 else FURTHER_STEPS
    found = store.steps(prefix)
    values = (value for _, value in sorted(found.items()) if isinstance(value, dict))
    return [Further(value["asked"], from_json(value["verdict"])) for value in values]


ENERGY_STEPS = "energy/"


def judge_energy(spec: JobSpec, store: JobStore, referee: Referee, candidate: Candidate) -> None:
    """Measure a validated candidate's joules at the longest validation shapes, once, and store the result as a step.

    Raises:
        JobStopped: if a stop was requested while the referee was lost; nothing is stored then.
        SandboxUnavailable: if this machine has no working sandbox.
    """
    step = f"{ENERGY_STEPS}{candidate.sha256}"
    if store.step(step) is not None:
        return
    verdict = _evaluate(spec, store, referee, candidate, "validation", None, energy=True)
    if verdict.verdict == "not_judged":
        raise_if_stopped(store)
        restart_referee(referee)
    measured = {
        dims_key(row.dims): row.energy
        for row in verdict.shapes
        if row.energy is not None and row.energy.get("candidate")
    }
    # Ratios come from quads of interleaved windows; ratios of total sums would include device drift.
    ratios = {key: 1 / float(one["ratio"]) for key, one in measured.items()}
    value = {
        "verdict": verdict.verdict,
        "ratios": ratios,
        "why_not": (verdict.energy or {}).get("why_not") or ("" if ratios else verdict.reason),
        "energy": list(measured.values()),
        "elapsed_s": verdict.elapsed_s,
    }
    store.finish_step(step, value)
    known = statistics.geometric_mean(ratios.values()) if ratios else None
    text = f"{candidate.label}: " + (
        f"{known:.2f} times the best baseline's joules" if known else f"{value['why_not']}"
    )
    store.event("candidate.energy", {"sha256": candidate.sha256, "relative_joules": known, "text": text})


def relative_joules(store: JobStore) -> dict[str, float]:
    """Energy of each measured candidate as a ratio to the best baseline's joules, by sha256.

    Uses only the shapes measured for all of these candidates; other shapes do not allow a comparison.
    """
    found = {sha256: dict(value["ratios"]) for sha256, value in _energy_steps(store) if value["ratios"]}
    common = set.intersection(*(set(ratios) for ratios in found.values())) if found else set()
    if not common:
        return {}
    return {
        sha256: statistics.geometric_mean([ratios[key] for key in common]) for sha256, ratios in found.items()
    }


def rejected_meanwhile(store: JobStore) -> set[str]:
    """Candidates that the energy measurement found wrong, or worse."""
    return {
        sha256
        for sha256, value in _energy_steps(store)
        if value["verdict"] not in ("accepted", "not_judged", "")
    }


def _energy_steps(store: JobStore) -> list[tuple[str, dict[str, Any]]]:
    """Results stored by `judge_energy`, as (sha256, value) pairs."""
    return [
        (step.removeprefix(ENERGY_STEPS), {"verdict": "", "ratios": {}, **value})
        for step, value in store.steps(ENERGY_STEPS).items()
        if isinstance(value, dict)
    ]


def progress_events(
    store: JobStore, what: dict[str, Any], every_s: float = _PROGRESS_EVERY_S
) -> Callable[[dict[str, Any]], None]:
    """A callback for `Referee.evaluate` that turns progress into `candidate.progress` events.

    A new stage is reported immediately, further steps of the same stage at most once every `every_s` seconds.
    """
    last_stage: object = None
    last_s = 0.0

    def tell(progress: dict[str, Any]) -> None:
        nonlocal last_stage, last_s
        now_s = time.monotonic()
        if progress.get("stage") == last_stage and now_s - last_s < every_s:
            return
        last_stage, last_s = progress.get("stage"), now_s
        store.event("candidate.progress", {**what, **progress})

    return tell


def _evaluate(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    candidate: Candidate,
    phase: str,
    narrowed: tuple[str, ...] | None,
    given: dict[str, list[dict[str, Any]]] | None = None,
    energy: bool = False,
) -> Verdict:
    splits, effort = PHASES[phase]
    splits, effort = narrowed or splits, "confirm" if energy else effort
    shapes = given
    if given is None and spec.shapes is not None:
        shapes = {split: spec.shapes[split] for split in splits if split in spec.shapes}
    if phase == "held_out":  # the held-out split must avoid shapes used for the choice
        every = [dims for further in further_verdicts(store) for dims in further.asked]
        asked = list({dims_key(dims): dims for dims in every}.values())
        shapes = {**(shapes or {}), "validation": asked} if asked else shapes
    what = {"sha256": candidate.sha256, "label": candidate.label, "origin": candidate.origin, "phase": phase}
    try:
        return referee.evaluate(
            task_of(spec, store),
            CandidateSource(
                candidate.source, candidate.origin, candidate.label, delivered=phase == "held_out"
            ),
            effort=effort,
            splits=splits,
            shapes=shapes,
            traffic=spec.traffic,
            submitted=True,
            energy=energy,
            space=spec.space if store.step("describe") is None else None,
            on_progress=progress_events(store, what),
        )
    except RefereeLost as lost:
        raise_if_stopped(store)
        return _not_judged(spec, candidate, phase, f"the referee was lost: {lost}")
    except SandboxUnavailable:
        raise  # no candidate can be judged here
    except EvaluatorError as fault:
        return _not_judged(spec, candidate, phase, f"the referee had a fault: {fault}")


def task_of(spec: JobSpec, store: JobStore) -> TaskSource:
    """The reference task; uses the source from the describe step, which includes the inferred space."""
    description = store.step("describe")
    source = Description.from_json(description).source if isinstance(description, dict) else ""
    return TaskSource(spec.task.name, source) if source else spec.task


def raise_if_stopped(store: JobStore) -> None:
    """Raise JobStopped if the job was cancelled; a spent budget lets running work finish."""
    reason = store.stop_requested()
    if reason and reason != "budget":
        raise JobStopped(reason)


def restart_referee(referee: Referee) -> None:
    """Restart a lost referee, unless it restarts on its own at the next call."""
    restart = getattr(referee, "restart", None)
    if callable(restart):
        restart()


def _not_judged(spec: JobSpec, candidate: Candidate, phase: str, reason: str) -> Verdict:
    splits, effort = PHASES[phase]
    return without_measurement(
        "not_judged",
        reason,
        task={"name": spec.task.name, "sha256": spec.task.sha256},
        candidate={"sha256": candidate.sha256, "origin": candidate.origin, "label": candidate.label},
        effort=effort,
        splits=splits,
        environment={},
    )
