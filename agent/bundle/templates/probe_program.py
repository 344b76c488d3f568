"""Runs inside the sandbox: builds the task's inputs at a few sizes, without memory where that works.

Reads task.py and points.json from its folder, writes out/probe.json. What it writes is untrusted, like the task.
"""

import importlib.util
import inspect
import json
import os
import sys
import types
from collections import namedtuple

import torch


def stand_in():
    """A stand-in for the dimension declarations, for a sandbox that does not hold the project."""
    try:
        import kernelbench_tasks  # noqa: F401
    except ImportError:
        module = types.ModuleType("kernelbench_tasks")
        module.Dim = namedtuple("Dim", "min max multiple_of default", defaults=(1, None))
        module.Choice = lambda *values, default=None: values
        sys.modules["kernelbench_tasks"] = module


def load():
    spec = importlib.util.spec_from_file_location("task", "task.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["task"] = module
    spec.loader.exec_module(module)
    return module


def call(function, dims):
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in dims.items() if name in names})


def described(value, depth=0):
    if isinstance(value, torch.Tensor):
        plain = type(value) is torch.Tensor and value.layout == torch.strided
        return {
            "kind": "tensor" if plain else "opaque",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "contiguous": plain and value.is_contiguous(),
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"kind": "value", "value": value}
    if isinstance(value, (list, tuple)) and depth < 3:
        return {"kind": type(value).__name__, "items": [described(item, depth + 1) for item in value]}
    return {"kind": "opaque"}


def constructor(task, initial):
    """Every argument of Model(...), the defaults included, in order."""
    signature = inspect.signature(task.Model)
    bound = signature.bind(*initial)
    bound.apply_defaults()
    described_arguments = []
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            if value:
                described_arguments.append({"name": name, "kind": "opaque"})
        else:
            described_arguments.append({"name": name, **described(value)})
    return described_arguments


def probe(task, points, device):
    found = []
    for dims in points:
        with torch.device(device):
            initial = list(call(task.get_init_inputs, dims)) if hasattr(task, "get_init_inputs") else []
            inputs = list(call(task.get_inputs, dims))
        found.append(
            {"constructor": constructor(task, initial), "inputs": [described(value) for value in inputs]}
        )
    return found


def main():
    stand_in()
    with open("points.json") as file:
        points = json.load(file)
    task = load()
    try:
        found = probe(task, points, "meta")
    except Exception:  # the inputs need real memory, for example a seeded generator
        found = probe(task, points, "cpu")
    os.makedirs("out", exist_ok=True)
    with open("out/probe.json", "w") as file:
        json.dump(found, file)


main()
