"""The study of what timed shapes hold: forest and trees on a machine whose rule is known."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import typer
from typer.testing import CliRunner

from benchmarks import dispatch_forest
from benchmarks.dispatch import Study


def matrix(count: int = 60) -> dict[str, object]:
    """Eager, the compiler, and two kernels: one is the faster up to 512 columns, the other beyond."""
    generator = random.Random(3)
    shapes = [
        {"rows": generator.randint(1, 4000), "cols": int(2 ** generator.uniform(3, 13))} for _ in range(count)
    ]

    def rounds(us: float) -> list[float]:
        return [us * (1 + 0.002 * generator.uniform(-1, 1)) for _ in range(6)]

    us = []
    for shape in shapes:
        wide = shape["cols"] > 512
        us.append([rounds(20.0), rounds(15.0), rounds(12.0 if wide else 5.0), rounds(5.0 if wide else 12.0)])
    names = ("eager", "compile dynamic", "narrow", "wide")
    return {
        "inputs": [],
        "variants": [
            {"name": name, "baseline": place < 2, "reference": place == 0} for place, name in enumerate(names)
        ],
        "shapes": shapes,
        "building": count * 2 // 3,
        "us": us,
    }


def test_forest_and_trees_find_a_rule_that_is_there() -> None:
    study = Study(matrix(), 0)
    building, asked = list(range(40)), list(range(40, 60))
    right = [3 if study.shapes[place]["cols"] > 512 else 2 for place in asked]
    assert dispatch_forest.by_forest(study, building, asked, [0, 2, 3]) == right
    picks, leaves = dispatch_forest.grown_from_forest(study, building, asked, 200, 4)
    assert picks == right and leaves == 2
    found = dispatch_forest.figures(study, right, [0, 2, 3], asked)
    assert found["p5"] > 0.99 and found["slower"] == 0
    wrong = dispatch_forest.figures(study, [5 - pick for pick in right], [0, 2, 3], asked)
    assert wrong["p5"] < 0.5 and np.exp(wrong["all"]) < 0.5


def test_further_sizes_stay_between_those_that_were_timed() -> None:
    shapes = [{"rows": 3, "cols": 5000, "dtype": "float32"}, {"rows": 700, "cols": 17, "dtype": "float16"}]
    found = dispatch_forest.further(shapes, 100, seed=1)
    assert all(3 <= one["rows"] <= 700 and 17 <= one["cols"] <= 5000 for one in found)
    assert all(one["rows"] * one["cols"] <= 15000 for one in found)
    assert {one["dtype"] for one in found} == {"float32", "float16"}
    assert found == dispatch_forest.further(shapes, 100, seed=1)


def test_the_program_prints_held_out_shapes_and_folds(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps({"environment": {"processors": 132}, "operations": {"rule": matrix()}}))
    app = typer.Typer()
    app.command()(dispatch_forest.main)
    said = CliRunner().invoke(app, [str(path), "--sizes", "100"], catch_exceptions=False)
    assert said.exit_code == 0
    assert "held out" in said.stdout and "folds" in said.stdout and "a forest" in said.stdout
