"""The reference against itself: what a busy machine does to it is no fault of the task's."""

from __future__ import annotations

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring import verify
from evaluator.request import Request
from evaluator.verdict import UNSTEADY
from tests.corpus import controls, corpus

pytestmark = pytest.mark.alone


@pytest.mark.slow
def test_a_reference_that_was_stopped_late_leaves_its_task_unjudged(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever is stopped counts as late.
    monkeypatch.setattr(verify, "_MOST_WHILE_STOPPED_US", -1e9)
    honest = next(entry for entry in controls.every() if entry.name == "row_sum_dot_plain")
    shapes = {"visible": [{"rows": 64, "cols": 128, "dtype": "float32"}]}
    request = Request(corpus.task("row_sum"), honest.candidate, "screen", ("visible",), shapes, 120.0)
    verdict = core.evaluate(request, lambda *_: None)
    assert verdict.verdict == "not_judged"
    assert "nothing can be timed" in verdict.reason and "while it was stopped" in verdict.reason
    assert UNSTEADY in [one.rule for one in verdict.findings]
