"""Every planted candidate gets the verdict that its own first lines announce, and the next one is judged all the same.

Most faults show in the checks, which need no clock. A file with the line `# shows: when timed` is judged with one, as is a file
that says that it gains nothing.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict
from tests.evaluator.few_baselines import QuickReferee
from tests.evaluator.judging import until_timed

HERE = Path(__file__).parent
TASK = TaskSource("attacked", (HERE / "task.py").read_text(encoding="utf-8"))
PLANTED = sorted((HERE / "candidates").glob("*.py"))
#: Small, so that a whole evaluation takes a second or two.
SHAPES = {
    "visible": [{"rows": 64, "cols": 96}],
    "adversarial": [{"rows": 3, "cols": 17}, {"rows": 1, "cols": 8}],
}
#: The same for the checks alone: adversarial shapes are never timed.
_CHECKED = {"adversarial": SHAPES["visible"] + SHAPES["adversarial"]}
_DEADLINE_S = 200.0
#: No attacks: they run the compiler, which `compile_ahead` tests too.
_SLOW = {"honest_compiled", "honest_compiles_itself"}

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(400)]


def expectation(source: str) -> tuple[list[str], str | None]:
    """The verdict words and, if given, the rule of a finding that a planted file announces."""
    found = re.search(r"^# expects: (\w+(?:\|\w+)*)(?: (\w+))?$", source, re.MULTILINE)
    assert found is not None, "a planted candidate must announce its verdict"
    return found[1].split("|"), found[2]


def shown_faster(verdict: Verdict) -> bool:
    """Whether the whole interval lies above 1.05: on a machine shared with others, the middle of a wide one says nothing."""
    low, _ = verdict.summary.geomean_ci95
    return bool(low > 1.05)


def is_timed(path: Path) -> bool:
    """Whether a planted file is judged with a clock."""
    source = path.read_text(encoding="utf-8")
    return "\n# shows: when timed\n" in source or "\n# gains: nothing\n" in source


def check(path: Path, verdict: Verdict) -> None:
    """What holds for the verdict on every planted file."""
    words, rule = expectation(path.read_text(encoding="utf-8"))
    assert verdict.verdict in words, (verdict.reason, verdict.detail)
    assert verdict.reason and "\n" not in verdict.reason
    if rule is not None:
        assert rule in [finding.rule for finding in verdict.findings]
    if verdict.verdict != "accepted":
        assert verdict.summary.geomean_speedup is None
        assert verdict.shapes == ()


@pytest.mark.parametrize("path", [path for path in PLANTED if not is_timed(path)], ids=lambda path: path.stem)
def test_planted_candidate_gets_its_verdict(path: Path, referee: Referee) -> None:
    deadline_s = 2.0 if path.stem == "hangs" else _DEADLINE_S
    started = time.monotonic()
    candidate = CandidateSource(path.read_text(encoding="utf-8"), "external", path.stem)
    check(
        path,
        referee.evaluate(TASK, candidate, splits=["adversarial"], shapes=_CHECKED, deadline_s=deadline_s),
    )
    assert time.monotonic() - started < deadline_s + 30


@pytest.mark.alone
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in _SLOW else [])
        for path in PLANTED
        if is_timed(path)
    ],
)
def test_planted_candidate_gets_its_verdict_when_it_is_timed(path: Path, quick_referee: QuickReferee) -> None:
    source = path.read_text(encoding="utf-8")
    candidate = CandidateSource(source, "external", path.stem)

    def judged() -> Verdict:
        return until_timed(
            lambda: quick_referee.evaluate(TASK, candidate, shapes=SHAPES, deadline_s=_DEADLINE_S)
        )

    verdict = judged()
    check(path, verdict)
    if "\n# gains: nothing\n" in source:
        # Right answers: what such a file tries is to look faster, or its rival slower, than it is. It would do so every time;
        # noise of a machine that others use too made it seem so twice in a row.
        assert not shown_faster(verdict) or not all(shown_faster(judged()) for _ in range(3)), verdict.summary


def test_every_planted_file_announces_a_verdict_that_exists() -> None:
    from evaluator.verdict import WORDS

    assert len(PLANTED) > 20
    for path in PLANTED:
        assert set(expectation(path.read_text(encoding="utf-8"))[0]) <= set(WORDS)
