"""What is kept of one candidate's checks for the next one of the same task is bounded: a referee lives for many tasks."""

from __future__ import annotations

import pytest

from evaluator.referee.checking import correctness
from evaluator.referee.checking.correctness import cases
from evaluator.referee.judging.core import RefereeCore
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog

pytestmark = pytest.mark.timeout(240)


def test_cases_of_all_shapes_together_are_kept_up_to_a_bound(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = core.session(TaskSource("task", catalog.load("layernorm_relu_add").source))
    first, second = (session.open({"rows": rows, "cols": 64, "dtype": "float32"}) for rows in (33, 34))
    made = cases(session, first)
    assert cases(session, first) is made, "kept for the next candidate"
    arrays = [array for case in made for array in (*case.contents, *(one.exact for one in case.expected))]
    kept_bytes = first.checks.cases_bytes
    assert kept_bytes > sum(array.nbytes for array in arrays) > 0
    monkeypatch.setattr(correctness, "_CACHED_BYTES", kept_bytes + 1)
    assert cases(session, second) and not second.checks.cases
