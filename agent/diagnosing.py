"""Finds the bottleneck of a job's reference once, before the first model request.

The referee runs the experiments (`evaluator.profiling`). The result is stored as a step, so a resumed or replayed job shows its
models the same diagnosis. Without measured ceilings (`kernelwright device`) there is nothing to compare with, and the job
continues without a diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent.judging import raise_if_stopped, restart_referee
from agent.spec import JobSpec
from agent.store import JobStore
from evaluator.client import Referee
from evaluator.description import Description
from evaluator.errors import EvaluatorError, RefereeLost
from evaluator.verdict import Verdict

PROFILE_STEP = "profile"
DESCRIBE_STEP = "describe"
Profiles = Callable[[str], Mapping[str, Any] | None]
"""Profiles a task's text: `evaluator.profiling.bottleneck.Diagnosis.as_json`, or None where no ceilings were measured.

It holds the device lock. The provider must ensure that no other user of the device waits for the referee meanwhile.
"""


def diagnose(spec: JobSpec, store: JobStore, referee: Referee, profile: Profiles) -> None:
    """Profile the reference once and store the diagnosis, or the reason for having none, as a step.

    Raises:
        agent.judging.JobStopped: if a stop was requested or the job's time ran out meanwhile.
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


def roofline_share(profile: object, description: object, screen: Verdict | None) -> float | None:
    """The roofline time over the candidate's time; 1 means the candidate reaches the roofline.

    Both times are known only at the task's default sizes, where the profile is taken and which every screen times.

    Args:
        profile: value of the job's step `PROFILE_STEP`.
        description: value of its step `DESCRIBE_STEP`.
        screen: the candidate's screen verdict.

    Returns:
        The ratio; None if no ceilings were measured or the default sizes were not timed.
    """
    if screen is None or not isinstance(profile, dict) or not isinstance(description, dict):
        return None
    least_s = profile.get("least_s")
    dims = {name: dim.get("default") for name, dim in Description.from_json(description).dims.items()}
    for row in screen.shapes:
        if row.timed and row.candidate_us and row.split == "visible" and row.dims == dims:
            return float(least_s) * 1e6 / row.candidate_us if least_s else None
    return None
