"""The study of dispatchers at small scale: it measures, goes on where it stopped, and prints the same table as at full size."""

from __future__ import annotations

import ast
import json
import math
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from agent.library.by_task import list_task_kernels
from benchmarks import dispatch
from benchmarks.dispatch_matrix import assert_same
from benchmarks.dispatch_tasks import TASKS, TaskOperation, with_warps
from benchmarks.dispatch_verified import chosen, nearest

FEW = [
    "--tasks",
    "--only",
    "row_moments",
    "--building",
    "32",
    "--held-out",
    "3",
    "--rounds",
    "2",
    "--more-rounds",
    "16",
    "--no-cost",
]


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(dispatch.main)
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.timeout(300)
def test_a_task_of_the_catalogue_is_measured_kept_and_studied(tmp_path: Path) -> None:
    kept = tmp_path / "matrix.json"
    assert "time is up at row_moments: 0 of 35 shapes" in run(
        *FEW, "--json", str(kept), "--seconds-total", "0"
    )
    assert not kept.exists()
    table = run(*FEW, "--json", str(kept))
    assert "row_moments: timed in" in table and "of portfolio oracle" in table
    matrix = json.loads(kept.read_text())["operations"]["row_moments"]
    names = [one["name"] for one in matrix["variants"]]
    assert names == ["eager", "eager 1t", "compile dynamic", "own", "own 1t"]
    assert len(matrix["us"]) == 35 and all(len(row) == len(names) for row in matrix["us"])
    assert all(len(one) == 2 and min(one) > 0 for row in matrix["us"] for one in row)
    more = json.loads(kept.read_text())["operations"]["row_moments"]["more_us"]
    assert len(more) == 3 and all(len(one) == 16 for row in more for one in row)
    assert "verified" in table
    again = run(*FEW, "--json", str(kept))
    assert "timed in" not in again  # it went on with what was kept, and nothing was left to do
    assert again[again.index("┏") :] == table[table.index("┏") :]


def test_verified_mode_takes_who_proves_to_be_faster_than_reference_and_compiler() -> None:
    starts = {0: 10.0, 1: 9.0, 2: 8.0, 3: 7.0, 4: 5.0, 5: 9.5}
    times = {one: [us, us + 0.1] * 6 for one, us in starts.items()}
    # 0 is the reference, 1 the compiler's; the fastest of all (4) is no contender, since two others are likelier.
    assert chosen(times, 0, 2, [3, 2, 5, 4, 1], [0, 1]) == 3
    assert chosen(times, 0, 2, [3, 2, 4, 5, 1], [0, 1]) == 4
    assert chosen(times, 0, 2, [2, 1], [0, 1]) == 2
    assert (
        chosen(times | {2: [8.99, 9.09] * 6}, 0, 2, [2, 1], [0, 1]) == 1
    )  # by less than a percent over the compiler's
    assert chosen({one: [10.0, 10.1] * 6 for one in times}, 0, 2, [2, 1], [0, 1]) == 0
    assert nearest({"rows": 100, "dtype": "float32"}, [{"rows": 10}, {"rows": 120}, {"rows": 400}]) == 1


def test_a_bundle_times_the_same_contenders() -> None:
    text = files("agent.bundle").joinpath("templates/ranking.py.template").read_text(encoding="utf-8")
    names: dict[str, object] = {
        "math": math,
        "MEMBERS": [None] * 6,
        "COMPILED": {1, 5},
        "PRICES_US": None,
        "KEY_SIZES": (),
    }
    exec(compile(text, "ranking", "exec"), names)
    contenders = names["_contenders"]
    assert callable(contenders)
    assert contenders(3, {}, ("float32",), None) == [3, 0, 2, 1]
    assert contenders(None, {}, ("float32",), None) == [0, 2, 3, 1]
    assert contenders(5, {}, ("float32",), None) == [0, 2, 3, 5]  # the tree's choice may be the compiler's


def test_a_variant_that_computes_something_else_is_no_variant() -> None:
    right = torch.rand(64, 64)
    assert_same((right, right.to(torch.int8)), (right, right.to(torch.int8)), 1e-3, "same")
    with pytest.raises(AssertionError, match="wrong"):
        assert_same(right + 0.01, right, 1e-3, "wrong")
    codes = torch.randint(0, 255, (1000,), dtype=torch.uint8)
    off = codes.clone()
    off[:20] ^= 1
    with pytest.raises(AssertionError, match="of the bytes differ"):
        assert_same(off, codes, 1e-3, "codes")
    with pytest.raises(AssertionError, match="fewer"):
        assert_same([right], [right, right], 1e-3, "fewer")


def test_every_triton_kernel_of_the_study_gets_other_warps_and_nothing_else() -> None:
    kernels = {one.task: one.source for one in list_task_kernels() if one.device == "cuda"}
    seen = 0
    for name in set(TASKS["cuda"]) & set(kernels):
        more = with_warps(kernels[name], 2.0)
        compile(more, name, "exec")
        scaled = more.count("* 2.0), 1), 32)")
        assert scaled >= 1, name
        # With a factor of one, what is launched is what the library launches, clamped to what a GPU has.
        assert len(ast.parse(more).body) == len(ast.parse(kernels[name]).body)
        seen += 1
    assert seen >= 9


def test_shapes_are_distinct_within_the_declared_range_and_repeatable() -> None:
    operation = TaskOperation("int4_matmul", "cpu")
    shapes = operation.draw(60, seed=3)
    assert shapes == operation.draw(60, seed=3) != operation.draw(60, seed=4)
    assert len({tuple(shape.values()) for shape in shapes}) == 60
    assert all(shape["inner"] % 64 == 0 and shape["dtype"] == "float32" for shape in shapes)
