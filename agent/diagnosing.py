"""Diagnosis before code: what holds a job's reference back is found once, before any model is asked.

The experiments are the referee's (`evaluator.profiling`); what came out is a step of the job, so that a job which is resumed or
replayed shows its models the same. Without measured ceilings (`kernelwright device`) there is nothing to compare with, and a
job goes on without a diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent.judging import raise_if_stopped, restart_referee
from agent.spec import JobSpec
from agent.store import JobStore
from evaluator.client import Referee
from evaluator.errors import EvaluatorError, RefereeLost
from evaluator.verdict import Verdict

PROFILE_STEP = "profile"
DESCRIBE_STEP = "describe"
Profiles = Callable[[str], Mapping[str, Any] | None]
"""Profiles a task's text: `evaluator.profiling.bottleneck.Diagnosis.as_json`, or None where no ceilings were measured.

Whoever gives it sees to it that nobody who needs the same device waits for the referee meanwhile: it holds the device's lock.
"""


def diagnose(spec: JobSpec, store: JobStore, referee: Referee, profile: Profiles) -> None:
    """Profile the reference unless that was done, and keep the diagnosis, or why there is none, as a step.

    Raises:
        agent.judging.JobStopped: if the job was asked to stop meanwhile.
    """
    if store.step(PROFILE_STEP) is not None:
        return
    try:
        found = profile(spec.task.source)
        if found is None:
            problem = "the ceilings of this device have not been measured: kernelwright device"
            store.finish_step(PROFILE_STEP, {"problem": problem})
            return
    except RefereeLost as lost:
        raise_if_stopped(store)
        restart_referee(referee)
        store.finish_step(PROFILE_STEP, {"problem": f"the referee was lost: {lost}"})
        return
    except EvaluatorError as error:
        store.finish_step(PROFILE_STEP, {"problem": str(error)})
        return
    store.finish_step(PROFILE_STEP, dict(found))
    told = {"text": "\n".join(found["sentences"]), "label": found["label"]}
    store.event("task.profiled", {**told, "ceilings": dict(found.get("ceilings") or {})})


def roofline_share(store: JobStore, screen: Verdict | None) -> float | None:
    """How near a candidate is to the roofline: the least time that the device's ceilings allow over its own.

    Both are known at the task's default sizes alone: the profile is made there, and every screen times them. 1 is the roofline.

    Args:
        store: of the job, with the profile and the description among its steps.
        screen: the candidate's screen verdict.

    Returns:
        None where no ceilings were measured or the default sizes were not timed.
    """
    return share_of_roofline(store.step(PROFILE_STEP), store.step(DESCRIBE_STEP), screen)


def share_of_roofline(profile: object, description: object, screen: Verdict | None) -> float | None:
    """The same from the two steps' values, for whoever has no store."""
    if screen is None or not isinstance(profile, dict) or not isinstance(description, dict):
        return None
    least_s = profile.get("least_s")
    dims = {name: dim.get("default") for name, dim in (description.get("dims") or {}).items()}
    for row in screen.shapes:
        if row.timed and row.candidate_us and row.split == "visible" and row.dims == dims:
            return float(least_s) * 1e6 / row.candidate_us if least_s else None
    return None
