"""Builds a real optimized.py from a task and members, with the real probe program in a process of its own."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from agent.bundle.archive import write_bundle
from agent.bundle.assembly import assemble
from agent.bundle.evidence import BundleContents
from agent.bundle.guards import read_call
from agent.candidates import Candidate
from agent.dispatch import domain
from agent.dispatch.domain import Domain
from agent.dispatch.tree import Leaf, Node
from evaluator.description import Description
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from tests.agent import programs

PROBE = Path(domain.__file__).parents[1] / "bundle" / "templates" / "probe_program.py"
_numbers = itertools.count()

DIMS: dict[str, Any] = {
    "rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 32},
    "cols": {"min": 8, "max": 1024, "multiple_of": 8, "default": 64},
    "dtype": {"choices": ["float32", "float64"], "default": "float32"},
}

TASK = '''
import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {"rows": Dim(1, 4096), "cols": Dim(8, 1024, multiple_of=8), "dtype": Choice("float32", "float64")}


class Model(nn.Module):
    """Scale and shift."""

    def __init__(self, cols: int, factor: float = 2.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))
        self.register_buffer("shift", torch.zeros(cols))
        self.factor = factor

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor + self.shift + residual


def get_inputs(rows=32, cols=64, dtype="float32"):
    kind = getattr(torch, dtype)
    return [torch.randn(rows, cols, dtype=kind), torch.randn(rows, cols, dtype=kind)]


def get_init_inputs(cols=64):
    return [cols]
'''

# Counts its calls, so that a test sees whether it ran; packs its weights, so that a test sees whether it is kept fresh.
MEMBER = """
import torch
import torch.nn as nn

calls = []


class ModelNew(nn.Module):
    def __init__(self, cols: int, factor: float = 2.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))
        self.register_buffer("shift", torch.zeros(cols))
        self.factor = factor
        self.packed = None

    def forward(self, x, residual):
        calls.append(tuple(x.shape))
        if self.packed is None:
            self.packed = self.weight * self.factor
        return torch.addcmul(self.shift + residual, x, self.packed)
"""


@cache
def probe(task: str, dims_text: str) -> Domain:
    """The domain of a task, found by the probe program in a process of its own."""
    dims: dict[str, Any] = json.loads(dims_text)
    points = domain._points(dims, [])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "task.py").write_text(task)
        Path(folder, "points.json").write_text(json.dumps(points))
        programs.run(folder, str(PROBE)).check_returncode()
        found = json.loads(Path(folder, "out", "probe.json").read_text())
    return domain.fit(dims, points, found, read_call(task).places(dims))


def optimized_text(
    members: list[Candidate] | None = None,
    *,
    task: str = TASK,
    dims: dict[str, Any] | None = None,
    tree: Node | None = None,
    device: str = "cpu",
) -> str:
    """The text of an optimized.py."""
    found = replace(
        probe(task, json.dumps(DIMS if dims is None else dims)),
        training="TRAINING = True" in task,
        backward='DIRECTION = "forward_backward"' in task,
    )
    chosen = members or [Candidate(MEMBER, "human", "scale and shift")]
    return assemble("scale", task, chosen, tree or Leaf(0), found, read_call(task), device)


def imported(folder: Path, text: str) -> ModuleType:
    """The file as a module of its own."""
    name = f"optimized_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def inputs(rows: int = 32, cols: int = 64) -> list[torch.Tensor]:
    """Inputs of `TASK`."""
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def ran(module: ModuleType, call: Callable[[], Any]) -> bool:
    """Whether a member that counts its calls ran during the call."""
    before = len(module.calls)
    call()
    return len(module.calls) > before


def right(module: ModuleType, model: Any, *given: torch.Tensor) -> None:
    """The module's answer is the reference's."""
    torch.testing.assert_close(model(*given), module.Model.forward(model, *given))


def warned(call: Callable[[], Any]) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


def written(
    name: str,
    task: str,
    member: Candidate,
    optimized: Candidate,
    rows: list[dict[str, Any]],
    speedup: float,
    folder: Path,
) -> Path:
    """The folder of a bundle of one member, with a held-out verdict that has these rows."""
    verdict = {
        "verdict": "accepted",
        "candidate": {"sha256": optimized.sha256},
        "shapes": rows,
        "summary": {"geomean_speedup": speedup},
        "environment": {"threads": 1, "device_name": "a CPU"},
    }
    source = TaskSource(name, task)
    contents = BundleContents(
        name,
        "cpu",
        source,
        Description(),
        optimized,
        (member,),
        "faster",
        "a claim",
        (("held_out", from_json(verdict)),),
        (),
    )
    return write_bundle(contents, folder).with_suffix("")
