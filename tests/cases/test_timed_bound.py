"""What is right when called alone and wrong where calls follow each other is rejected, however far off some row may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict
from tests.evaluator.few_baselines import eager_alone

pytestmark = [pytest.mark.attacks, pytest.mark.alone]

_FOLDER = Path(__file__).parent
_HEAD, _ZEROS = ((_FOLDER / f"timed_bound_{part}.py").read_text() for part in ("task", "candidate"))
_ALONE = "self.score(F.relu(self.up(x)))"


@pytest.fixture(scope="module", autouse=True)
def _against_eager_alone(core: RefereeCore) -> None:
    eager_alone(core)


def _judged(core: RefereeCore, task: str, candidate: str, rows: int) -> Verdict:
    shapes = {"visible": [{"rows": rows}]}
    proposal = CandidateSource(candidate)
    request = Request(TaskSource("case", task), proposal, "screen", ("visible",), shapes, 240.0)
    return core.evaluate(request, lambda *_: None)


@pytest.mark.parametrize(
    "soon",
    [
        pytest.param("torch.zeros(x.shape[0], 1)", marks=pytest.mark.slow),  # further off than what follows
        f"{_ALONE}.bfloat16().float()",
        pytest.param(f"{_ALONE}.roll(1, 0)", marks=pytest.mark.slow),
        pytest.param(f"{_ALONE} * 1.001", marks=pytest.mark.slow),
    ],
)
def test_a_head_with_one_output(core: RefereeCore, soon: str) -> None:
    """All of these are within the relative bound of the row in which everything cancels, where the file waits for such a row."""
    task = _HEAD.replace("786432", "196608").replace("917504", "229376")
    zeros = "torch.zeros(x.shape[0], 1)"
    assert _ZEROS.count(zeros) == 1 and "if soon and self.wide" in _ZEROS
    candidate = _ZEROS.replace(zeros, soon).replace("if soon and self.wide", "if soon")
    verdict = _judged(core, task, candidate, 196608)
    assert verdict.verdict == "incorrect" and "in a timed call" in verdict.reason, verdict.reason


def test_zeros_in_small_rows(core: RefereeCore) -> None:
    """The quick look passes these; outputs that are drawn for the oracle do not."""
    task, candidate = ((_FOLDER / f"small_rows_{part}.py").read_text() for part in ("task", "candidate"))
    verdict = _judged(core, task, candidate, 4096)
    assert verdict.verdict == "incorrect" and "in a timed call" in verdict.reason, verdict.reason
