"""Every kernel with a typical slip is rejected, for the slip. `benchmarks/bugs.py` says at how many shapes each is caught."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from evaluator.client import Referee
from tests.corpus import corpus

BUGS = [entry for entry in corpus.bugs() if entry.runs_on("cpu")]
#: What a slip may be called. Crashes, timeouts and broken files would mean that the file is broken, not caught.
_CAUGHT = {"incorrect", "contract_violation", "cheating"}
#: Built in `make test`: one of each kind. The others take 15 s of compiler each.
_BUILT = {"cpp_rmsnorm_vector_tail"}
#: Wrong only where there are more columns than one block has: one such shape, since Triton's interpreter takes seconds for the referee's own.
_SHAPES = {"triton_row_sum_one_block": [{"rows": 3, "cols": 700}, {"rows": 3, "cols": 1500}]}

# What is right is asked alone; nothing is timed.
pytestmark = pytest.mark.timeout(240)


def _parameters() -> list[object]:
    """In `make test` the first of each slip in each language."""
    quick = {(entry.kind, entry.language): entry for entry in reversed(BUGS) if not entry.compiles}
    fast = {entry.name for entry in quick.values()} | _BUILT
    return [
        pytest.param(entry, id=entry.name, marks=[] if entry.name in fast else [pytest.mark.slow])
        for entry in BUGS
    ]


@pytest.mark.parametrize("entry", _parameters())
def test_slip_is_caught(entry: corpus.Entry, referee: Referee) -> None:
    few = _SHAPES.get(entry.name)
    verdict = referee.evaluate(
        corpus.task(entry.task),
        entry.candidate,
        splits=("adversarial",),
        shapes=None if few is None else {"adversarial": few},
        deadline_s=200.0,
    )
    assert verdict.verdict in _CAUGHT, (verdict.verdict, verdict.reason, verdict.detail)
    assert [f.rule for f in verdict.findings if f.severity in ("error", "cheat")]
    assert verdict.summary.geomean_speedup is None


def test_the_corpus_is_broad() -> None:
    entries = corpus.bugs()
    assert len(entries) >= 60
    assert len({entry.kind for entry in entries}) >= 30
    languages = Counter(entry.language for entry in entries)
    assert languages["triton"] >= 15 and languages["cpp"] >= 4 and languages["torch"] >= 40


def test_every_file_says_what_is_wrong_and_is_python() -> None:
    for entry in corpus.bugs():
        lines = entry.source.splitlines()
        assert lines[0].startswith("# task: ") and lines[1].startswith("# slip: "), entry.name
        assert ast.get_docstring(ast.parse(entry.source)), entry.name
        assert corpus.task(entry.task).source
