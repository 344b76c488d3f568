"""Profiles a task: its code runs in a disposable sandboxed process, what that says is validated, the diagnosis is ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.devices import is_accelerator, open_device
from evaluator.errors import EvaluatorError
from evaluator.integrity.static import clean
from evaluator.profiling.bottleneck import Diagnosis
from evaluator.profiling.counters import count, find_ncu
from evaluator.profiling.diagnosis import diagnose
from evaluator.profiling.measured import parse
from evaluator.profiling.program import PROGRAM
from evaluator.roles.tool_run import RunsTools
from evaluator.timing.exclusive import DeviceLock

DEADLINE_S = 60.0
_GRACE_S = 60.0
_MEMORY_BYTES = 8 << 30
_FLUSH_CACHES = 4
_LONGEST_DIM = 64


class ProfileFailed(EvaluatorError):
    """The task could not be profiled; the message says why."""


def profile_task(
    tools: RunsTools,
    text: str,
    rates: Mapping[str, Any],
    *,
    device: str,
    dims: Mapping[str, Any] | None = None,
    deadline_s: float = DEADLINE_S,
    counts: bool = False,
) -> Diagnosis:
    """What holds a task's reference back.

    Args:
        tools: a referee of ``device``; what runs the task's code.
        text: the task file; untrusted.
        rates: measured ceilings of the device (:func:`evaluator.profiling.ceilings.ceilings`, its key ``rates``).
        device: ``cpu`` or ``cuda``.
        dims: sizes that shall differ from the file's defaults.
        deadline_s: after which no further experiment begins.
        counts: also run ncu, where it is; it keeps the device to itself for 10 s and more.

    Raises:
        ProfileFailed: the task does not run, or not in time, or its process answered nonsense.
        RefereeLost: the referee died meanwhile.
    """
    chosen = _plain(dims or {})
    request = {
        "device": device,
        "dims": chosen,
        "flush_bytes": _FLUSH_CACHES * int(rates["cache_bytes"]),
        "deadline_s": deadline_s,
    }
    times = _run(tools, text, {**request, "part": "times"}, timed=True)
    try:
        compiling = _run(tools, text, {**request, "part": "breaks"})
    except ProfileFailed as failure:
        compiling = {"graphs": 0, "breaks": [], "problem": str(failure)}
    try:
        found = diagnose(parse(times, compiling), rates, gpu=is_accelerator(device))
    except ValueError as error:
        raise ProfileFailed(f"the profile's process answered nonsense: {error}") from None
    ncu = find_ncu() if counts and is_accelerator(device) else None
    if ncu is None:
        return found
    with DeviceLock(str(open_device(device).facts()["gpu_uuid"])).exclusive():
        return replace(found, counters=count(tools, text, ncu, device=device, dims=chosen))


def _plain(dims: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that may be written into the program's text."""
    chosen = {str(name): value for name, value in dims.items()}
    for name, value in chosen.items():
        if (
            not name.isidentifier()
            or not isinstance(value, (int, float, str, bool))
            or len(str(value)) > _LONGEST_DIM
        ):
            raise ProfileFailed(f"{name!r:.80} is no dimension, or its value is no plain one")
    return chosen


def _run(tools: RunsTools, text: str, request: dict[str, Any], *, timed: bool = False) -> Any:
    """The answer of a disposable process, which may hold anything."""
    gpu, deadline_s = is_accelerator(request["device"]), request["deadline_s"] + _GRACE_S
    result = tools.run_tool(
        PROGRAM.format(request=request),
        {"task.py": text},
        deadline_s=deadline_s,
        memory_bytes=None if gpu else _MEMORY_BYTES,
        device=gpu,
        timed=timed,
    )
    if result.status == "timeout":
        raise ProfileFailed(f"the task did not get through its experiments in {deadline_s:.0f} s")
    if result.status == "out_of_memory":
        raise ProfileFailed("the task needs more memory than a profile may use")
    try:
        plain = json.loads(result.outputs["profile.json"])
        if plain["ok"] is True:
            return plain
        raise ProfileFailed(f"the task does not run: {clean(plain['reason'], 400)}")
    except (KeyError, TypeError, ValueError, RecursionError):
        last = " ".join((result.stdout.strip() or result.stderr.strip()).splitlines()[-1:])
        raise ProfileFailed(f"the profile ended without an answer: {clean(last, 300)}") from None
