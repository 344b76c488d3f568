"""Training data is looked through for the tasks that the model is evaluated on."""

from __future__ import annotations

import re

import pytest

from kernelbench_tasks import catalog
from rl.decontamination import ContaminatedError, overlaps, refuse_overlaps

EVALUATED = {name: catalog.load(name).source for name in ("rmsnorm", "softmax")}
OTHER = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.sigmoid(x), dim=1) * 2.0


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""
# rmsnorm with another text, other locals, sizes and inputs
COPY = '''
"""Nothing to see here."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, cols: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # other words
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * factor * self.weight


def get_inputs():
    return [torch.rand(3, 77)]


def get_init_inputs():
    return [77]
'''


def test_a_copy_is_found_whatever_was_changed_around_it() -> None:
    (found,) = overlaps({"a": OTHER, "b": COPY, "c": "no python ("}, EVALUATED)
    assert (found.row, found.task) == ("b", "rmsnorm")
    assert found.share == pytest.approx(0.9, abs=0.02)


def test_a_data_set_with_evaluation_tasks_is_refused_in_one_sentence() -> None:
    refuse_overlaps({"a": OTHER}, EVALUATED)
    with pytest.raises(
        ContaminatedError, match=r"^6 of 7 rows are tasks .*row 0 is 100% like softmax.*, and 1 more; leave"
    ):
        refuse_overlaps({f"row {n}": EVALUATED["softmax"] for n in range(6)} | {"a": OTHER}, EVALUATED)


@pytest.mark.parametrize("name", ["rmsnorm", "clip_power_scale", "transformer_block_training"])
def test_other_names_for_what_a_module_keeps_hide_nothing(name: str) -> None:
    source = catalog.load(name).source
    kept = set(re.findall(r"self\.(\w+)[^=\n(]*=[^=]", source))
    for number, one in enumerate(sorted(kept)):
        source = re.sub(rf"\b{one}\b", f"other_{number}", source)
    (found,) = overlaps({"mine": source}, {name: catalog.load(name).source})
    assert found.task == name
