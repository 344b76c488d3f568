"""Tool program: compares settings of one candidate by successive halving.

It runs as `__main__` in a disposable sandboxed process whose folder contains `task.py` and `request.json` (both contain
untrusted text) and `tuning.py` (trusted). It writes `out/tuned.json`. The candidate shares the process and could write that
file itself, but the answer only selects which of *its own* settings the referee judges, like any other candidate.

`prepare` executes each setting's file once, with the compilation of its kernels at its first call, and compares its result with that
of the candidate's own setting, with a loose tolerance: a setting that computes something else is not worth timing. `main` times
those that are ready, while nothing else may use the device.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import math
import os
import statistics
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import torch
from tuning import halve


def stand_in() -> None:
    """Stub kernelbench_tasks if it is missing, since task files import `Dim` from it."""
    if importlib.util.find_spec("kernelbench_tasks") is not None:
        return
    module: Any = types.ModuleType("kernelbench_tasks")
    module.Dim = module.Choice = lambda *values, **named: (values, named)
    sys.modules.setdefault("kernelbench_tasks", module)


def load(name: str, source: str) -> Any:
    Path(f"{name}.py").write_text(source)
    spec = importlib.util.spec_from_file_location(name, f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def call(function: Any, dims: Mapping[str, Any]) -> Any:
    wanted = inspect.signature(function).parameters
    return function(**{name: value for name, value in dims.items() if name in wanted})


bench: Bench


class Bench:
    """Shapes with their inputs, and the modules of the requested settings."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.device = request["device"]
        self.full_s = request["full_s"]
        self.variants = {json.dumps(one["setting"], sort_keys=True): one for one in request["variants"]}
        self.task = load("task", Path("task.py").read_text())
        self.shapes = [self.prepared(dims) for dims in request["shapes"]]
        self.modules: dict[str, list[Any]] = {}
        self.expected: list[Any] | None = None
        self.failures: dict[str, str] = {}

    def prepared(self, dims: dict[str, Any]) -> tuple[Any, list[Any], list[Any]]:
        torch.manual_seed(0)
        arguments = (
            list(call(self.task.get_init_inputs, dims)) if hasattr(self.task, "get_init_inputs") else []
        )
        reference = self.task.Model(*arguments).to(self.device).eval()
        inputs = [
            value.to(self.device) if isinstance(value, torch.Tensor) else value
            for value in call(self.task.get_inputs, dims)
        ]
        return reference, arguments, inputs

    def prepare(self, until_s: float) -> None:
        """Loads settings' files in their order, the candidate's own first, and calls them, until a monotonic time.

        None is begun that would end later, if it took as long as the longest so far: CUDA C++ takes half a minute each.
        """
        longest_s = 0.0
        for number, (key, variant) in enumerate(self.variants.items()):
            began_s = time.monotonic()
            if number and began_s + longest_s > until_s:
                return
            try:
                self.modules[key] = self.working(variant["source"], number)
            except Exception as error:
                self.failures[key] = f"{type(error).__name__}: {error}"[:300]
            longest_s = max(longest_s, time.monotonic() - began_s)

    def objective(self, setting: Mapping[str, Any], share: float) -> float | None:
        """Microseconds per call, geometric mean over the shapes; None if the setting does not work."""
        modules = self.modules.get(json.dumps(setting, sort_keys=True))
        if modules is None:
            return None
        logs = [
            math.log(self.timed(module, inputs, share))
            for module, (_, _, inputs) in zip(modules, self.shapes, strict=True)
        ]
        return math.exp(sum(logs) / len(logs))

    def working(self, source: str, number: int) -> list[Any]:
        file = load(f"variant_{number}", source)
        modules, results = [], []
        for reference, arguments, inputs in self.shapes:
            if hasattr(file.ModelNew, "from_reference"):
                module = file.ModelNew.from_reference(copy.deepcopy(reference))
            else:
                module = file.ModelNew(*arguments)
                module.load_state_dict(reference.state_dict(), strict=True)
            module = module.to(self.device).eval()
            results.append(module(*inputs))
            modules.append(module)
        if self.expected is None:
            self.expected = results  # the candidate's own setting comes first; the referee has accepted it
        torch.testing.assert_close(results, self.expected, rtol=2e-2, atol=2e-2, equal_nan=True)
        return modules

    def timed(self, module: Any, inputs: list[Any], share: float) -> float:
        """Median microseconds per call over a share of the full length; takes at least one sample, even a longer one."""
        length_s = share * self.full_s
        calls = max(1, round(1e-4 / max(self.sample(module, inputs, 1), 1e-7)))  # samples of 0.1 ms or longer
        samples: list[float] = []
        spent_s = 0.0
        while not samples or spent_s < length_s:
            elapsed_s = self.sample(module, inputs, calls)
            samples.append(elapsed_s / calls)
            spent_s += elapsed_s
        return 1e6 * statistics.median(samples)

    def sample(self, module: Any, inputs: list[Any], calls: int) -> float:
        """Seconds for `calls` calls; on a GPU, measured with CUDA events."""
        if self.device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(calls):
                module(*inputs)
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        began_s = time.perf_counter()
        for _ in range(calls):
            module(*inputs)
        return time.perf_counter() - began_s


def prepare() -> None:
    global bench
    request = json.loads(Path("request.json").read_text())
    stand_in()
    until_s = time.monotonic() + request["prepare_s"]
    with torch.inference_mode():
        bench = Bench(request)
        bench.prepare(until_s)


def main() -> None:
    request = json.loads(Path("request.json").read_text())
    until_s = time.monotonic() + request["deadline_s"]
    with torch.inference_mode():
        tuned = halve(
            [one["setting"] for key, one in bench.variants.items() if key in bench.modules],
            bench.objective,
            keep=lambda: time.monotonic() < until_s,
        )
    longest = max((trial.rung for trial in tuned.trials if trial.elapsed_us is not None), default=-1)
    last = [trial for trial in tuned.trials if trial.rung == longest and trial.elapsed_us is not None]
    answer = {
        "ranked": [
            {"setting": trial.setting, "elapsed_us": trial.elapsed_us}
            for trial in sorted(last, key=lambda trial: trial.elapsed_us or math.inf)
        ],
        "cost": tuned.cost,
        "timings": len(tuned.trials),
        "failures": list(bench.failures.items())[:8],
    }
    Path("out").mkdir(exist_ok=True)
    Path("out/tuned.json").write_text(json.dumps(answer))
