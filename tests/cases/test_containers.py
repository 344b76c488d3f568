"""A result has the types of containers that the reference's has, from the candidate and from the delivered module alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agent.candidates import Candidate
from evaluator.client import Referee
from evaluator.sources import CandidateSource
from tests.agent.bundle.building import imported, optimized_text
from tests.evaluator.judging import judge, rules, task

_FOLDER = Path(__file__).parent
_TASK, _PLAIN = ((_FOLDER / f"named_tuple_{part}.py").read_text() for part in ("task", "candidate"))

_MODULE = """
import collections
from collections import OrderedDict, namedtuple
from typing import NamedTuple

import torch
from torch import nn


class Out(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class Other(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


Made = namedtuple("Out", ["low", "high"])
Renamed = namedtuple("Out", ["low", "top"])


class {name}(nn.Module):
    def forward(self, x):
        low, high = x.sin(), x.cos()
        return {result}
"""
_INPUTS = (
    "\n\ndef get_inputs():\n    return [torch.randn(16, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
)


@pytest.mark.parametrize(
    ("reference", "result", "accepted"),
    [
        ("Out(low, high)", "Out(low, high)", True),
        pytest.param("Out(low, high)", "Made(low, high)", True, marks=pytest.mark.slow),
        ("Out(low, high)", "(low, high)", False),
        ("Out(low, high)", "Other(low, high)", False),
        ("Out(low, high)", "Renamed(low, high)", False),
        ("(low, high)", "Out(low, high)", False),
        ("[low, high]", "(low, high)", False),
        ("(low, [high])", "(low, (high,))", False),
        ("(low, [high])", "(low, [high])", True),
        ("{'low': low}", "OrderedDict(low=low)", False),
        pytest.param(
            "OrderedDict(low=low)", "collections.OrderedDict(low=low)", True, marks=pytest.mark.slow
        ),
        ("low.max(1)", "tuple(low.max(1))", False),
        ("low.max(1)", "torch.return_types.max(tuple(low.max(1)))", True),
    ],
)
def test_types_of_containers(referee: Referee, reference: str, result: str, accepted: bool) -> None:
    source = task(_MODULE.format(name="Model", result=reference) + _INPUTS)
    verdict = judge(
        referee, source, CandidateSource(_MODULE.format(name="ModelNew", result=result), "external", "inline")
    )
    if accepted:
        assert verdict.verdict == "accepted", verdict.reason
    else:
        assert (verdict.verdict, "output_structure" in rules(verdict)) == ("contract_violation", True)
        assert "a tuple is not a named tuple" in verdict.reason


def test_the_case_itself(referee: Referee) -> None:
    verdict = judge(referee, task(_TASK), CandidateSource(_PLAIN, "external", "inline"))
    assert verdict.verdict == "contract_violation", verdict.reason


@pytest.mark.parametrize(
    "definition",
    [
        "class Out(NamedTuple):\n    hidden: torch.Tensor\n    last: torch.Tensor\n",
        'Out = collections.namedtuple("Out", ["hidden", "last"])\n',
    ],
)
def test_a_delivered_module_returns_one_type(definition: str, tmp_path: Path) -> None:
    """A member's own class of the same name was another one, so that the type went by the size of the input."""
    text = f"import collections\nfrom typing import NamedTuple\n\nimport torch\nfrom torch import nn\n\n\n{definition}\n\n"
    text += "class Model(nn.Module):\n    def forward(self, x):\n        return Out(x.sin(), x[-1])\n"
    inputs = "\n\ndef get_inputs(rows=32):\n    return [torch.randn(rows, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    member = text.replace("class Model(", "class ModelNew(")
    module = imported(tmp_path, optimized_text([Candidate(member, "human", "a kernel")], task=text + inputs))
    own = module.__dict__["Out"]
    assert type(module.__dict__["Member1"]()(torch.ones(4, 8))) is own
    assert type(module.__dict__["ModelNew"]()(torch.ones(4, 8))) is own
