"""The replay's program: an arm of a seed a file, what is missing is done, and other settings are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from benchmarks.rl_replay import main
from experiments.dialect.arms import ARMS
from experiments.dialect.cells import TableUnusable, write_table
from experiments.dialect.tests.planted import planted_table


def replay(folder: Path, *more: str) -> Result:
    program = typer.Typer()
    program.command()(main)
    given = [str(folder / "cells.json"), "--folder", str(folder / "units"), "--out", str(folder / "out.json")]
    few = ["--seeds", "1", "--steps", "1", "--sft-steps", "4", "--tasks-per-step", "2", "--processes", "2"]
    return CliRunner().invoke(program, [*given, *few, *more])


@pytest.mark.slow
def test_a_replay_goes_on_where_it_was_and_comes_to_the_same(tmp_path: Path) -> None:
    write_table(planted_table(("row_sum",)), tmp_path / "cells.json")
    assert replay(tmp_path).exit_code == 0
    whole: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert {one["arm"] for one in whole["outcomes"]} == {*ARMS, "sft_longer", "random_valid", "optimum"}
    assert {claim["name"] for claim in whole["claims"]} >= {"P1", "P2", "P3", "P2d", "S6d"}
    lost = tmp_path / "units" / "seed-0-plain.json"
    kept = tmp_path / "units" / "seed-0-sft.json"
    lost.unlink()
    before = kept.stat().st_mtime_ns
    assert replay(tmp_path).exit_code == 0
    assert lost.exists()
    assert kept.stat().st_mtime_ns == before
    assert json.loads((tmp_path / "out.json").read_text())["outcomes"] == whole["outcomes"]
    other = replay(tmp_path, "--learning-rate", "0.1")
    assert isinstance(other.exception, TableUnusable)
    assert "other settings" in str(other.exception)
