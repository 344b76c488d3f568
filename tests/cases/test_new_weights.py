"""Weights that change after the first call: a candidate that merged or packed them once is wrong for ever after."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.client import Referee
from evaluator.referee.judging.core import RefereeCore
from evaluator.sources import CandidateSource
from tests.evaluator.few_baselines import QuickReferee, eager_alone
from tests.evaluator.judging import judge, replaced, rules, task

_FOLDER = Path(__file__).parent
_LAZY = (_FOLDER / "lazy_weights_candidate.py").read_text()

_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 96)
        self.b = nn.Linear(96, 32)
        self.register_buffer("shift", torch.zeros(32))

    def forward(self, x):
        return torch.relu(self.b(self.a(x)) + self.shift)


def get_inputs():
    return [torch.randn(24, 64)]


def get_init_inputs():
    return []
"""
_CANDIDATE = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 96)
        self.b = nn.Linear(96, 32)
        self.register_buffer("shift", torch.zeros(32))
        self.made = None
        self.seen = None

    def merged(self):
        a, b = self.a.weight.double(), self.b.weight.double()
        return (b @ a).float(), (b @ self.a.bias.double() + self.b.bias.double()).float() + self.shift

    def forward(self, x):
        {made}
        return torch.relu(torch.nn.functional.linear(x, *self.made))
"""
_ONCE = "self.made = self.made or self.merged()"
_ALWAYS = "self.made = self.merged()"
_BY_VERSION = """seen = [tensor._version for tensor in (*self.parameters(), *self.buffers())]
        if seen != self.seen:
            self.made, self.seen = self.merged(), seen"""
_BY_ADDRESS = """seen = [tensor.data_ptr() for tensor in self.parameters()]
        if seen != self.seen:
            self.made, self.seen = self.merged(), seen"""
_BY_ONE_VALUE = """seen = float(self.a.weight[0, 0])
        if seen != self.seen:
            self.made, self.seen = self.merged(), seen"""
#: A weight that is not in the key changes alone.
_BY_FOUR_VALUES = """w = self.a.weight
        seen = [*(one.data_ptr() for one in self.parameters()), *(one._version for one in self.parameters()), *w.flatten()[:4].tolist()]
        if seen != self.seen:
            self.made, self.seen = self.merged(), seen"""
_BY_ONE_ROW = """seen = self.a.weight[0].clone()
        if self.seen is None or not torch.equal(seen, self.seen):
            self.made, self.seen = self.merged(), seen"""
_BY_SOME_VALUES = """seen = torch.cat([one.flatten()[::331] for one in self.parameters()])
        if self.seen is None or not torch.equal(seen, self.seen):
            self.made, self.seen = self.merged(), seen"""
_ONLY_THE_BIAS = "self.made = (self.made[0] if self.made else self.merged()[0], self.merged()[1])"
_FROM_REFERENCE = """
    @classmethod
    def from_reference(cls, reference):
        made = cls()
        made.load_state_dict(reference.state_dict())
        made.made = made.merged()
        return made
"""


@pytest.mark.parametrize(
    ("made", "more", "how"),
    [
        (_ALWAYS, "", None),
        (_ONCE, "", "in place"),
        (_BY_ADDRESS, "", "in place"),
        (_ONLY_THE_BIAS, "", "in place"),
        (_BY_VERSION, "", "below autograd's version counters"),
        (_BY_FOUR_VALUES, "", "below autograd's version counters"),
        (_ONCE, _FROM_REFERENCE, None),
        (_BY_VERSION, "\n    # a comment on from_reference\n", "below autograd's version counters"),
        (_BY_ONE_ROW, "", "below autograd's version counters"),
        (_BY_SOME_VALUES, "", "below autograd's version counters"),
    ],
)
def test_derived_weights(referee: Referee, made: str, more: str, how: str | None) -> None:
    candidate = CandidateSource(_CANDIDATE.replace("{made}", made) + more, "external", "inline")
    verdict = judge(referee, task(_TASK), candidate)
    if how is None:
        assert verdict.verdict == "accepted", verdict.reason
        return
    assert verdict.verdict == "incorrect", verdict.reason
    assert verdict.reason.startswith(f"after its weights changed {how}, wrong result"), verdict.reason
    assert "compute derived weights in from_reference, or at every call" in verdict.reason
    assert "stale_weights" in rules(verdict)


def test_a_delivered_module_may_go_by_version_counters(referee: Referee) -> None:
    """It makes parts anew that from_reference made, when these say so; what they do not say is a limit."""
    for made, word in ((_BY_VERSION, "accepted"), (_ONCE, "incorrect")):
        candidate = CandidateSource(_CANDIDATE.replace("{made}", made), "external", "inline", delivered=True)
        assert judge(referee, task(_TASK), candidate).verdict == word


def test_running_statistics_change_too(referee: Referee) -> None:
    reference = _TASK.replace(
        'self.register_buffer("shift", torch.zeros(32))', "self.norm = nn.BatchNorm1d(32)"
    )
    reference = reference.replace(
        "torch.relu(self.b(self.a(x)) + self.shift)", "self.norm(self.b(self.a(x)))"
    )
    kept = """seen = sum(one.double().sum().item() for one in self.parameters())
        if seen != self.seen:
            self.seen, self.scale = seen, self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
            self.offset = self.norm.bias - self.norm.running_mean * self.scale
        return self.b(self.a(x)) * self.scale + self.offset"""
    source = task(reference)
    made = ("self.norm = nn.BatchNorm1d(32)", "self.norm = nn.BatchNorm1d(32)\n        self.seen = None")
    verdict = judge(referee, source, replaced(source, made, ("return self.norm(self.b(self.a(x)))", kept)))
    assert verdict.verdict == "incorrect" and "after its weights changed" in verdict.reason, verdict.reason


def test_weights_that_backward_keeps(referee: Referee) -> None:
    reference = _TASK + "\nDIRECTION = 'forward_backward'\n"
    source = task(reference)
    assert judge(referee, source, replaced(source)).verdict == "accepted"
    stale = (
        "return torch.relu(self.b(self.a(x)) + self.shift)",
        "return torch.relu(_Kept.apply(self.a(x), self.b.weight, self.b.bias) + self.shift)",
    )
    function = (
        "class ModelNew(",
        """class _Kept(torch.autograd.Function):
    weight = None

    @staticmethod
    def forward(ctx, x, weight, bias):
        if _Kept.weight is None:
            _Kept.weight = weight.detach().clone()
        ctx.save_for_backward(x)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g @ _Kept.weight, g.T @ x, g.sum(0)


class ModelNew(""",
    )
    verdict = judge(referee, source, replaced(source, stale, function))
    assert verdict.verdict == "incorrect", verdict.reason


def test_one_weight_of_many_that_a_candidate_watches_is_not_enough(referee: Referee) -> None:
    candidate = CandidateSource(_CANDIDATE.replace("{made}", _BY_ONE_VALUE), "external", "inline")
    assert judge(referee, task(_TASK), candidate).verdict == "incorrect"


def test_the_reference_has_its_weights_back(referee: Referee) -> None:
    """Several candidates in a row against one reference, the first of which ended in the middle of a change."""
    source = task(_TASK)
    for made, word in (
        (_ONCE, "incorrect"),
        (_ALWAYS, "accepted"),
        (_ONCE, "incorrect"),
    ):
        candidate = CandidateSource(_CANDIDATE.replace("{made}", made + f"  # {word}"), "external", "inline")
        assert judge(referee, source, candidate).verdict == word


def test_the_case_itself(referee: Referee) -> None:
    source = task((_FOLDER / "lazy_weights_task.py").read_text())
    verdict = judge(
        referee, source, CandidateSource(_LAZY, "external", "inline"), [{"rows": 32}, {"rows": 128}]
    )
    assert verdict.verdict == "incorrect" and "after its weights changed" in verdict.reason


_TIED = """
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 32, bias=False)
        self.second = nn.Linear(32, 32, bias=False)
        {tie}
        self.scale = nn.Parameter(torch.ones(32))
        self.register_buffer("table", torch.arange(32.0) / 8 + 0.5)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) * self.scale * {table}
"""
_TIE, _TABLE = "self.second.weight = self.first.weight", "(torch.arange(32.0, device=x.device) / 8 + 0.5)"


@pytest.mark.parametrize("tie", [_TIE, "pass"])
def test_tied_weights_may_be_there_twice(referee: Referee, tie: str) -> None:
    inputs = (
        "\n\ndef get_inputs():\n    return [torch.randn(24, 32)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    source = task(_TIED.format(name="Model", tie=_TIE, table="self.table") + inputs)
    text = _TIED.format(name="ModelNew", tie=tie, table="self.table")
    verdict = judge(referee, source, CandidateSource(text, "external", "inline"))
    assert verdict.verdict == "accepted", verdict.reason


def test_a_table_that_a_candidate_knows_stays(referee: Referee) -> None:
    """A file that draws its weights itself: its buffers count as drawn, but are what the module made."""
    inputs = (
        "\n\ndef get_inputs():\n    return [torch.randn(24, 32)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    inputs += "\n\ndef redraw(model, generator):\n    with torch.no_grad():\n        for one in model.parameters():\n            one.normal_(generator=generator)\n"
    source = task(_TIED.format(name="Model", tie="pass", table="self.table") + inputs)
    text = _TIED.format(name="ModelNew", tie="pass", table=_TABLE)
    verdict = judge(referee, source, CandidateSource(text, "external", "inline"))
    assert verdict.verdict == "accepted", verdict.reason


@pytest.fixture(scope="module")
def quick_referee(core: RefereeCore) -> QuickReferee:
    eager_alone(core)
    return QuickReferee(core)


@pytest.mark.alone
@pytest.mark.parametrize("made", [_BY_VERSION, _ALWAYS])
def test_what_follows_version_counters_is_right_when_it_is_timed(
    quick_referee: QuickReferee, made: str
) -> None:
    """Weights come back before anything is timed, and counters tell of that, too: a delivered module kept those of the change."""
    source = task(_TASK)
    delivered = CandidateSource(_CANDIDATE.replace("{made}", made), "external", "inline", delivered=True)
    verdict = quick_referee.evaluate(source, delivered, splits=["visible"], shapes={"visible": [{}]})
    assert verdict.verdict == "accepted", verdict.reason
    assert verdict.shapes[0].timed
