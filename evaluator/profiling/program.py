"""What runs beside an untrusted task file in a disposable process: calls it in several ways, writes what it saw as JSON."""

from __future__ import annotations

import json
import os
import time
import warnings
from typing import Any

_PASSES = 3
_MOST_ROWS = 200
_BREAKS_S = 25


#: What `prepare` opened for `main`, or why it could not.
_prepared: dict[str, Any] = {}


def prepare(path: str, request: dict[str, Any]) -> None:
    """Loads the task and calls it once, which may compile; nothing is timed. `main` reports what fails."""
    warnings.simplefilter("ignore")
    try:
        _prepared["task"] = _open(os.path.abspath(path), request)
    except Exception as error:  # noqa: BLE001 - anything in a stranger's file
        _prepared["failure"] = error


def _open(path: str, request: dict[str, Any]) -> tuple[Any, Any]:
    """The task's file as a module, and its model with inputs after a first call."""
    from evaluator.profiling import subject

    module = subject.load(path)
    one = subject.build(module, request["dims"], request["device"])
    one.call()
    return module, one


def main(path: str, target: str, request: dict[str, Any]) -> None:
    """Profiles the task file and writes the findings as JSON.

    Args:
        path: of the task file.
        target: of the file to write.
        request: ``device``, ``dims``, ``flush_bytes``, ``deadline_s``, and ``part``: ``times``, or ``breaks`` for where the
            graph breaks, which times nothing.
    """
    warnings.simplefilter("ignore")
    try:
        find = _times if request["part"] == "times" else _breaks
        answer = {"ok": True, **find(os.path.abspath(path), request)}
    except Exception as error:  # noqa: BLE001 - anything in a stranger's file
        answer = {"ok": False, "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    with open(target, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def _breaks(path: str, request: dict[str, Any]) -> dict[str, Any]:
    from evaluator.profiling import subject
    from evaluator.roles import graph_breaks as breaks

    one = subject.build(subject.load(path), request["dims"], request["device"])
    return breaks.graph_breaks(one.model, one.inputs, path, _BREAKS_S)


def _times(path: str, request: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    from evaluator.devices import is_accelerator
    from evaluator.profiling import experiments, recorder

    ends = time.monotonic() + request["deadline_s"]
    device, dims = request["device"], request["dims"]
    if "failure" in _prepared:
        raise _prepared["failure"]
    module, one = _prepared.get("task") or _open(path, request)
    result = one.call()
    found: dict[str, Any] = {
        "steady_s": experiments.steady_s(one.call, device),
        "input_bytes": one.input_bytes(),
        "state_bytes": one.state_bytes(),
        "output_bytes": sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)),
    }
    passes = [recorder.record(one.call, one.model, path, device, found["steady_s"]) for _ in range(_PASSES)]
    best = min(passes, key=lambda record: record.seconds)
    rows = sorted(best.operations.values(), key=lambda row: -row.seconds)
    found["operation_count"] = sum(row.calls for row in rows)
    found["operations"] = [vars(row) for row in rows[:_MOST_ROWS]]
    found["waits"] = [[line, what, count] for (line, what), count in best.waits.items()]
    found["transfers"] = [[line, way, size] for (line, way), size in best.transfers.items()]
    found["kernels"] = experiments.kernels(one.call, device)[:_MOST_ROWS]
    found["sizes"] = []
    for factor in (0.5, 2.0):
        if time.monotonic() < ends:
            row = _other_size(module, dims, device, factor, one.input_bytes())
            if row is not None:
                found["sizes"].append(row)
    # A capture that failed leaves the allocator in a state in which nothing else should be measured: it comes last.
    timed = one.call
    if is_accelerator(device):
        replay, found["capture_problem"] = experiments.capture(one.call)
        if replay is not None:
            found["replay_s"] = experiments.steady_s(replay, device)
            timed = replay
    if not is_accelerator(device) or timed is not one.call:
        found["cold_s"], found["warm_s"] = experiments.cold_and_warm_s(
            timed, device, int(request["flush_bytes"])
        )
    if is_accelerator(device) and timed is not one.call and time.monotonic() < ends:
        found["narrow_s"] = _narrow_s(module, dims, device, one.tensors())
    return found


def _other_size(
    module: Any, dims: dict[str, Any], device: str, factor: float, input_bytes: int
) -> dict[str, Any] | None:
    """The time with a batch halved or doubled; None where the file names none or its code refuses the size."""
    from evaluator.profiling import experiments, subject

    try:
        other = subject.other_size(module, dims, device, factor, input_bytes)
        if other is None:
            return None
        one, name, ratio = other
        return {"dim": name, "bytes_factor": ratio, "steady_s": experiments.steady_s(one.call, device)}
    except Exception:  # noqa: BLE001 - a size that a stranger's module does not take
        return None


def _narrow_s(module: Any, dims: dict[str, Any], device: str, inputs: list[Any]) -> float | None:
    """The time with half the bytes: every float32 as bfloat16, replayed from a graph; None where the module does not take it."""
    import torch

    from evaluator.profiling import experiments, subject

    if not any(tensor.dtype == torch.float32 for tensor in inputs):
        return None
    try:
        one = subject.build(module, dims, device, torch.bfloat16)
        replay, _ = experiments.capture(one.call)
        return None if replay is None else experiments.steady_s(replay, device)
    except Exception:  # noqa: BLE001 - a type that a stranger's module does not take
        return None


#: Run beside the task's text in a disposable process.
PROGRAM = """
from evaluator.profiling import program

def prepare():
    program.prepare("task.py", {request!r})

def main():
    program.main("task.py", "out/profile.json", {request!r})

if __name__ == "__main__":
    main()
"""
