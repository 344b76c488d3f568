"""The kernels that are bound to tasks of the catalogue: found by the task's text, complete, right, and fit for a GPU's compiler."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.kernels.by_task import TaskKernel, find_task_kernel, list_task_kernels
from evaluator.client import Referee
from evaluator.integrity.static import analyze
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.agent.kernels.test_human_proposer import propose
from tests.variants import some

KERNELS = list_task_kernels()
TRITON = [kernel for kernel in KERNELS if kernel.device == "cuda"]

#: Shapes at which loops run more than once; below the 64 KiB of inputs up to which
#: the referee has Triton interpreted.
LONGER: dict[str, dict[str, Any]] = {
    "segmented_cumsum": {"rows": 2, "length": 5001},
    "gated_linear_recurrence": {"batch": 1, "length": 201, "channels": 35},
    "top_k_rows": {"rows": 1, "cols": 9001, "k": 5},
    "cross_entropy_backward": {"rows": 1, "classes": 9001, "dtype": "float32"},
    "logsumexp_difference": {"rows": 2, "first": 5001, "second": 3},
    "int4_matmul": {"rows": 3, "inner": 320, "cols": 43, "dtype": "bfloat16"},
    "sum_of_many_tensors": {"count": 9, "width": 68},
}


#: Draws shapes of a task as the tests do, without importing its file here: a task is code.
_SHAPES = """
import importlib.util, json, sys
from kernelbench_tasks import Choice

def load(path):
    spec = importlib.util.spec_from_file_location("task", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def shape(dims, size, choice):
    return {
        name: dim.values[choice % len(dim.values)] if isinstance(dim, Choice) else dim.nearest(min(size, 2 * max(dim.smallest, 4)))
        for name, dim in dims.items()
    }

print(json.dumps({path: [shape(load(path).DIMS, 3, 0), shape(load(path).DIMS, 13, 1)] for path in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def small_shapes() -> dict[str, list[dict[str, Any]]]:
    """Two small shapes of each task by its name, the second with the other choices."""
    paths = {str(catalog.load(kernel.task).path): kernel.task for kernel in KERNELS}
    found = run_python(_SHAPES, *paths)
    return {paths[path]: shapes for path, shapes in json.loads(found).items()}


def run_python(program: str, *arguments: str, **environment: str) -> str:
    """What a program of ours prints in a process of its own."""
    root = str(Path(__file__).resolve().parents[3])
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def name_of(kernel: TaskKernel) -> str:
    return f"{kernel.task}-{kernel.path.stem}"


def test_no_kernel_of_a_task_is_lost() -> None:
    assert len({kernel.task for kernel in KERNELS}) >= 19


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
def test_a_file_is_a_complete_candidate_for_a_task(kernel: TaskKernel) -> None:
    catalog.load(kernel.task)
    tree = ast.parse(kernel.source)
    assert ast.get_docstring(tree)
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)][-1] == "ModelNew"
    assert {severity for _, severity, *_ in analyze(kernel.source).findings} <= {"info"}
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= {"array", "ctypes", "functools", "math", "torch", "triton"}


def test_a_task_is_known_by_its_text_alone() -> None:
    source = catalog.load("halo_pack_3d").source
    found = find_task_kernel(source, "cpu")
    assert found is not None
    assert (found.task, found.device, found.path.name) == ("halo_pack_3d", "cpu", "cpp.py")
    on_gpu = find_task_kernel(source, "cuda")
    assert on_gpu is not None
    assert on_gpu.path.name == "triton.py"
    assert find_task_kernel(source + "\n# changed", "cpu") is None
    assert find_task_kernel(catalog.load("optimal_transport").source, "cuda") is None
    assert find_task_kernel("\udc80", "cpu") is None


def test_it_is_proposed_for_that_task(referee: Referee, tmp_path: Path) -> None:
    source = catalog.load("log_bessel_k").source
    candidate = propose(source, referee, tmp_path / "gpu", "cuda")[0][0]
    assert (candidate.origin, candidate.label) == ("human", "library log_bessel_k")
    assert "@triton.jit" in candidate.source
    candidate = propose(source, referee, tmp_path / "cpu", "cpu")[0][0]
    assert "load_inline" in candidate.source


def accepted(referee: Referee, kernel: TaskKernel, shapes: list[dict[str, Any]]) -> None:
    verdict = referee.evaluate(
        TaskSource(kernel.task, catalog.load(kernel.task).source),
        CandidateSource(kernel.source, "human"),
        splits=("adversarial",),
        shapes={"adversarial": shapes},
    )
    assert verdict.verdict == "accepted", f"{verdict.reason} {verdict.detail}"
    assert [shape.correct for shape in verdict.shapes] == [True] * len(shapes)


#: Judged in `make test`: kernels change seldom, and each takes seconds of a compiler or of Triton's interpreter.
_ALWAYS = {
    "gated_linear_recurrence-cpp",
    "halo_pack_3d-cpp",
    "log_bessel_k-triton",
    "mx_quantize-triton",
    "segmented_cumsum-cpp",
    "top_k_rows-cpp",
}


def parameter(kernel: TaskKernel) -> Any:
    name = name_of(kernel)
    return pytest.param(kernel, id=name, marks=[] if name in _ALWAYS else [pytest.mark.slow])


@pytest.mark.parametrize("kernel", some([parameter(kernel) for kernel in KERNELS]))
def test_the_referee_accepts_it_at_small_shapes(
    kernel: TaskKernel, referee: Referee, small_shapes: dict[str, list[dict[str, Any]]]
) -> None:
    accepted(referee, kernel, small_shapes[kernel.task])


@pytest.mark.parametrize("kernel", [parameter(kernel) for kernel in KERNELS if kernel.task in LONGER])
def test_the_referee_accepts_it_where_loops_run_more_than_once(kernel: TaskKernel, referee: Referee) -> None:
    accepted(referee, kernel, [LONGER[kernel.task]])


#: Compiles what a candidate launches for a GPU that is not there, as the referee does beside a device that is in use.
_COMPILE = """
import importlib.util, json, sys
import torch
from evaluator.roles import rehearsal

rehearsal.prepare("9.0")
from triton.compiler import compiler

made = []
original = compiler.CompiledKernel.__init__

def counted(self, *arguments, **named):
    original(self, *arguments, **named)
    made.append(self.metadata.name)

compiler.CompiledKernel.__init__ = counted

def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def called(function, shape):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return function(**{name: value for name, value in shape.items() if name in names})

for task_path, candidate_path, shapes in json.loads(sys.argv[1]):
    task, candidate = load(task_path, "task"), load(candidate_path, "candidate")
    made.clear()
    for shape in shapes:
        inputs = called(task.get_inputs, shape)
        backward = getattr(task, "DIRECTION", "forward") == "forward_backward"
        for value in inputs:
            if backward and value.is_floating_point():
                value.requires_grad_()
        output = candidate.ModelNew(*called(task.get_init_inputs, shape))(*inputs)
        if backward:
            output.sum().backward()
    assert made, f"{candidate_path} launched no kernel"
"""


@pytest.mark.slow
def test_the_gpu_kernels_compile_where_there_is_no_gpu(
    small_shapes: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Triton's interpreter takes Python that its compiler refuses."""
    pytest.importorskip("triton")
    work = [
        (
            str(catalog.load(kernel.task).path),
            str(kernel.path),
            [small_shapes[kernel.task][1], *([LONGER[kernel.task]] if kernel.task in LONGER else [])],
        )
        for kernel in TRITON
    ]
    run_python(_COMPILE, json.dumps(work), TRITON_CACHE_DIR=str(tmp_path))
