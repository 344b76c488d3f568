"""The study of products of matrices at small scale: it measures, goes on where it stopped, and models what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import gemm_measure, gemm_model
from evaluator.errors import EvaluatorError


def test_shapes_are_distinct_in_range_and_repeatable() -> None:
    within = gemm_measure.RANGES["cuda"]
    drawn = gemm_measure.shapes(500, within, seed=1)
    assert len({tuple(dims.values()) for dims in drawn}) == 500
    assert all(within.low <= size <= within.high for dims in drawn for size in dims.values())
    assert drawn == gemm_measure.shapes(500, within, seed=1)
    assert drawn != gemm_measure.shapes(500, within, seed=2)
    odd = sum(dims["K"] % 2 for dims in drawn)
    assert 20 < odd < 200  # some rows are not aligned, most are
    assert sum(dims["M"] <= 256 for dims in drawn) > 150  # uniform in the logarithm, not in size


@pytest.mark.parametrize("dims", [{"M": 5, "N": 7, "K": 9}, {"M": 16, "N": 24, "K": 128}])
def test_every_member_computes_the_same_product(dims: dict[str, int]) -> None:
    with torch.no_grad():
        calls = gemm_measure.members(dims, torch.float32, "cpu")
        expected = calls["mm"]()
        assert len(calls) == 2
        for name, call in calls.items():
            torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4, msg=name)


def test_a_study_goes_on_where_it_stopped_and_refuses_another_ones_file(tmp_path: Path) -> None:
    path, console = tmp_path / "gemm.json", Console(quiet=True)
    gemm_model.Study(path, "cpu", "float32", 1, 12, console).measure(0.3)
    first = json.loads(path.read_text())
    gemm_model.Study(path, "cpu", "float32", 1, 12, console).measure(30.0)
    second = json.loads(path.read_text())
    assert 0 < len(first["rows"]) <= len(second["rows"]) == 12
    timed = {str(row["dims"]): row["times_us"] for row in second["rows"]}
    assert all(timed[str(row["dims"])] == row["times_us"] for row in first["rows"])
    assert all(row["times_us"]["mm"] > 0 for row in second["rows"])
    energy = second["energy"]
    assert bool(energy["counter"]) != bool(energy["why_not"])
    with pytest.raises(EvaluatorError, match="another settings"):
        gemm_model.Study(path, "cpu", "float32", 2, 12, console)


def test_the_report_says_what_was_met_and_puts_it_beside_gpperf(capsys: pytest.CaptureFixture[str]) -> None:
    state = synthetic()
    report = gemm_model.fitted(state, kinds=("tree", "analytic"))
    assert report["runtime"]["of_chosen"]["mm"]["p50"] < 0.05
    assert report["energy"]["energy"]["analytic"]["p50"] < 0.06
    gemm_model.show(state, report, Console(width=150))
    said = capsys.readouterr().out
    assert "5.0 % met" in said and "6.0 % met" in said
    assert "mean 15.6 %" in said and "its test shapes are training shapes" in said
    report["runtime"]["of_chosen"]["mm"]["p50"] = 0.2
    gemm_model.show(state, report, Console(width=150))
    assert "5.0 % missed" in capsys.readouterr().out


def synthetic() -> dict[str, object]:
    """A machine with a launch, a rate and a power of its own."""
    rows = []
    for dims in gemm_measure.shapes(120, gemm_measure.RANGES["cuda"], seed=3):
        tiles = -(-dims["M"] // 128) * -(-dims["N"] // 128)
        time_us = 4.0 + 0.5 * -(-tiles // 132) * -(-dims["K"] // 64)
        joules = 100e-6 * time_us + 0.4e-12 * 2 * dims["M"] * dims["N"] * dims["K"]
        rows.append(
            {
                "dims": dims,
                "times_us": {"mm": time_us},
                "energy": {
                    "joules": joules,
                    "power_w": joules / time_us * 1e6,
                    "call_us": time_us,
                    "spread": 0.01,
                },
            }
        )
    return {
        "settings": {"dtype": "bfloat16", "seed": 1},
        "machine": {"units": 132, "cache_bytes": 50 << 20},
        "energy": {"why_not": None},
        "rows": rows,
    }
