"""What a task is refused for is said of the reference, with what to change; what is no fault is not marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluator.client import Referee
from evaluator.errors import RoleReported
from evaluator.referee.lint.refusals import finding_of
from evaluator.sources import TaskSource
from services.cli import app

pytestmark = pytest.mark.attacks

_HEAD = "import torch\nfrom torch import nn\nfrom kernelbench_tasks import Choice\n"
_PLAIN = """
DIMS = {"rows": Choice(8, 16)}
class Model(nn.Module):
    def forward(self, x):
        return RESULT
def get_inputs(rows=8):
    return [torch.randn(rows, 8)]
def get_init_inputs():
    return []
"""
_MASKED = """
DIMS = {"batch": Choice(2, 4)}
class Model(nn.Module):
    def forward(self, x, mask):
        return torch.softmax(x @ x.transpose(1, 2) + mask, -1)
def get_inputs(batch=2):
    mask = torch.randn(6, 6)
    return [torch.randn(batch, 6, 4), mask.expand(batch, 6, 6)]
def get_init_inputs():
    return []
"""
_MIXED = _MASKED.replace("torch.softmax(", "x.mean(0) @ x.transpose(1, 2) + torch.softmax(")
_LAZY = _PLAIN.replace(
    "    def forward",
    "    def __init__(self):\n        super().__init__()\n        self.out = nn.LazyLinear(4)\n    def forward",
)
_RUNNING = """
DIMS = {"rows": Choice(8, 16)}
TRAINING = True
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
    def forward(self, x):
        CHANGE
        return x * x.mean(0) + self.seen
def get_inputs(rows=8):
    return [torch.randn(rows, 8)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("text", "rule", "said", "mending"),
    [
        (_PLAIN.replace("RESULT", "x[:, :0]"), "empty_output", "no elements", "[:, :0]"),
        (_PLAIN.replace("RESULT", "x.square().sum().item()"), "contract", "returns no tensor", ".item()"),
        (
            _PLAIN.replace("RESULT", "x.sum(1).tolist()[0] > 0"),
            "contract",
            "returns no tensor",
            ".tolist()",
        ),
        (_LAZY.replace("RESULT", "self.out(x)"), "lazy_module", "nn.LazyLinear", "nn.Linear(width, out)"),
        (
            _PLAIN.replace("RESULT", "torch.linalg.cholesky(x[:8])").replace(
                "torch.randn(rows, 8)", "torch.eye(8).repeat(rows // 8, 1)"
            ),
            "needs_kind_of_input",
            "a kind of matrix",
            "in forward()",
        ),
        (
            "from layers_beside import Block\n" + _PLAIN.replace("RESULT", "x"),
            "needs_package",
            "or a file",
            "one file",
        ),
    ],
)
def test_a_refusal_speaks_of_the_reference(
    referee: Referee, text: str, rule: str, said: str, mending: str
) -> None:
    report = referee.lint(TaskSource("case", _HEAD + text))
    assert not report.ok
    (finding,) = (one for one in report.findings if one.severity == "error")
    assert finding.rule == rule and said in finding.sentence and mending in finding.mending, finding
    assert "by itself" not in finding.mending and "method" not in finding.sentence


@pytest.mark.parametrize(("text", "marked"), [(_MASKED, False), (_MIXED, True)])
def test_a_mask_that_was_expanded_mixes_no_rows(referee: Referee, text: str, marked: bool) -> None:
    report = referee.lint(TaskSource("case", _HEAD + text))
    assert ("batch_mixed" in {one.rule for one in report.findings}) is marked, report.findings


@pytest.mark.parametrize(("change", "marked"), [("self.seen.add_(x.mean(0))", False), ("pass", True)])
def test_a_buffer_that_a_call_updates_is_no_constant(referee: Referee, change: str, marked: bool) -> None:
    report = referee.lint(TaskSource("case", _HEAD + _RUNNING.replace("CHANGE", change)))
    assert ("constant_buffer" in {one.rule for one in report.findings}) is marked, report.findings


def test_no_folder_of_the_process_is_told() -> None:
    failure = RoleReported(
        "runtime_error",
        "RuntimeError: cannot use /run/box-7/tmp/task_file.py with a/b and https://torch.org/x",
    )
    assert (
        finding_of(failure).sentence
        == "it fails: RuntimeError: cannot use task_file.py with a/b and https://torch.org/x"
    )


def test_an_origin_that_does_not_propose_is_told_with_those_that_do(tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(_HEAD + _PLAIN)
    told = CliRunner().invoke(app, ["optimize", str(task), "--origin", "external"], env={"COLUMNS": "200"})
    assert told.exit_code == 2
    assert (
        "'external' is not one of human, compiler, llm, policy; a candidate of your own is given by --from"
        in told.output
    )
