"""What memory sees of a module."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.library.match.graph import Traced, read_graphs
from agent.memory.features import Features, features_of
from evaluator.description import Description
from kernelbench_tasks import catalog

DESCRIPTION = Description(
    inputs=({"dtype": "float32", "shape": [64, 256]},),
    outputs=({"dtype": "bfloat16", "shape": [64]},),
    parameters=256,
)


def traced(*nodes: tuple[str, list[Any], list[int]]) -> Traced:
    """A graph of an input of shape [4, 5, 6] and these operations."""
    listed = [{"op": "input", "name": "0", "args": [], "kwargs": {}, "shape": [4, 5, 6], "dtype": "float32"}]
    listed += [
        {"op": op, "args": args, "kwargs": {}, "shape": shape, "dtype": "float32"}
        for op, args, shape in nodes
    ]
    trace = {"nodes": listed, "output": len(listed) - 1}
    return read_graphs(json.dumps({"traces": [trace], "arguments": ["x"], "open_ended": False}))


X = {"node": 0}


def test_a_graph_is_counted_without_its_plumbing() -> None:
    graph = traced(
        ("aten.mul.Tensor", [X, X], [4, 5, 6]),
        ("aten.view.default", [{"node": 1}, [20, 6]], [20, 6]),
        ("aten.mul.Scalar", [{"node": 2}, 2.0], [20, 6]),
        ("aten._softmax.default", [{"node": 3}, -1, False], [20, 6]),
        ("aten.mm.default", [{"node": 4}, {"node": 4}], [20, 20]),
    )
    features = features_of("", DESCRIPTION, graph)
    assert features.operators == {"mul": 2, "softmax": 1, "matmul": 1}
    assert features.reductions == {"reduce:last"}
    assert features.dtypes == {"float32", "bfloat16"}
    assert features.size_class == "small"  # 64 * 256 * 4 + 64 * 2 + 256 * 4 bytes


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("aten.sum.dim_IntList", [X, [-1]], "reduce:last"),
        ("aten.sum.dim_IntList", [X, [2], True], "reduce:last"),
        ("aten.mean.dim", [X, [0]], "reduce:first"),
        ("aten.amax.default", [X, [-2]], "reduce:inner"),
        ("aten.var.correction", [X, [1, 2]], "reduce:several"),
        ("aten.sum.dim_IntList", [X, [0, 1, 2]], "reduce:all"),
        ("aten.sum.default", [X], "reduce:all"),
        ("aten.cumsum.default", [X, 1], "scan:inner"),
        ("aten.topk.default", [X, 2, -1], "reduce:last"),
        ("aten.native_layer_norm.default", [X, [6], None, None, 1e-5], "reduce:last"),
    ],
)
def test_axes_of_a_graph(op: str, arguments: list[Any], expected: str) -> None:
    assert features_of("", DESCRIPTION, traced((op, arguments, [4]))).reductions == {expected}


def test_a_text_tells_about_the_same() -> None:
    source = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.my_very_own_name = nn.LayerNorm(cols)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = F.softmax(x * 2 + x * 3, dim=-1).view(-1)
        return self.my_very_own_name(torch.sum(x, dim=0)) @ x.cumsum(dim=1)


def get_inputs():
    return [torch.randn(3).sigmoid()]
"""
    features = features_of(source, Description())
    assert features.operators == {}
    assert features.written == {
        "layer_norm": 1, "convolution": 1, "softmax": 1, "mul": 2, "add": 1, "sum": 1, "matmul": 1, "cumsum": 1,
    }  # fmt: skip
    assert features.reductions == {"reduce:last", "reduce:first", "scan:inner"}
    assert "very" not in str(features), "a name that a user gave is no feature"


@pytest.mark.parametrize(
    "source", ["", "class Model(:", "x = 1", "\x00", "(" * 5000, "class Model:\n    x = " + "-" * 9000 + "1"]
)
def test_odd_texts_have_no_operators(source: str) -> None:
    assert features_of(source, Description()).written == {}


@pytest.mark.parametrize(
    ("expression", "operators", "reductions"),
    [
        ("torch.relu(x).sum(-1)", {"relu": 1, "sum": 1}, {"reduce:last"}),
        ("torch.softmax(x, 0)", {"softmax": 1}, {"reduce:first"}),
        ("x.mean(dim=(1, 2))", {"mean": 1}, {"reduce:several"}),
        ("x.mean(self.axis)", {"mean": 1}, {"reduce:all"}),
        ("x.cumsum(1).transpose(0, 1)", {"cumsum": 1}, {"scan:inner"}),
        ("super().forward(x) ** 2", {"forward": 1, "pow": 1}, set()),
    ],
)
def test_axes_of_a_text(expression: str, operators: dict[str, int], reductions: set[str]) -> None:
    features = features_of(
        f"class Model:\n    def forward(self, x):\n        return {expression}\n", Description()
    )
    assert (features.written, set(features.reductions)) == (operators, reductions)


def test_every_task_of_the_catalogue_has_operators() -> None:
    bare = [task.name for task in catalog.list_tasks() if not features_of(task.source, Description()).written]
    assert bare == []


@pytest.mark.parametrize(
    ("elements", "size"),
    [(1, "tiny"), (1 << 14, "small"), (1 << 20, "medium"), (1 << 24, "large"), (1 << 28, "huge")],
)
def test_size_classes(elements: int, size: str) -> None:
    tensors = [{"dtype": "float32", "shape": [elements]}]
    description = Description(inputs=({"value": None, "tensors": tensors},))
    assert features_of("", description).size_class == size


def test_features_survive_json() -> None:
    features = Features({"mul": 2}, {"relu": 1}, frozenset({"reduce:last"}), frozenset({"float32"}), "large")
    assert Features.from_json(json.loads(json.dumps(features.to_json()))) == features
    with pytest.raises(ValueError, match="size class"):
        Features.from_json({**features.to_json(), "size_class": "enormous"})
