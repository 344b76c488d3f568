"""What a verdict does not cover is said in it: strides, train mode, NaN and Inf, threads."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from tests.evaluator.judging import judge, replaced, task

_TASK = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 96)
        self.drop = nn.Dropout(0.5)
        self.b = nn.Linear(96, 32)

    def forward(self, x):
        return torch.relu(self.b(self.drop(self.a(x))))


def get_inputs():
    return [torch.randn(24, 64)]


def get_init_inputs():
    return []
"""
_RESULT = "        return torch.relu(self.b(self.drop(self.a(x))))"
_KINDS = {
    "": [],
    "        x = torch.as_strided(x, x.shape, (x.shape[1], 1))\n" + _RESULT: ["limit_strides"],
    "        if x.stride(-1) != 1:\n            raise ValueError\n" + _RESULT: ["limit_strides"],
    "        return torch.relu(self.b(self.a(x)))": ["limit_train"],
    "        y = self.b(self.drop(self.a(x)))\n        return torch.where(y > 0, y, 0.0)": [
        "limit_nan_hidden"
    ],
    "        y = self.b(self.drop(self.a(x)))\n        return torch.relu(y) + 0.0 * x.sum()": [
        "limit_nan_spreads"
    ],
    """        if not hasattr(self, "space"):
            self.space = torch.empty(len(x), 96)
        torch.addmm(self.a.bias, x, self.a.weight.T, out=self.space)
        for _ in range(40):
            self.space.neg_()
        return torch.relu(self.b(self.drop(self.space)))""": ["limit_threads"],
}


@pytest.mark.parametrize("forward", _KINDS)
def test_a_limit_is_in_the_verdict(referee: Referee, forward: str) -> None:
    source = task(_TASK)
    verdict = judge(referee, source, replaced(source, (_RESULT, forward or _RESULT)))
    assert verdict.verdict == "accepted", verdict.reason
    limits = [one for one in verdict.findings if one.rule.startswith("limit_")]
    assert [one.rule for one in limits] == _KINDS[forward]
    for one in limits:
        assert one.severity == "info" and "the delivered module" in one.evidence


@pytest.mark.parametrize(
    "forward",
    [
        "        if not x.isfinite().all():\n            return torch.zeros(24, 32)\n" + _RESULT,
        "        x = torch.where(x.isfinite().all(), x, torch.ones_like(x))\n" + _RESULT,
        "        x = x / x.abs().max().nan_to_num(1.0, 1.0).clamp(max=100.0) * x.abs().max().nan_to_num(1.0, 1.0)\n"
        + _RESULT,
    ],
)
def test_wrong_numbers_beside_nan_are_wrong(referee: Referee, forward: str) -> None:
    source = task(_TASK)
    verdict = judge(referee, source, replaced(source, (_RESULT, forward)))
    assert verdict.verdict == "incorrect", verdict.reason


def test_a_candidate_that_fails_on_nan_says_so(referee: Referee) -> None:
    source = task(_TASK)
    forward = '        if x.isnan().any():\n            raise ValueError("no numbers")\n' + _RESULT
    verdict = judge(referee, source, replaced(source, (_RESULT, forward)))
    assert verdict.verdict == "accepted", verdict.reason
    (limit,) = [one for one in verdict.findings if one.rule.startswith("limit_")]
    assert limit.rule == "limit_raises" and "no numbers" in limit.evidence


def test_a_module_without_train_mode_has_no_such_limit(referee: Referee) -> None:
    source = task(_TASK.replace("nn.Dropout(0.5)", "nn.Identity()"))
    verdict = judge(referee, source, replaced(source))
    assert not [one for one in verdict.findings if one.rule.startswith("limit_")]
