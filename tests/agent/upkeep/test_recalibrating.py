"""`verify --recalibrate`: what the referee measures of members becomes a file that optimized.py takes."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agent.errors import UnreadableBundle
from agent.upkeep.reading import read_members
from agent.upkeep.recalibrating import compared, file_of, priced_sizes
from tests.agent.bundle.building import imported, inputs, optimized_text
from tests.agent.bundle.modal import FAST, SLOW_TASK
from tests.agent.bundle.test_recalibration import ONCE_FAST, SHAPES, THERE
from tests.agent.upkeep.bundles import write


def verdict(speedup: float, word: str = "accepted") -> dict[str, Any]:
    """Eager takes 20 us everywhere, the best baseline 10."""
    rows = [
        {
            "dims": dict(shape),
            "timed": True,
            "speedup": speedup,
            "baseline_us": 10.0,
            "baselines": {"eager/2t": {"median_us": 20.0}},
        }
        for shape in SHAPES
    ]
    return {"verdict": word, "shapes": rows, "environment": {"threads": 2}}


def test_what_the_referee_measured_is_taken_by_the_file(tmp_path: Path) -> None:
    text = optimized_text([ONCE_FAST, FAST], task=SLOW_TASK, measured=THERE)
    assert priced_sizes(text) == ("rows", "cols")
    module = imported(tmp_path, text)
    rows = compared(SHAPES[:8], [verdict(0.25), verdict(4.0)])
    assert rows[0]["logs"] == pytest.approx({"1": math.log(2.0), "2": -math.log(8.0)}, rel=1e-5)
    path = tmp_path / "here.json"
    path.write_text(json.dumps(file_of("cpu", module.BUNDLE, rows)))
    model = module.ModelNew(64).requires_grad_(False)
    assert model.kernelwright_explain(*inputs(700)) == "once_fast (llm)"
    model.kernelwright_use(recalibration=path)
    assert "fast (human); recalibrated" in model.kernelwright_explain(*inputs(700))


def test_members_that_are_not_accepted_here_are_left_out() -> None:
    assert [
        row["logs"].keys() for row in compared(SHAPES[:1], [verdict(2.0), verdict(4.0, "incorrect")])
    ] == [{"1"}]
    assert compared(SHAPES, [verdict(2.0, "timeout")]) == []


def test_a_file_without_prices_is_told_so() -> None:
    with pytest.raises(UnreadableBundle, match="verified mode"):
        priced_sizes(optimized_text())


def test_members_are_read_as_the_evidence_names_them(tmp_path: Path) -> None:
    path = write(tmp_path)
    (member,) = read_members(path)
    folder = next(one for one in tmp_path.iterdir() if one.is_dir())
    assert read_members(folder)[0].source == member.source
    file = next((folder / "kernels").glob("*.py"))
    file.write_text(file.read_text() + "\n")
    with pytest.raises(UnreadableBundle, match="not the file"):
        read_members(folder)
    evidence = json.loads((folder / "evidence.json").read_text())
    evidence["members"][0]["file"] = "kernels/../../secret.py"
    (folder / "evidence.json").write_text(json.dumps(evidence))
    with pytest.raises(UnreadableBundle, match="names no members"):
        read_members(folder)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"), pytest.raises(UnreadableBundle):
        read_members(tmp_path / "empty.zip")
