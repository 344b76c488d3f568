"""A hostile or broken reference ends with a named verdict and one clear sentence, and the next task is judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evaluator.client import Referee
from evaluator.shapes.sampler import COUNTS
from evaluator.sources import TaskSource

HERE = Path(__file__).parent
PLANTED = sorted((HERE / "tasks").glob("*.py"))

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(240)]


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_planted_task_is_refused_in_words(path: Path, referee: Referee) -> None:
    source = path.read_text(encoding="utf-8")
    found = re.search(r"^# expects: (\w+) (.+)$", source, re.MULTILINE)
    assert found is not None
    # Forks compete with the one that is to fail, and on a busy machine it gets its turn late.
    deadline_s = 2.0 if found[1] == "timeout" else 60.0
    description = referee.describe(TaskSource(path.stem, source), deadline_s=deadline_s)
    assert not description.ok
    assert (description.verdict, found[2] in description.reason) == (found[1], True), description
    assert "\n" not in description.reason


def test_a_sound_task_is_described_after_all_that(referee: Referee) -> None:
    task = TaskSource("attacked", (HERE / "task.py").read_text(encoding="utf-8"))
    description = referee.describe(task)
    assert description.ok
    assert set(description.dims) == {"rows", "cols"}
    assert description.shapes["held_out"] == []
    assert len(description.shapes["visible"]) == COUNTS["visible"]
    visible = [tuple(dims.values()) for dims in description.shapes["visible"]]
    validation = [tuple(dims.values()) for dims in description.shapes["validation"]]
    assert visible[0] == validation[0] == tuple(dim["default"] for dim in description.dims.values())
    assert not set(visible[1:]) & set(validation[1:])
