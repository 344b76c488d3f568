"""Tasks as users submit them: their space is found and may be overridden, and lint looks before a candidate is judged."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluator.cli import app
from evaluator.client import Referee
from evaluator.shapes.space import as_fields
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.defective_tasks import DEFECTS

_TASK = textwrap.dedent("""
    import torch
    import torch.nn as nn

    rows = 16

    class Model(nn.Module):
        def __init__(self, features, out):
            super().__init__()
            self.linear = nn.Linear(features, out)

        def forward(self, x):
            return self.linear(x).relu()

    def get_inputs():
        return [torch.randn(rows, 48)]

    def get_init_inputs():
        return [48, 40]
""")
_HONEST = _TASK.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
#: Right at the file's own 16 rows only.
_ONE_SIZE = _HONEST.replace("return self.linear(x).relu()", "return self.linear(x[:16]).relu()")


def test_a_task_without_dims_is_described_with_those_that_were_found(referee: Referee) -> None:
    described = referee.describe(TaskSource("linear", _TASK))
    assert described.ok, described.reason
    assert set(described.dims) == {"rows", "size_0", "argument_1"}
    assert described.inferred.tied["size_0"] == ("size_0", "argument_0")
    assert len({shape["rows"] for shape in described.shapes["visible"]}) > 1
    # The file that is judged stands for itself: nothing has to be found again.
    again = referee.describe(TaskSource("again", described.source))
    assert again.inferred is None and again.dims == described.dims


def test_the_user_may_have_another_space(referee: Referee) -> None:
    space = {"rows": {"min": 2, "max": 8}, "argument_0": {"max": 96}}
    described = referee.describe(TaskSource("linear", _TASK), space=space)
    dims = described.dims
    assert as_fields(described.inferred.space) == dims
    assert (dims["rows"]["min"], dims["rows"]["max"], dims["size_0"]["max"]) == (2, 8, 96)
    assert all(2 <= shape["rows"] <= 8 for shape in described.shapes["visible"])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"columns": {"max": 8}}, "cannot be varied: the file has no such size; there are: rows"),
        pytest.param({"rows": {"min": 9, "max": 8}}, "0 <= min <= max", marks=pytest.mark.slow),
        pytest.param({"rows": 8}, "must be a mapping", marks=pytest.mark.slow),
    ],
)
def test_a_space_that_the_task_does_not_have_is_refused(referee: Referee, space: Any, words: str) -> None:
    described = referee.describe(TaskSource("linear", _TASK), space=space)
    assert described.verdict == "task_rejected" and words in described.reason


def test_a_space_that_does_not_hold_is_the_users_to_correct(referee: Referee) -> None:
    text = _TASK.replace("self.linear(x)", "self.linear(x).unflatten(1, (-1, 8)).sum(-1)")
    described = referee.describe(TaskSource("eights", text), space={"argument_1": {"multiple_of": 1}})
    assert described.verdict == "task_rejected" and "DIMS allows" in described.reason


def test_an_inferred_space_that_does_not_hold_is_given_up(referee: Referee) -> None:
    # At the sizes at which lint looks and inference does not.
    guard = "if x.shape[0] in (18, 23):\n            raise ValueError('no')\n        return self.linear(x)"
    described = referee.describe(TaskSource("gaps", _TASK.replace("return self.linear(x)", guard)))
    assert described.ok, described.reason
    assert described.dims == {} and not described.inferred.ok
    assert "rows=18" in described.inferred.reason


_DEEP = textwrap.dedent("""
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, features):
            super().__init__()
            hidden = [module for _ in range(24) for module in (nn.Linear(64, 64), nn.ReLU())]
            self.layers = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), *hidden, nn.Linear(64, 10))

        def forward(self, x):
            return self.layers(x)

    def get_inputs():
        return [torch.rand(32, 48)]

    def get_init_inputs():
        return [48]
""")


@pytest.mark.slow
def test_a_module_of_which_only_the_biases_are_left_gets_larger_weights(referee: Referee) -> None:
    """Through 24 layers at the default initialization, outputs of different inputs are equal within float32."""
    task = TaskSource("deep", _DEEP)
    described = referee.describe(task)
    assert described.ok, described.reason
    assert "weights_scaled" in {finding.rule for finding in described.lint.findings}
    assert max(fact["variation"] for fact in described.lint.facts) > 0.05
    assert "def redraw(" in described.source

    honest = _DEEP.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
    verdict = referee.evaluate(task, CandidateSource(honest, "external", "x"), submitted=True)
    assert verdict.verdict == "accepted", verdict.reason
    replays = honest.replace(
        "return self.layers(x)",
        "self.kept = getattr(self, 'kept', {})\n"
        "        if x.shape not in self.kept:\n"
        "            self.kept[x.shape] = self.layers(x)\n"
        "        return self.kept[x.shape].clone()",
    )
    verdict = referee.evaluate(task, CandidateSource(replays, "external", "x"), submitted=True)
    assert verdict.verdict in ("cheating", "incorrect"), verdict.reason


@pytest.mark.slow
def test_weights_of_the_users_own_drawing_are_kept(referee: Referee) -> None:
    drawn = _DEEP + textwrap.dedent("""
        def redraw(model, generator):
            for parameter in model.parameters():
                parameter.data.normal_(0.0, 0.01, generator=generator)
    """)
    described = referee.describe(TaskSource("drawn", drawn))
    assert not described.ok and described.source.count("def redraw(") == 1


def test_a_file_that_declares_its_space_keeps_it(referee: Referee) -> None:
    text = f"{_TASK}\nDIMS = {{}}\n"
    described = referee.describe(TaskSource("own", text), space={"rows": {"max": 8}})
    assert "declares DIMS" in described.reason


@pytest.mark.slow
def test_a_candidate_for_the_files_sizes_alone_is_wrong_elsewhere(referee: Referee) -> None:
    task = TaskSource("linear", _TASK)
    candidate = CandidateSource(_ONE_SIZE)
    splits = ["adversarial"]
    assert referee.evaluate(task, candidate, splits=splits).verdict == "accepted"
    verdict = referee.evaluate(task, candidate, splits=splits, submitted=True)
    assert verdict.verdict == "contract_violation"
    assert verdict.task["sha256"] == task.sha256
    # Nor does the verdict for one size answer for the space.
    kept = referee.evaluate(task, candidate, splits=splits, submitted=True, reuse=True)
    assert kept.verdict == "contract_violation" and kept.reused
    good = referee.evaluate(task, CandidateSource(_HONEST), splits=splits, submitted=True)
    assert good.verdict == "accepted", good.reason
    assert len(good.shapes) > 1


def test_a_defective_task_is_refused_before_a_candidate_is_looked_at(referee: Referee) -> None:
    source = next(iter(DEFECTS.values())).source
    verdict = referee.evaluate(TaskSource("defective", source), CandidateSource("1 / 0"), submitted=True)
    assert verdict.verdict == "task_rejected"


@pytest.mark.slow
def test_the_command_refuses_a_defective_task(tmp_path: Path) -> None:
    task, candidate = tmp_path / "defective.py", tmp_path / "candidate.py"
    task.write_text(next(iter(DEFECTS.values())).source, encoding="utf-8")
    candidate.write_text("1 / 0", encoding="utf-8")
    words = ["evaluate", str(task), str(candidate), "--json", "--work-dir", str(tmp_path / "work")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["verdict"] == "task_rejected"


@pytest.mark.parametrize(("option", "given"), [("--splits", "visible,visble"), ("--effort", "slow")])
def test_the_command_names_an_unknown_choice(tmp_path: Path, option: str, given: str) -> None:
    task = tmp_path / "task.py"
    task.write_text(_TASK, encoding="utf-8")
    result = CliRunner().invoke(app, ["evaluate", str(task), str(task), option, given])
    assert result.exit_code == 2
    assert f"{option}: '{given.rpartition(',')[2]}' is none of" in result.stderr


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("{'rows': {'min': 1, 'max': 8}}", "DIMS['rows'] must be a Dim or a Choice"),
        ("{'rows': 8}", "DIMS['rows'] must be a Dim or a Choice"),
        ("['rows']", "DIMS must be a dictionary of dimensions"),
    ],
)
def test_a_space_in_another_form_is_named(referee: Referee, declared: str, words: str) -> None:
    described = referee.describe(TaskSource("form", f"{_TASK}\nDIMS = {declared}\n"))
    assert described.verdict == "task_rejected" and words in described.reason
