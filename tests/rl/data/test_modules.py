"""Modules from a seed: always the same, sound, and of use as tasks."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelbench_tasks.dims import Dim, check_dims
from rl.data.modules import OPERATIONS, Module, Node, generate, sound, task_of

FIRST = [generate(0, index) for index in range(80)]
SPACE = (("rows", Dim(1, 64, default=8)), ("cols", Dim(8, 64, default=16)))


def module(*nodes: Node, inputs: int = 1) -> Module:
    return Module(inputs, nodes, ("rows",), SPACE)


def run(source: str) -> tuple[dict[str, Any], torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(source, "task.py", "exec"), names)
    torch.manual_seed(0)
    with torch.no_grad():
        return names, names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())


def test_every_module_runs_and_its_space_is_one() -> None:
    for one in FIRST:
        names, result = run(task_of(one).source)
        assert torch.isfinite(result).all(), one
        space = check_dims(names["DIMS"])
        assert {"rows", "cols"} <= set(space)
        # at the smallest sizes, too
        sizes = {name: dim.smallest for name, dim in space.items() if isinstance(dim, Dim)}
        inputs = names["get_inputs"](**{name: size for name, size in sizes.items() if name != "out"})
        weights = [
            sizes[name]
            for name in ("cols", "out")
            if f"{name}: int" in task_of(one).source.split("get_init_inputs(")[1]
        ]
        assert torch.isfinite(names["Model"](*weights)(*inputs)).all(), one


def test_they_are_many_and_use_every_kind_of_operation() -> None:
    assert len({task_of(one).source for one in FIRST}) == len(FIRST)
    kinds = {OPERATIONS[name].kind for one in FIRST for name in one.operations}
    assert kinds == {"pointwise", "number", "pair", "parameter", "reduction", "normalization", "product"}
    assert {one.inputs for one in FIRST} == {1, 2, 3}
    assert len({dict(one.dims)["cols"] for one in FIRST}) > 10


def test_another_process_makes_the_same_ones() -> None:
    text = "from rl.data.modules import generate, task_of;print(task_of(generate(7, 3)).sha256)"
    said = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "5"}
    )
    assert said.stdout.strip() == task_of(generate(7, 3)).sha256
    assert generate(7, 3) != generate(8, 3)


@pytest.mark.parametrize(
    ("nodes", "inputs", "why"),
    [
        ((Node("relu", (0,)), Node("tanh", (0,))), 1, "the first is computed in vain"),
        ((Node("relu", (0,)), Node("tanh", (2,))), 2, "an input is not read"),
        ((Node("softmax", (0,)), Node("row_sum", (1,))), 1, "always 1"),
        ((Node("row_max", (0,)), Node("softmax", (1,))), 1, "a row of one"),
        ((Node("row_min", (0,)), Node("relu", (1,))), 1, "nearly always 0"),
        ((Node("relu", (0,)), Node("subtract", (1, 1))), 1, "always 0"),
        ((Node("linear", (0,)), Node("add", (1, 0))), 1, "widths differ"),
        ((Node("linear", (0,)), Node("tanh", (1,)), Node("linear", (2,))), 1, "a third width"),
        ((Node("relu", (0,)), Node("tanh", (5,))), 1, "reads what is not there"),
    ],
)
def test_graphs_without_sense_are_refused(nodes: tuple[Node, ...], inputs: int, why: str) -> None:
    assert not sound(module(*nodes, inputs=inputs)), why


def test_a_graph_is_written_as_it_stands() -> None:
    one = module(
        Node("gain", (0,)), Node("row_mean", (2,)), Node("subtract", (2, 3)), Node("gate", (4, 1)), inputs=2
    )
    assert sound(one)
    names, result = run(task_of(one).source)
    x1, x2 = (torch.manual_seed(0), names["get_inputs"]())[1]
    torch.testing.assert_close(result, (x1 - x1.mean(-1, keepdim=True)) * torch.sigmoid(x2))
    ast.parse(task_of(replace(one, dims=SPACE[:2])).source)
