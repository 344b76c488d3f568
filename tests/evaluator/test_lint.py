"""Lint catches replicas of known defects, each with its own sentence, and says nothing of sound tasks."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from evaluator.cli import app
from evaluator.client import Referee
from evaluator.commands.lint import print_report
from evaluator.description import LintFinding, LintReport
from evaluator.errors import RoleFailure
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.lint import probe
from evaluator.referee.lint.refusals import finding_of
from evaluator.referee.lint.report_store import ReportStore
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.evaluator.defective_tasks import DEFECTS, SOUND
from tests.variants import some

#: Of every kind: reductions, scans, products, integers, bytes, gradients, training, choices, plain arguments.
SPREAD = (
    "rmsnorm", "top_k_rows", "halo_pack_3d", "sum_of_many_tensors", "layer_norm_backward", "int4_matmul",
    "batch_norm_relu_training",
)  # fmt: skip
_SLOW = ("softmax", "swiglu", "bias_gelu", "segment_max", "dot_interaction")

#: Another defect, which costs less, breaks the same rule.
_FURTHER = (
    "image_that_nobody_sees", "attention_across_the_batch", "hinge_against_columns", "mean_of_a_normalized_row",
    "softmax_of_one_element",
)  # fmt: skip

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in _FURTHER else name for name in DEFECTS]
)
def test_a_known_defect_is_caught_in_words(name: str, referee: Referee) -> None:
    defect = DEFECTS[name]
    report = referee.lint(TaskSource(name, defect.source))
    found = [
        finding
        for finding in report.findings
        if (finding.rule, finding.severity) == (defect.rule, defect.severity)
    ]
    assert found, report
    assert defect.words in found[0].sentence
    assert found[0].mending
    assert all("\n" not in finding.sentence for finding in report.findings)
    assert report.verdict == ("task_rejected" if defect.severity == "error" else "")
    if defect.severity == "warning":
        assert not [finding for finding in report.findings if finding.severity == "error"]


@pytest.mark.parametrize("name", SOUND)
def test_what_looks_like_a_defect_and_is_none_passes(name: str, referee: Referee) -> None:
    report = referee.lint(TaskSource(name, SOUND[name]))
    assert not report.findings


def test_a_sound_task_takes_one_float64_oracle(core: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is most of what lint costs at a convolution. A look at equal sizes compares no results."""
    source = (
        "import torch\n\nrows = 40\ncols = 40\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.softmax(x, 1)\n\ndef get_inputs():\n    return [torch.randn(rows, cols)]\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    drawn, asked = Counter[object](), Counter[object]()

    def counted(calls: Counter[object], work: Any) -> Any:
        def count(shape: Any, *more: Any) -> Any:
            calls[tuple(shape.dims.values())] += 1
            return work(shape, *more)

        return count

    monkeypatch.setattr(probe, "fresh", counted(drawn, probe.fresh))
    monkeypatch.setattr(probe, "case_of", counted(asked, probe.case_of))
    assert core.lint(TaskSource("square", source)).ok
    assert len(drawn) == 2 and set(drawn.values()) == {3}
    assert all(rows != cols for rows, cols in drawn)
    assert list(asked.values()) == [1]


@pytest.mark.parametrize(
    "name", some([*SPREAD, *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)])
)
def test_own_tasks_raise_no_alarm(name: str, referee: Referee) -> None:
    task = next(task for task in catalog.list_tasks() if task.name == name)
    report = referee.lint(TaskSource(name, task.source))
    assert report.ok
    assert not report.findings
    assert len(report.shapes) == 2


def test_a_defective_task_is_refused_before_anything_is_spent(referee: Referee) -> None:
    defect = DEFECTS["mean_of_a_softmax"]
    description = referee.describe(TaskSource("defective", defect.source))
    assert (description.ok, description.verdict) == (False, "task_rejected")
    assert description.reason.startswith(defect.words)
    assert description.lint.findings[0].rule == "constant_passes"


def test_a_candidate_for_a_refused_task_is_not_run(referee: Referee) -> None:
    task = TaskSource("defective", DEFECTS["relu_far_below_zero"].source)
    referee.lint(task)
    verdict = referee.evaluate(task, CandidateSource("raise SystemExit('it ran')"))
    assert verdict.verdict == "task_rejected"
    assert "zeros is right" in verdict.reason


def test_a_marked_task_is_described_with_its_marks(referee: Referee) -> None:
    description = referee.describe(TaskSource("marked", DEFECTS["saturated"].source))
    assert description.ok
    assert [finding.rule for finding in description.lint.findings] == ["saturated"]


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("ValueError: no multiple of 4 lies in [5, 6]", "empty_space"),
        ("DIMS['rows'] is empty: no multiple of 4 lies from 5 to 6", "empty_space"),
        ("RuntimeError: It looks like there is no internet connection and the repo is not cached", "needs_network"),
        ("'cols' cannot be varied: the file has no such size; there are: rows", "space_not_to_be_had"),
        ("the file declares DIMS, so its space is changed there", "space_not_to_be_had"),
        ("RuntimeError: No CUDA GPUs are available", "needs_gpu"),
        ("RuntimeError: size mismatch", "fails"),
        ("it fails at n=2: RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use", "needs_gpu"),
    ],
)  # fmt: skip
def test_a_refusal_names_its_cause(sentence: str, rule: str) -> None:
    assert finding_of(RoleFailure("task_rejected", sentence)).rule == rule


_COSTLY = """
import torch
import torch.nn as nn
from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 512)}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        return self.convolution(x)

def get_inputs(rows=32):
    return [torch.randn(rows, 64, 32, 32)]

def get_init_inputs():
    return []
"""


def test_what_costs_much_is_looked_at_in_smaller_shapes(referee: Referee) -> None:
    """A call at the usual 30 rows takes 2.3e9 operations in float32, and lint repeats it in float64."""
    report = referee.lint(TaskSource("costly", _COSTLY))
    assert report.ok and len(report.shapes) == 2
    assert all(1 < shape["rows"] <= 12 for shape in report.shapes), report.shapes


def test_a_task_without_a_quick_shape_is_too_large_for_the_device() -> None:
    failure = RoleFailure(
        "out_of_memory", "no shape of the task stays within this device's share of memory and time"
    )
    finding = finding_of(failure)
    assert finding.rule == "too_large" and "small and quick enough" in finding.sentence
    assert "memory:" not in finding.sentence and "--device cuda" in finding.mending


def test_a_task_is_linted_once_for_a_machine(tmp_path: Path) -> None:
    store, task = ReportStore(tmp_path / "lint"), TaskSource("task", "text")
    place: dict[str, Any] = {"device": "cpu", "torch": "1"}
    finding = LintFinding("zeros_pass", "error", "zeros are right", "change it")
    report = LintReport({"name": "task", "sha256": task.sha256}, "cpu", (finding,), verdict="task_rejected")
    store.put(task, place, report)
    assert store.get(task, place) == LintReport.from_json(report.as_json()) == report
    assert store.get(task, {**place, "torch": "2"}) is None
    assert store.get(TaskSource("task", "other"), place) is None
    (path,) = (tmp_path / "lint").iterdir()
    path.write_text("{}", encoding="utf-8")
    assert store.get(task, place) is None


def test_what_a_machine_could_not_do_is_not_kept(tmp_path: Path) -> None:
    store, task = ReportStore(tmp_path), TaskSource("task", "text")
    slow = LintFinding("too_slow", "error", "it did not answer", "be faster")
    store.put(task, {}, LintReport({}, "cpu", (slow,), verdict="timeout"))
    assert store.get(task, {}) is None


@pytest.mark.slow
def test_the_command_says_what_to_mend(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("class Model(:\n", encoding="utf-8")
    told = CliRunner().invoke(app, ["lint", str(path), "--work-dir", str(tmp_path / "work"), "--json"])
    assert told.exit_code == 1
    report = LintReport.from_json(json.loads(told.stdout))
    assert report.findings[0].rule == "syntax_error"
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(console, report)
    shown = console.export_text()
    assert "not valid Python" in shown
    assert "To fix it: correct the line" in shown
    assert CliRunner().invoke(app, ["lint", str(tmp_path / "none.py")]).exit_code == 2
