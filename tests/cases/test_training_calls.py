"""Candidates of training tasks that are right only where each forward is followed by its backward, or buffers never change."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource
from evaluator.verdict import Verdict
from tests.evaluator.judging import judge, rules, task

_SQUARES = """
import torch
from torch import nn

DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(48))

    def forward(self, x):
        return self.gain * x * x


def get_inputs():
    return [torch.randn(24, 48)]


def get_init_inputs():
    return []
"""
_OWN_BACKWARD = """
import torch
from torch import nn


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, keep):
        ctx.keep = keep
        keep.x, keep.gain = x.detach(), gain.detach()
        ctx.save_for_backward(x, gain)
        return gain * x * x

    @staticmethod
    def backward(ctx, grad):
        x, gain = {kept}
        return 2 * grad * gain * x, (grad * x * x).sum(0), None


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(48))
        self.keep = type("Keep", (), {})()

    def forward(self, x):
        return Squares.apply(x, self.gain, self.keep)
"""


@pytest.mark.parametrize(
    ("kept", "right"), [("ctx.saved_tensors", True), ("(ctx.keep.x, ctx.keep.gain)", False)]
)
def test_two_forwards_before_the_first_backward(referee: Referee, kept: str, right: bool) -> None:
    candidate = CandidateSource(_OWN_BACKWARD.replace("{kept}", kept), "external", "inline")
    verdict = judge(referee, task(_SQUARES), candidate)
    if right:
        assert verdict.verdict == "accepted", verdict.reason
        return
    assert verdict.verdict == "incorrect", verdict.reason
    assert verdict.reason.startswith("with two forwards before the first backward, wrong gradient")
    assert "shared_context" in rules(verdict)


_ONE_AT_A_TIME = _SQUARES.replace(
    "return self.gain * x * x", "return Kept.apply(x, self.gain, self)"
).replace(
    "class Model(",
    """class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, module):
        ctx.module, module.x = module, x.detach()
        ctx.save_for_backward(gain)
        return gain * x * x

    @staticmethod
    def backward(ctx, grad):
        (gain,), x = ctx.saved_tensors, ctx.module.x
        return 2 * grad * gain * x, (grad * x * x).sum(0), None


class Model(""",
)


def test_a_reference_that_allows_one_forward_at_a_time_asks_no_more(referee: Referee) -> None:
    candidate = CandidateSource(
        _OWN_BACKWARD.replace("{kept}", "(ctx.keep.x, ctx.keep.gain)"), "external", "inline"
    )
    verdict = judge(referee, task(_ONE_AT_A_TIME), candidate)
    assert verdict.verdict == "accepted", verdict.reason


_AVERAGE = """
import torch
from torch import nn

TRAINING = True


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(48))
        self.first = None

    def forward(self, x):
        average = {average}
        with torch.no_grad():
            self.average.copy_(0.9 * average + 0.1 * x.mean(0))
        return x - self.average
"""
_INPUTS = """

def get_inputs():
    return [torch.randn(24, 48)]


def get_init_inputs():
    return []
"""
_NORM = """
import torch
from torch import nn

TRAINING = True
DIRECTION = "forward_backward"


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(48)
        self.first = None

    def forward(self, x):
        {before}
        return torch.relu(self.norm(x))
"""
_READ_ONCE = """if self.first is None:
            self.first = self.norm.running_mean.clone()
        self.norm.running_mean.copy_(self.first)"""


@pytest.mark.parametrize(
    ("average", "right"),
    [
        ("self.average", True),
        ("0.0", False),
        ("self.__dict__.setdefault('known', self.average.clone())", False),
    ],
)
def test_buffers_hold_other_values_when_a_call_begins(referee: Referee, average: str, right: bool) -> None:
    reference = _AVERAGE.format(name="Model", average="self.average") + _INPUTS
    candidate = CandidateSource(_AVERAGE.format(name="ModelNew", average=average), "external", "inline")
    _expect(judge(referee, task(reference), candidate), right)


@pytest.mark.parametrize(("before", "right"), [("", True), (_READ_ONCE, False)])
def test_running_statistics_of_train_mode(referee: Referee, before: str, right: bool) -> None:
    reference = _NORM.format(name="Model", before="") + _INPUTS
    candidate = CandidateSource(_NORM.format(name="ModelNew", before=before), "external", "inline")
    _expect(judge(referee, task(reference), candidate), right)


def _expect(verdict: Verdict, right: bool) -> None:
    if right:
        assert verdict.verdict == "accepted", verdict.reason
        return
    assert verdict.verdict == "incorrect", verdict.reason
    assert str(verdict.reason).startswith("after its weights changed"), verdict.reason
