"""Every planted candidate gets the verdict that its own first lines announce, and the next one is judged all the same."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource

HERE = Path(__file__).parent
TASK = TaskSource("attacked", (HERE / "task.py").read_text(encoding="utf-8"))
PLANTED = sorted((HERE / "candidates").glob("*.py"))
#: Small, so that a whole evaluation takes a second or two.
SHAPES = {
    "visible": [{"rows": 64, "cols": 96}],
    "adversarial": [{"rows": 3, "cols": 17}, {"rows": 1, "cols": 8}],
}
_DEADLINE_S = 90.0

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(240)]


def expectation(source: str) -> tuple[list[str], str | None]:
    """The verdict words and, if given, the rule of a finding that a planted file announces."""
    found = re.search(r"^# expects: (\w+(?:\|\w+)*)(?: (\w+))?$", source, re.MULTILINE)
    assert found is not None, "a planted candidate must announce its verdict"
    return found[1].split("|"), found[2]


def xfail_if_voided(verdict: dict[str, Any]) -> None:
    """A machine too noisy to time on is told so, and tells nothing about the candidate."""
    if verdict["verdict"] == "not_judged" and "nothing can be timed" in verdict["reason"]:
        pytest.xfail(f"the A/A gate voided this run: {verdict['reason']}")


def shown_faster(verdict: dict[str, Any]) -> bool:
    """Whether the whole interval lies above 1.05: on a machine shared with others, the middle of a wide one says nothing."""
    low, _ = verdict["summary"]["geomean_ci95"]
    return bool(low > 1.05)


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_planted_candidate_gets_its_verdict(path: Path, referee: Referee) -> None:
    source = path.read_text(encoding="utf-8")
    words, rule = expectation(source)
    deadline_s = 8.0 if path.stem == "hangs" else _DEADLINE_S
    started = time.monotonic()
    candidate = CandidateSource(source, "external", path.stem)
    verdict = referee.evaluate(TASK, candidate, shapes=SHAPES, deadline_s=deadline_s)
    xfail_if_voided(verdict)
    assert verdict["verdict"] in words, (verdict["reason"], verdict["detail"])
    assert time.monotonic() - started < deadline_s + 30
    assert verdict["reason"] and "\n" not in verdict["reason"]
    if rule is not None:
        assert rule in [finding["rule"] for finding in verdict["findings"]]
    if "\n# gains: nothing\n" in source:
        # Right answers: what such a file tries is to look faster, or its rival slower, than it is. Noise may once.
        if shown_faster(verdict):
            verdict = referee.evaluate(TASK, candidate, shapes=SHAPES, deadline_s=deadline_s)
            xfail_if_voided(verdict)
        assert not shown_faster(verdict), verdict["summary"]
    if verdict["verdict"] != "accepted":
        assert verdict["summary"]["geomean_speedup"] is None
        assert verdict["shapes"] == []


def test_every_planted_file_announces_a_verdict_that_exists() -> None:
    from evaluator.verdict import WORDS

    assert len(PLANTED) > 20
    for path in PLANTED:
        assert set(expectation(path.read_text(encoding="utf-8"))[0]) <= set(WORDS)
