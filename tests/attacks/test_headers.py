"""Inductor's precompiled headers are a saving, never a condition: a compiled candidate is judged without them too."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.folders import headers_folder
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource
from tests.attacks.test_candidates import HERE, SHAPES, TASK
from tests.evaluator.few_baselines import without_autotune
from tests.evaluator.judging import until_timed

pytestmark = pytest.mark.alone


@pytest.mark.slow
def test_compiled_candidate_without_the_header_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the cache was filled for another instruction set: complete, yet not what is asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    headers_folder().mkdir(parents=True)
    (headers_folder() / "complete").touch()
    source = (HERE / "candidates" / "honest_compiled.py").read_text(encoding="utf-8")
    candidate = CandidateSource(source, "external", "compiled")
    core = RefereeCore("cpu", tmp_path / "referee", "landlock")
    without_autotune(core)
    try:
        request = Request(TASK, candidate, splits=("visible",), shapes={"visible": SHAPES["visible"]})
        verdict = until_timed(lambda: core.evaluate(request, lambda *_: None))
    finally:
        core.close()
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
