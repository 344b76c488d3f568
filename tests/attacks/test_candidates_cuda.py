"""Attacks that need a GPU: every planted file gets the verdict it announces, and an honest one after it is still accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.attacks.test_candidates import HERE, TASK, expectation
from tests.evaluator.judging import until_timed

PLANTED = sorted((HERE / "candidates_cuda").glob("*.py"))
SHAPES = {
    "attacked": {
        "visible": [{"rows": 64, "cols": 96}, {"rows": 512, "cols": 512}],
        "adversarial": [{"rows": 3, "cols": 17}],
    },
    "matmul_bias_relu": {
        "visible": [{"rows": 512, "inner": 512, "cols": 512, "dtype": "float32"}],
        "adversarial": [{"rows": 3, "inner": 17, "cols": 33, "dtype": "float32"}],
    },
}

pytestmark = [pytest.mark.attacks, pytest.mark.gpu, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee("cuda", work_dir=tmp_path_factory.mktemp("referee-cuda")) as running:
        yield running


def attacked_task(source: str) -> TaskSource:
    """The task that a planted file names, the common one by default."""
    named = re.search(r"^# task: (\w+)$", source, re.MULTILINE)
    return TASK if named is None else TaskSource(named[1], catalog.load(named[1]).source)


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_planted_candidate_gets_its_verdict(path: Path, referee: Referee) -> None:
    source = path.read_text(encoding="utf-8")
    words, rule = expectation(source)
    task = attacked_task(source)
    deadline_s = 30.0 if path.stem == "endless_kernel" else 200.0
    candidate = CandidateSource(source, "external", path.stem)
    verdict = until_timed(
        lambda: referee.evaluate(task, candidate, shapes=SHAPES[task.name], deadline_s=deadline_s)
    )
    assert verdict.verdict in words, (verdict.reason, verdict.detail)
    if rule is not None:
        assert rule in [finding.rule for finding in verdict.findings]
    if "\n# gains: nothing\n" in source and verdict.verdict == "accepted":
        assert verdict.summary.geomean_speedup <= 1.05, verdict.summary


def test_an_honest_candidate_is_accepted_after_all_that(referee: Referee) -> None:
    source = (HERE / "candidates_cuda" / "honest.py").read_text(encoding="utf-8")
    candidate = CandidateSource(source, "external", "honest")
    verdict = until_timed(lambda: referee.evaluate(TASK, candidate, shapes=SHAPES["attacked"]))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
