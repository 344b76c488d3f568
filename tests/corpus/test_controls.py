"""No honest candidate is rejected. `benchmarks/controls.py` judges all of them, with timing where there is any."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from evaluator.client import Referee
from tests.corpus import controls, corpus

pytestmark = pytest.mark.timeout(240)
#: The referee's own shapes have millions of elements, and a program of a grid takes milliseconds in Triton's interpreter.
_FEW_ROWS = [
    {"rows": 3, "cols": 130, "dtype": "float32"},
    {"rows": 1, "cols": 8, "dtype": "float32"},
    {"rows": 5, "cols": 257, "dtype": "float32"},
]
#: The same for tasks whose dimensions are others.
_FEW_OTHERS = {
    "conv_relu": [
        {"batch": 2, "channels": 8, "size": 24},
        {"batch": 1, "channels": 1, "size": 3},
        {"batch": 3, "channels": 5, "size": 17},
    ],
    "matmul_bias_relu": None,  # its own are small
}


def _parameters() -> list[object]:
    quick = controls.quick()
    nightly = [entry for entry in controls.quick(7) if entry not in quick]
    return [
        *(pytest.param(entry, id=entry.name) for entry in quick),
        *(pytest.param(entry, id=entry.name, marks=pytest.mark.slow) for entry in nightly),
    ]


@pytest.mark.parametrize("entry", _parameters())
def test_honest_candidate_is_accepted(entry: corpus.Entry, referee: Referee) -> None:
    column = "classes" if entry.task == "cross_entropy" else "cols"
    rows = [{column if name == "cols" else name: size for name, size in dims.items()} for dims in _FEW_ROWS]
    few = _FEW_OTHERS.get(entry.task, rows)
    verdict = referee.evaluate(
        corpus.task(entry.task),
        entry.candidate,
        splits=("adversarial",),
        shapes=None if few is None else {"adversarial": few},
        deadline_s=200.0,
    )
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert not [f for f in verdict.findings if f.severity in ("error", "cheat")]


def test_there_are_enough_of_them_and_they_differ() -> None:
    entries = controls.every()
    on_cpu = [entry for entry in entries if entry.runs_on("cpu")]
    assert len(on_cpu) >= 200
    assert len([entry for entry in entries if entry.runs_on("cuda")]) >= 200
    assert len({entry.name for entry in entries}) == len(entries)
    bodies = Counter(re.sub(r'^""".*?"""', "", entry.source) for entry in entries)
    assert max(bodies.values()) == 1


def test_the_quick_part_shows_every_task_and_style() -> None:
    quick = controls.quick()
    buildable = [e for e in controls.every() if not e.compiles and e.only != "cuda"]
    assert {entry.task for entry in quick} >= set(controls.OPERATIONS)
    assert {entry.kind for entry in buildable if "_" in entry.kind} <= {entry.kind for entry in quick}
