"""What `get_inputs` draws is an example: a candidate that is right for these values alone is wrong, unless the task declares its domain."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.client import Referee
from evaluator.precision import with_precision
from evaluator.sources import CandidateSource
from tests.evaluator.judging import judge, replaced, rules, task
from tests.variants import some

_FOLDER = Path(__file__).parent
_POSITIVE = (_FOLDER / "positive_only_task.py").read_text()


def _task(body: str, inputs: str = "torch.rand(24, 40)", more: str = "") -> str:
    return f"""
class Model(nn.Module):
    def forward(self, x):
        return {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
{more}
"""


@pytest.mark.parametrize(
    ("name", "precision"),
    some(
        [
            ("positive_only_candidate", "default"),
            ("positive_only_candidate", "bf16"),
            ("positive_only_candidate", "fp8"),
            ("positive_only_compiled_candidate", "default"),
        ],
        4,
    ),
)
def test_the_cases_themselves(referee: Referee, name: str, precision: str) -> None:
    proposal = CandidateSource((_FOLDER / f"{name}.py").read_text(), "external", "inline")
    source = with_precision(task(_POSITIVE), precision)
    shapes = {"adversarial": [{"rows": 64}]}
    verdict = referee.evaluate(source, proposal, splits=["adversarial"], shapes=shapes, deadline_s=300.0)
    assert verdict.verdict == "incorrect", verdict.reason


@pytest.mark.parametrize(
    ("body", "shortcut"),
    [
        ("torch.relu(x) + x.sum(-1, keepdim=True)", ("torch.relu(x)", "x")),
        pytest.param("x.abs().sqrt()", ("x.abs()", "x"), marks=pytest.mark.slow),
        pytest.param(
            "torch.where(x < 0, -3.0, x * x)",
            ("torch.where(x < 0, -3.0, x * x)", "x * x"),
            marks=pytest.mark.slow,
        ),
        # A Taylor series that is right up to 1.
        (
            "torch.erf(x / 8)",
            ("torch.erf(x / 8)", "1.1283791670955126 * (x / 8 - (x / 8) ** 3 / 3 + (x / 8) ** 5 / 10)"),
        ),
        ("torch.clamp(x, -2, 2)", ("torch.clamp(x, -2, 2)", "x * 1.0")),
    ],
)
def test_right_only_for_what_is_drawn(referee: Referee, body: str, shortcut: tuple[str, str]) -> None:
    source = task(_task(body))
    assert judge(referee, source, replaced(source)).verdict == "accepted"
    verdict = judge(referee, source, replaced(source, shortcut))
    assert verdict.verdict == "incorrect", verdict.reason
    assert " inputs" in verdict.reason


def test_a_declared_domain_allows_it_and_no_more(referee: Referee) -> None:
    declared = task(_task("torch.relu(x) + x.sum(-1, keepdim=True)", more='DOMAIN = {"x": "non_negative"}'))
    assert judge(referee, declared, replaced(declared, ("torch.relu(x)", "x"))).verdict == "accepted"
    clamped = task(_task("torch.clamp(x, -2, 2)", more='DOMAIN = {"x": "non_negative"}'))
    assert (
        judge(referee, clamped, replaced(clamped, ("torch.clamp(x, -2, 2)", "x * 1.0"))).verdict
        == "incorrect"
    )
    drawn = task(_task("torch.clamp(x, -2, 2)", more='DOMAIN = {"x": "as_drawn"}'))
    assert judge(referee, drawn, replaced(drawn, ("torch.clamp(x, -2, 2)", "x * 1.0"))).verdict == "accepted"


def test_the_reason_names_the_values_and_the_declaration(referee: Referee) -> None:
    source = task(_task("torch.relu(x) + x.sum(-1, keepdim=True)"))
    verdict = judge(referee, source, replaced(source, ("torch.relu(x)", "x")))
    assert "inputs of both signs (get_inputs() draws none below zero" in verdict.reason
    assert 'DOMAIN = {"input": "non_negative"}' in verdict.reason


@pytest.mark.parametrize(
    "body",
    some(
        [
            "torch.log(x).sum(-1)",
            "torch.log(x)",
            "torch.sqrt(x)",
            "x ** 0.3",
            "F.binary_cross_entropy(x, x * x)",
        ],
        5,
    ),
)
def test_a_module_that_has_no_answer_below_zero_is_judged_where_it_has_one(
    referee: Referee, body: str
) -> None:
    source = task(_task(body))
    verdict = judge(referee, source, replaced(source))
    assert verdict.verdict == "accepted", verdict.reason
    left_out = [one.evidence for one in verdict.findings if one.rule == "inputs_left_out"]
    assert bool(left_out) == ("cross_entropy" in body), left_out  # which refuses what is not between 0 and 1
    wrong = judge(referee, source, replaced(source, (body, f"({body}) * 1.001")))
    assert wrong.verdict == "incorrect"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('DOMAIN = {"y": "positive"}', "names 'y', which forward() does not take (it takes x)"),
        (
            'DOMAIN = {"x": "small"}',
            "DOMAIN['x'] = 'small' is not one of non_negative, positive, in_range, as_drawn",
        ),
        ('DOMAIN = "positive"', "DOMAIN must be a dictionary"),
        ('DOMAIN = {"x": "positive"}', "get_inputs() draws other values"),
    ],
)
def test_a_declaration_that_is_none_is_refused(referee: Referee, more: str, words: str) -> None:
    source = task(_task("torch.relu(x) * 2", "torch.randn(8, 8)", more))
    verdict = judge(referee, source, replaced(source))
    assert verdict.verdict == "task_rejected" and words in verdict.reason, verdict.reason


@pytest.mark.parametrize("precision", some(["strict", "bf16", "fp16"], 3))
def test_a_softmax_that_is_cut_off_in_every_tier(referee: Referee, precision: str) -> None:
    """Finite, and wrong where values are large: without products a tier's rounding leaves nothing to chance."""
    source = with_precision(task(_task("torch.softmax(x, dim=-1)", "torch.randn(24, 40)")), precision)
    cut = ("torch.softmax(x, dim=-1)", "(lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x.clamp(-60, 60)))")
    verdict = judge(referee, source, replaced(source, cut))
    assert verdict.verdict == "incorrect", verdict.reason


@pytest.mark.parametrize("precision", some(["strict", "bf16", "fp16"], 3))
def test_a_softmax_without_its_maximum_in_every_tier(referee: Referee, precision: str) -> None:
    source = with_precision(task(_task("torch.softmax(x @ x.T, dim=-1)", "torch.randn(24, 40)")), precision)
    assert judge(referee, source, replaced(source)).verdict == "accepted"
    bare = ("torch.softmax(x @ x.T, dim=-1)", "(lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x @ x.T))")
    verdict = judge(referee, source, replaced(source, bare))
    assert verdict.verdict == "incorrect", verdict.reason
    assert "wrong_result" in rules(verdict)
