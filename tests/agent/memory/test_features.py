"""What memory sees of a module."""

from __future__ import annotations

import json

import pytest

from agent.memory.features import Features, features_of
from evaluator.description import Description
from kernelbench_tasks import catalog

DESCRIPTION = Description(
    inputs=({"dtype": "float32", "shape": [64, 256]},),
    outputs=({"dtype": "bfloat16", "shape": [64]},),
    parameters=256,
)


def test_dtypes_and_size_come_from_the_description() -> None:
    features = features_of("", DESCRIPTION)
    assert features.dtypes == {"float32", "bfloat16"}
    assert features.size_class == "small"  # 64 * 256 * 4 + 64 * 2 + 256 * 4 bytes


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
    assert features.operators == {
        "layer_norm": 1, "convolution": 1, "softmax": 1, "mul": 2, "add": 1, "sum": 1, "matmul": 1, "cumsum": 1,
    }  # fmt: skip
    assert features.reductions == {"reduce:last", "reduce:first", "scan:inner"}
    assert "very" not in str(features), "a name that a user gave is no feature"


@pytest.mark.parametrize(
    "source", ["", "class Model(:", "x = 1", "\x00", "(" * 5000, "class Model:\n    x = " + "-" * 9000 + "1"]
)
def test_odd_texts_have_no_operators(source: str) -> None:
    assert features_of(source, Description()).operators == {}


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
    assert (features.operators, set(features.reductions)) == (operators, reductions)


def test_every_task_of_the_catalogue_has_operators() -> None:
    bare = [
        task.name for task in catalog.list_tasks() if not features_of(task.source, Description()).operators
    ]
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
    features = Features({"mul": 2}, frozenset({"reduce:last"}), frozenset({"float32"}), "large")
    assert Features.from_json(json.loads(json.dumps(features.to_json()))) == features
    older = {**features.to_json(), "operators": {}, "written": {"mul": 2}}
    assert Features.from_json(older) == features
    with pytest.raises(ValueError, match="size class"):
        Features.from_json({**features.to_json(), "size_class": "enormous"})
