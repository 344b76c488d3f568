"""What the dispatcher of a delivered file adds to a call, beside `torch.library.custom_op` and Triton's autotuned launch.

All contenders take turns in one process, in random order, block by block; a figure is the median over rounds of what a block
takes a call, and the cost is the difference to the same call without the dispatcher. Members do nothing, so what is timed is
the host alone. `optimized.py` is assembled by the job's own code.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from agent.bundle import domain
from agent.bundle.assembly import assemble, input_places, internal_places, read_call
from agent.candidates import Candidate
from agent.dispatch.features import Feature
from agent.dispatch.tree import Leaf, Node, Split
from benchmarks.exemplars_cpu import environment

_CALLS, _ROUNDS = 2000, 41
_DIMS = {
    "rows": {"min": 1, "max": 1 << 20, "multiple_of": 1, "default": 64},
    "cols": {"min": 1, "max": 1 << 16, "multiple_of": 1, "default": 256},
}
_TASK = """
import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 1 << 20, default=64), "cols": Dim(1, 1 << 16, default=256)}


class Model(nn.Module):
    def __init__(self, cols=256):
        super().__init__()
        WEIGHT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def get_inputs(rows=64, cols=256):
    return [torch.zeros(rows, cols)]


def get_init_inputs(cols=256):
    return [cols]
"""
_WEIGHT = "self.weight = nn.Parameter(torch.zeros(cols), requires_grad=False)"


def deep(depth: int) -> Node:
    """A tree of so many questions on every way that a call of 64 x 256 takes."""
    tree: Node = Leaf(0)
    for number in range(depth):
        if number % 3 == 0:
            tree = Split(Feature("size", ("rows",)), 1 + number, Leaf(None), tree)
        elif number % 3 == 1:
            tree = Split(Feature("divisible", ("cols",), 16), 0, tree, Leaf(None))
        else:
            tree = Split(Feature("product", ("rows", "cols")), 8 + number, Leaf(None), tree)
    return tree


def optimized(weight: bool, depth: int, device: str) -> ModuleType:
    """An optimized.py whose only member does nothing."""
    task = _TASK.replace("WEIGHT", _WEIGHT if weight else "pass")
    points = domain._points(_DIMS, [])
    folder = Path(tempfile.mkdtemp())
    (folder / "task.py").write_text(task)
    (folder / "points.json").write_text(json.dumps(points))
    program = Path(domain.__file__).parent / "templates" / "probe_program.py"
    subprocess.run([sys.executable, str(program)], cwd=folder, check=True, capture_output=True)
    call = read_call(task)
    found = domain.fit(
        _DIMS,
        points,
        json.loads((folder / "out" / "probe.json").read_text()),
        input_places(call, internal_places(call, _DIMS)),
    )
    member = task.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    member = member.replace("from kernelbench_tasks import Dim\n", "").replace("\nDIMS", "\n# DIMS")
    text = assemble("cost", task, [Candidate(member, "human", "nothing")], deep(depth), found, call, device)
    path = folder / f"optimized_{int(weight)}_{depth}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Nothing(nn.Module):
    """What is called where there is no dispatcher."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input."""
        return x


def small(x: torch.Tensor) -> torch.Tensor:
    """A function that a custom operator may be made of: its output is new."""
    return x.new_empty(1)


def block_ns(call: Callable[[torch.Tensor], Any], turns: list[torch.Tensor]) -> float:
    """Nanoseconds a call over one block, of inputs that take turns."""
    given = turns * (_CALLS // len(turns))
    begin = time.perf_counter_ns()
    for x in given:
        call(x)
    return (time.perf_counter_ns() - begin) / len(given)


def measure(device: str, seed: int = 1) -> dict[str, Any]:
    """Median nanoseconds a call of every contender, and what each way to dispatch adds."""
    generator = random.Random(seed)
    x, other = torch.zeros(64, 256, device=device), torch.zeros(65, 256, device=device)
    strided = torch.zeros(256, 64, device=device).t()
    turns: dict[str, list[torch.Tensor]] = {}
    operator = torch.library.custom_op("kernelwright_cost::small", mutates_args=())(small)
    plain = Nothing().to(device)
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "module": plain,
        "module by its class": functools.partial(nn.Module.__call__, plain),
        "forward": plain.forward,
        "function": small,
        "custom_op": operator,
    }
    added = {"torch.library.custom_op": ("custom_op", "function")}
    for weight in (False, True):
        for depth in (0, 6):
            module = optimized(weight, depth, device)
            name = f"optimized.py, {'one weight' if weight else 'no weights'}, {depth} questions"
            model = module.ModelNew(256).to(device)
            assert model.kernelwright_explain(x) == "reference: gradients are asked for" or "nothing" in (
                model.kernelwright_explain(x)
            )
            calls[name] = model
            added[name] = (name, "module")
            for kind, given in (
                ("two sizes in turn", [x, other]),
                ("a layout that was not judged", [strided]),
            ):
                calls[f"{name}, {kind}"], turns[f"{name}, {kind}"] = model, given
                added[f"{name}, {kind}"] = (f"{name}, {kind}", "module")
            # Where the time goes: as every module is called, which is how bundles were before, and their forward alone.
            calls[f"{name}, as any module"] = functools.partial(nn.Module.__call__, model)
            added[f"{name}, as any module"] = (f"{name}, as any module", "module by its class")
            calls[f"{name}, forward"] = model.forward
            added[f"{name}, forward"] = (f"{name}, forward", "forward")
            if not weight:
                fixed, mode = model._kw_dispatch.fixed, model._kw_dispatch.mode
                calls[f"guards and {depth} questions"] = (
                    lambda x, choose=module._choose_by_size, fixed=fixed, mode=mode: choose(fixed, mode, x)
                )
                calls["guards, shapes seen before"] = (
                    lambda x, choose=module._choose, fixed=fixed, mode=mode: choose(fixed, mode, x)
                )
    calls["a function of three"] = lambda x, choose=(lambda fixed, mode, x: None): choose(None, None, x)
    added["guards of sizes, 0 questions"] = ("guards and 0 questions", "a function of three")
    added["guards, shapes seen before"] = ("guards, shapes seen before", "a function of three")
    added["guards of sizes and 6 questions"] = ("guards and 6 questions", "a function of three")
    if device == "cuda":
        launches = triton_launches()
        calls |= launches
        added["Triton's autotuned launch, beside a launch"] = ("triton autotuned", "triton")
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    with torch.no_grad():
        for name in names:
            block_ns(calls[name], turns.get(name, [x]))
        for _ in range(_ROUNDS):
            generator.shuffle(names)
            for name in names:
                samples[name].append(block_ns(calls[name], turns.get(name, [x])))
                if device == "cuda":
                    torch.cuda.synchronize()
    facts = {"program": Path(__file__).stem, "environment": environment(), "device": device}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return {
        **facts,
        "calls_a_block": _CALLS,
        "rounds": _ROUNDS,
        "median_ns": {name: statistics.median(values) for name, values in samples.items()},
        # The median with its 95 % interval over rounds, in which both had their turns.
        "added_ns": {
            name: middle([a - b for a, b in zip(samples[one], samples[other], strict=True)])
            for name, (one, other) in added.items()
        },
    }


def middle(values: list[float]) -> list[float]:
    """Median of the values, and the order statistics that hold it with 95 % (the sign test's)."""
    ordered = sorted(values)
    below = int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2)
    return [statistics.median(ordered), ordered[below], ordered[-1 - below]]


def triton_launches() -> dict[str, Callable[[torch.Tensor], Any]]:
    """A kernel of one block as it is, and behind `triton.autotune` with two settings."""
    from benchmarks.dispatch_triton import autotuned, tiny

    return {
        "triton": lambda x: tiny[(1,)](x, x.shape[0], BLOCK=64),
        "triton autotuned": lambda x: autotuned[(1,)](x, x.shape[0]),
    }


def show(found: dict[str, Any]) -> None:
    """What each way adds to a call."""
    table = Table("a call of", "adds", "95 % of the median", "takes itself")
    of = {
        "Triton's autotuned launch, beside a launch": "triton autotuned",
        "torch.library.custom_op": "custom_op",
    }
    for name, (middle_ns, low_ns, high_ns) in found["added_ns"].items():
        itself_ns = found["median_ns"].get(of.get(name, name))
        table.add_row(
            name,
            f"{middle_ns / 1000:.2f} us",
            f"{low_ns / 1000:.2f} to {high_ns / 1000:.2f}",
            "" if itself_ns is None else f"{itself_ns / 1000:.2f} us",
        )
    Console(width=120).print(table)


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write all medians as JSON, with the environment.")] = None,
) -> None:
    """Measure what the dispatcher adds to a call, beside other ways to have one; less than a minute."""
    found = measure(device)
    show(found)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
