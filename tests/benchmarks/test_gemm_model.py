"""The study of products of matrices at small scale: it measures, goes on where it stopped, and models what it measured."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import gemm_measure, gemm_model, gemm_report
from benchmarks.gemm_kernels import short, told
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
    report = gemm_report.fitted(state, kinds=("tree", "analytic"))
    assert report["runtime"]["of_chosen"]["mm"]["p50"] < 0.05
    assert report["energy"]["energy"]["analytic"]["p50"] < 0.06
    gemm_report.show(state, report, Console(width=150))
    said = capsys.readouterr().out
    met = re.findall(r"median error +│ +[0-9.]+ % met", said)
    assert len(met) == 2 and "told which kernel" not in said
    assert "mean 15.6 %" in said and "its test shapes are training shapes" in said
    report["runtime"]["of_chosen"]["mm"]["p50"] = 0.2
    gemm_report.show(state, report, Console(width=150))
    assert re.search(r"runtime of mm, median error +│ +20.0 % missed", capsys.readouterr().out)


#: As the profiler of an H200 names them: two for one tile, of which the second multiplies half as fast.
NAMES = (
    ["nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"],
    ["Memset", "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", "cublasLt::splitKreduce_kernel"],
)


def test_a_kernel_that_no_size_tells_of_is_known_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    state = synthetic(kernels=True)
    report = gemm_report.fitted(state, kinds=("boosted_residual",))
    alone, with_it = (one["runtime"]["of_chosen"]["mm"] for one in (report, report["told"]))
    assert with_it["p50"] < 0.05 < alone["p50"]
    joules = [one["energy"]["energy"]["gaussian_process"] for one in (report, report["told"])]
    assert joules[1]["p50"] < 0.06 < joules[0]["p50"]
    gemm_report.show(state, report, Console(width=150))
    said = capsys.readouterr().out
    assert "told which kernel" in said
    assert re.search(r"runtime of mm, median error +│ +[0-9.]+ % missed +│ +[0-9.]+ % met", said)
    rows = state["rows"]
    assert isinstance(rows, list)
    rows[0]["kernels"] = []  # one shape of which nothing is known: no model is told half of them
    assert gemm_report.fitted(state, kinds=("analytic",))["told"] is None


def test_a_name_says_how_a_product_is_divided() -> None:
    long = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x64_32x4_nn_align2>(cutlass_80::Params)"
    assert short(long) == "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x64_32x4_nn_align2"
    assert short("void cublasLt::splitKreduce_kernel<32, 16, int>(float)") == "cublasLt::splitKreduce_kernel"
    assert short("nvjet_sm90_tst_64x8_64x16_1x4_h_bz_NNT") == "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_NNT"
    assert short("Memset (Device)") == "Memset"
    dims = {"M": 100, "N": 1000, "K": 640}
    wide = told(132, [short(long)], dims)
    # 256 columns and 64 rows a tile: four times two tiles.
    assert math.log2(8) in wide.row and 100 * 1000 / (8 * 256 * 64) in wide.row
    assert told(132, ["Memset", short(long)], dims).few == wide.few
    assert told(132, [short(long), "cublasLt::splitKreduce_kernel"], dims).few != wide.few
    assert len(told(132, ["gemmSN_NN_kernel"], dims).row) == len(told(132, [], dims).row) == len(wide.row)


def synthetic(*, kernels: bool = False) -> dict[str, object]:
    """A machine with a launch, a rate and a power of its own; with kernels, every other product gets a slow one by lot."""
    rows: list[dict[str, object]] = []
    lot = random.Random(7)
    for dims in gemm_measure.shapes(300 if kernels else 120, gemm_measure.RANGES["cuda"], seed=3):
        tiles = -(-dims["M"] // 128) * -(-dims["N"] // 128)
        slow = kernels and lot.random() < 0.5
        time_us = 4.0 + 0.5 * (1 + slow) * -(-tiles // 132) * -(-dims["K"] // 64)
        joules = 100e-6 * time_us + 0.4e-12 * 2 * dims["M"] * dims["N"] * dims["K"]
        rows.append(
            {
                "dims": dims,
                "times_us": {"mm": time_us},
                **({"kernels": NAMES[slow]} if kernels else {}),
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
