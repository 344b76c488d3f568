"""Two replays against each other: paired by seed and task, and only on one table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.rl_between import between, differing, main
from experiments.dialect.arms import ARMS, Outcome

SEEDS = (0, 1)


def outcomes(factor: float) -> list[Outcome]:
    """Task a is ten times as fast as task b; the contrastive arm's samples are multiplied."""
    found = [Outcome("optimum", seed, {"a": [20.0], "b": [2.0]}, 0.0) for seed in SEEDS]
    for arm in ARMS:
        times = factor if arm == "contrastive" else 1.0
        found += [Outcome(arm, seed, {"a": [5.0 * times, 0.0], "b": [0.5 * times]}, 0.0) for seed in SEEDS]
    return found


def test_arms_are_paired_by_task() -> None:
    found = between(outcomes(1.0), outcomes(1.2))
    for name in ("mean", "best"):
        one = found["contrastive"][name]
        # However tasks are drawn, both sides hold the same: the ratio does not move.
        assert (one.value, one.low, one.high) == pytest.approx((1.2, 1.2, 1.2))
    assert found["contrastive"]["of_optimum"].value == pytest.approx(0.05)
    assert found["plain"]["best"].value == 1.0
    assert found["plain"]["of_optimum"].value == 0.0


def test_another_table_or_other_seeds_are_refused() -> None:
    first = outcomes(1.0)
    other = [replace(one, scores={"a": [21.0], "b": [2.0]}) if one.arm == "optimum" else one for one in first]
    with pytest.raises(ValueError, match="other tables"):
        between(first, other)
    renamed = [replace(one, scores={f"{name}x": v for name, v in one.scores.items()}) for one in first]
    relabeled = [replace(one, seed=9) if (one.arm, one.seed) == ("plain", 1) else one for one in first]
    without_arms = [one for one in first if one.arm == "optimum"]
    for wrong in (renamed, relabeled, without_arms, [one for one in first if one.seed == 0]):
        with pytest.raises(ValueError, match="other seeds or tasks"):
            between(first, wrong)


def test_arms_that_one_lacks_are_left_out() -> None:
    first = outcomes(1.0)
    found = between(first, [one for one in outcomes(1.2) if one.arm in ("contrastive", "optimum")])
    assert list(found) == ["contrastive"]
    assert found["contrastive"]["mean"].value == pytest.approx(1.2)


def test_what_differs_in_settings_is_told() -> None:
    first = {"grpo": {"steps": 100, "clip": 1.5}, "seeds": 5}
    second = {"grpo": {"steps": 200, "clip": 1.5, "best_of": 4}, "seeds": 5}
    assert differing(first, second) == {"grpo.steps": [100, 200], "grpo.best_of": [None, 4]}


def test_the_command_reads_replays_and_writes_the_ratios(tmp_path: Path) -> None:
    def write(name: str, found: list[Outcome], settings: dict[str, Any]) -> str:
        path = tmp_path / name
        path.write_text(json.dumps({"settings": settings, "outcomes": [one.as_json() for one in found]}))
        return str(path)

    app = typer.Typer()
    app.command()(main)
    first = write("first.json", outcomes(1.0), {"seeds": 2})
    second = write("second.json", outcomes(1.2), {"seeds": 2, "scaled": False})
    ran = CliRunner().invoke(app, [first, second, "--out", str(tmp_path / "out.json")])
    assert ran.exit_code == 0, ran.output
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["settings"] == {"scaled": [None, False]}
    assert data["arms"]["contrastive"]["best"]["value"] == pytest.approx(1.2)
    longer = write("longer.json", [one for one in outcomes(1.0) if one.seed == 0], {})
    refused = CliRunner().invoke(app, [first, longer, "--out", str(tmp_path / "no.json")])
    assert refused.exit_code == 2
    assert not (tmp_path / "no.json").exists()
