"""Attacks on how large shapes are judged: contents made on the device, outputs compared in pieces, an oracle that sees a part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from tests.attacks.test_candidates import HERE, expectation
from tests.evaluator.judging import until_timed

PLANTED = sorted((HERE / "candidates_large").glob("*.py"))
LARGE_TASK = TaskSource("attacked_large", (HERE / "large_task.py").read_text(encoding="utf-8"))
#: 512 MiB go in and 1 GiB comes out, which are eight pieces; from 256 MiB of outputs on a shape is judged in pieces.
LARGE_SHAPES: dict[str, list[dict[str, Any]]] = {
    "visible": [{"rows": 16384, "cols": 8192}],
    "adversarial": [],
}

pytestmark = [pytest.mark.attacks, pytest.mark.gpu, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee("cuda", work_dir=tmp_path_factory.mktemp("referee-large")) as running:
        yield running


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_planted_candidate_gets_its_verdict(path: Path, referee: Referee) -> None:
    source = path.read_text(encoding="utf-8")
    words, rule = expectation(source)
    candidate = CandidateSource(source, "external", path.stem)
    verdict = until_timed(
        lambda: referee.evaluate(
            LARGE_TASK, candidate, shapes=LARGE_SHAPES, splits=["visible"], deadline_s=200.0
        )
    )
    print(verdict.verdict, verdict.summary.geomean_speedup, verdict.reason, verdict.stages_s)
    assert verdict.verdict in words, (verdict.reason, verdict.detail)
    rules = [finding.rule for finding in verdict.findings]
    if rule is not None:
        assert rule in rules
    if verdict.verdict == "accepted":
        assert "oracle_on_part" in rules, "the shape is not judged as a large one"
        if "\n# gains: nothing\n" in source:
            assert verdict.summary.geomean_speedup <= 1.05, verdict.summary
