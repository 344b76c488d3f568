"""A verdict goes to JSON and back without loss, and verdicts that were stored by earlier versions still load."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evaluator.verdict import (
    Finding,
    KernelShare,
    ShapeResult,
    Summary,
    Verdict,
    as_json,
    from_json,
    without_measurement,
)

FIGURES: dict[str, Any] = {"geomean_speedup": 1.5, "geomean_ci95": (1.4, 1.6), "shapes": 1, "traffic": None}
SHAPE = ShapeResult(
    {"rows": 3}, "visible", "float32", True, {"max_ratio": 0.1, "max_abs": 0.0}, True,
    baselines={"compile": {"median_us": 9.0, "graph_breaks": 1, "kernels": 2, "reasons": ((3, "a print"),)}},
    best_baseline="compile", baseline_us=9.0, candidate_us=6.0, speedup=1.5, ci95=(1.4, 1.6), decision="faster",
    log_ratios=(0.4, 0.41), pairs=({"speedup": 1.5, "quads": 2, "counted": True},), weight=2.0, stratum="own",
)  # fmt: skip
FULL = Verdict(
    "accepted", "because", (Finding("fallback_ran", "warning", "seen", {"rows": "tail"}),), {"name": "t"}, {"sha256": "c"},
    "confirm", ("visible", "adversarial"), {"device": "cpu"}, (SHAPE,),
    Summary(1.5, (1.4, 1.6), shapes=1, by_stratum={"own": FIGURES}, by_split={"visible": FIGURES}),
    {"quads": 2, "aa": None}, 0.1, None, 2.0, {"timing": 1.0}, 3.0,
    labels=("own_kernel",), kernels=(KernelShare("k", "own", 1.0, 1),), precision="default",
)  # fmt: skip
EMPTY = without_measurement(
    "not_judged", "because", task={}, candidate={}, effort="screen", splits=("visible",), environment={}
)


@pytest.mark.parametrize("verdict", [FULL, EMPTY])
def test_there_and_back(verdict: Verdict) -> None:
    document = as_json(verdict)
    text = json.dumps(document)
    assert json.loads(text) == document, "lists, not tuples"
    assert json.dumps(as_json(from_json(json.loads(text)))) == text, "the order of keys, too"
    assert from_json(json.loads(json.dumps(as_json(EMPTY)))) == EMPTY


def test_what_an_earlier_version_did_not_store_has_its_default() -> None:
    verdict = from_json(
        {
            "verdict": "accepted",
            "of_tomorrow": 1,
            "findings": [{"rule": "r", "severity": "info", "of_tomorrow": 1}],
            "shapes": [{"dims": {"n": 3}, "timed": True, "speedup": 2.0}],
            "kernels": None,
            "summary": {"geomean_speedup": 2.0},
        }
    )
    assert verdict.findings == (Finding("r", "info", ""),)
    assert (verdict.shapes[0].dims, verdict.shapes[0].correct, verdict.shapes[0].ci95) == (
        {"n": 3},
        True,
        None,
    )
    assert (verdict.shapes[0].stratum, verdict.measured_at) == ("", ""), "not known, and not made up"
    assert verdict.summary == Summary(2.0)
    assert (verdict.kernels, verdict.elapsed_s, verdict.environment) == ((), 0.0, {})


@pytest.mark.parametrize("document", [{}, {"verdict": "excellent"}])
def test_without_a_known_word_it_is_no_verdict(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unknown verdict word"):
        from_json(document)
