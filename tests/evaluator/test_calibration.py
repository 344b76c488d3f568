"""The reference against itself: what a busy machine does to it is no fault of the task's."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.referee.checking import watch
from evaluator.referee.checking.watch import Watch
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring import verify
from evaluator.referee.sides.side import Side
from evaluator.request import Request
from evaluator.verdict import UNSTEADY
from tests.corpus import controls, corpus

pytestmark = pytest.mark.alone


def _after(self: Watch, side: Side) -> None:
    if side.process is self._candidate:
        raise watch._rejected("after its turn")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [(verify, "_MOST_WHILE_STOPPED_US", -1e9), (Watch, "after", _after)],
    ids=["all stops are late", "work on the GPU"],
)
def test_a_reference_that_is_disturbed_leaves_its_task_unjudged(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, planted: Any
) -> None:
    monkeypatch.setattr(owner, name, planted)
    honest = next(entry for entry in controls.every() if entry.name == "row_sum_dot_plain")
    shapes = {"visible": [{"rows": 64, "cols": 128, "dtype": "float32"}]}
    request = Request(corpus.task("row_sum"), honest.candidate, "screen", ("visible",), shapes, 120.0)
    verdict = core.evaluate(request, lambda *_: None)
    assert verdict.verdict == "not_judged"
    assert "nothing can be timed" in verdict.reason and "stopped" in verdict.reason
    assert UNSTEADY in [one.rule for one in verdict.findings]
