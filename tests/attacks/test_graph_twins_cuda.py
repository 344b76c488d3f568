"""Attacks on graph twins: candidates that do something else while a CUDA graph is captured, judged as the graph that they become."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.compiler.cuda_graph import cuda_graph_source
from evaluator.client import Referee
from evaluator.sources import CandidateSource
from evaluator.verdict import WORDS
from tests.attacks.test_candidates import HERE, TASK, expectation
from tests.evaluator.judging import until_timed

PLANTED = sorted((HERE / "candidates_twins").glob("*.py"))
SHAPES = {"visible": [{"rows": 64, "cols": 96}], "adversarial": [{"rows": 3, "cols": 17}]}

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee("cuda", work_dir=tmp_path_factory.mktemp("referee-twins")) as running:
        yield running


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_graph_is_made_of_every_planted_file(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "class Launched" in cuda_graph_source(source, path.stem, "ModelNew")
    assert set(expectation(source)[0]) <= set(WORDS)


@pytest.mark.gpu
@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_twin_gets_its_verdict(path: Path, referee: Referee) -> None:
    source = path.read_text(encoding="utf-8")
    words, rule = expectation(source)
    twin = CandidateSource(cuda_graph_source(source, path.stem, "ModelNew"), "external", path.stem)
    verdict = until_timed(lambda: referee.evaluate(TASK, twin, shapes=SHAPES, deadline_s=200.0))
    print(verdict.verdict, verdict.summary.geomean_speedup, verdict.reason)
    assert verdict.verdict in words, (verdict.reason, verdict.detail)
    if rule is not None:
        assert rule in [finding.rule for finding in verdict.findings]
    if "\n# gains: nothing\n" in source and verdict.verdict == "accepted":
        assert verdict.summary.geomean_speedup <= 1.05, verdict.summary


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["records_nothing", "captures_the_first_input"])
def test_who_is_right_alone_is_no_better_in_the_referee_s_own_graph(name: str, referee: Referee) -> None:
    """A confirmation captures calls itself."""
    source = (HERE / "candidates_twins" / f"{name}.py").read_text(encoding="utf-8")
    candidate = CandidateSource(source, "external", name)
    verdict = until_timed(
        lambda: referee.evaluate(
            TASK,
            candidate,
            effort="confirm",
            shapes={"visible": SHAPES["visible"]},
            splits=["visible"],
            deadline_s=200.0,
        )
    )
    print(verdict.verdict, verdict.reason, [row.captured for row in verdict.shapes])
    assert verdict.verdict in ("cheating", "incorrect", "contract_violation", "runtime_error"), verdict.reason
