"""What a reference changes, its inputs or itself, is told before any candidate, with what to do about it."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from tests.evaluator.judging import judge, replaced, task


def _task(
    forward: str, init: str = "pass", inputs: str = "torch.randn(24, 40), torch.randn(24, 40)", more: str = ""
) -> str:
    return f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, r):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
{more}
"""


_EMA = 'self.register_buffer("ema", torch.zeros(40))'
_UPDATE = "self.ema.mul_(0.9).add_(x.mean(0), alpha=0.1)\n        return (x - self.ema) * r"
_COUNT = "self.seen.add_(1)\n        return torch.relu(x) * r"


@pytest.mark.parametrize(
    ("forward", "init", "rule", "words"),
    [
        ("return torch.relu_(x) * 2 + r", "pass", "changes_inputs", "changes input 1 in place"),
        pytest.param(
            "x += r\n        return x",
            "pass",
            "changes_inputs",
            "changes input 1 in place",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "r.clamp_(-1, 1)\n        return x * r",
            "pass",
            "changes_inputs",
            "changes input 2 in place",
            marks=pytest.mark.slow,
        ),
        (
            "r[0] = x[0]\n        x[1] = 0\n        return x + r",
            "pass",
            "changes_inputs",
            "changes inputs 1, 2 in place",
        ),
        (_UPDATE, _EMA, "not_deterministic", "forward() updates 'ema'"),
        (
            "self.w.data.add_(1e-1)\n        return x * self.w + r",
            "self.w = nn.Parameter(torch.ones(40))",
            "not_deterministic",
            "keeps state between calls",
        ),
        (
            "self.h = x if self.h is None else 0.5 * self.h + x\n        return self.h * r",
            "self.h = None",
            "not_deterministic",
            "not a buffer (an attribute",
        ),
        ("return x * torch.rand_like(x) + r", "pass", "not_deterministic", "it draws random numbers"),
        (
            _COUNT,
            'self.register_buffer("seen", torch.zeros(()))',
            "changes_state",
            "forward() updates 'seen'",
        ),
        (
            "return torch.nonzero(x > x.view(-1)[0]), x * r",
            "pass",
            "shape_by_values",
            "the shape of output 1 depends on values",
        ),
        pytest.param(
            "return x[x > r]",
            "pass",
            "shape_by_values",
            "the shape of output 1 depends on values",
            marks=pytest.mark.slow,
        ),
        (
            "return x * r, torch.unique((x * 64).round())",
            "pass",
            "shape_by_values",
            "the shape of output 2 depends on values",
        ),
    ],
)
def test_it_is_refused_with_what_to_do(
    referee: Referee, forward: str, init: str, rule: str, words: str
) -> None:
    report = referee.lint(task(_task(forward, init)))
    assert not report.ok
    (finding,) = report.findings
    assert finding.rule == rule
    assert words in finding.sentence, finding.sentence
    assert finding.mending


def test_buffers_that_forward_updates_are_judged_where_the_task_says_so(referee: Referee) -> None:
    source = task(_task(_UPDATE, _EMA, more="TRAINING = True"))
    assert judge(referee, source, replaced(source)).verdict == "accepted"
    frozen = judge(
        referee, source, replaced(source, (_UPDATE, "return (x - 0.9 * self.ema - 0.1 * x.mean(0)) * r"))
    )
    assert frozen.verdict == "incorrect" and "buffer 'ema' after the call" in frozen.reason


def test_a_reference_that_copies_first_is_judged(referee: Referee) -> None:
    source = task(_task("x = x.clone()\n        x += r\n        return torch.relu_(x)"))
    assert judge(referee, source, replaced(source)).verdict == "accepted"
