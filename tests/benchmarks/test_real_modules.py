"""Figures of the real modules by hand, and what a draw and a killed row leave behind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import real_module_figures as figures
from benchmarks import real_modules
from benchmarks.kernelbench_sample import Module, sample
from benchmarks.real_module_work import OutOfTime, Report, Work
from evaluator.errors import RefereeLost


def row(module: str, kind: str, verdict: str = "accepted", **more: Any) -> dict[str, Any]:
    shapes = [
        {
            "dims": {},
            "split": "visible",
            "stratum": "own",
            "timed": True,
            "best_baseline": "eager",
            "speedup": 1.5,
            "log_ratios": more.pop("log_ratios", [0.4, 0.41, 0.39, 0.405]),
        }
    ]
    found = figures.row_of({"verdict": verdict, "reason": more.pop("reason", ""), "shapes": shapes})
    return {**found, "module": module, "kind": kind, "first_look": False, "wall_s": 4.0, **more}


def content(*rows: dict[str, Any], **modules: bool) -> dict[str, Any]:
    return {
        "modules": {
            name: {"fits": fits, "error": "" if fits else "no einops"} for name, fits in modules.items()
        },
        "rows": {f"{one['module']}/{one['kind']}": one for one in rows},
        "aa": {},
        "batch": {},
        "plain": {},
    }


def test_only_modules_that_fit_are_due() -> None:
    rows = [row("a", "own"), row("b", "own", "task_rejected", reason="inputs need more memory")]
    found = figures.figures(content(*rows, a=True, b=False))
    assert found["own_judged"] == [1, 1]
    assert found["refused"] == []
    assert found["not_due"] == {"b": "no einops"}
    found = figures.figures(content(*rows, a=True, b=True))
    assert found["own_judged"] == [1, 2]
    assert found["memory"] == ["b own: inputs need more memory"]


def test_a_module_without_a_row_is_not_judged() -> None:
    held = {bar.name: bar for bar in figures.bars(figures.figures(content(row("a", "own"), a=True, b=True)))}
    assert held["modules that fit in half of the memory: judged"].held is False


def test_a_first_quad_that_differs_is_seen() -> None:
    like = figures.edge_quads([row("a", "own", log_ratios=[0.40, 0.41, 0.39, 0.405])])
    assert (like["first"]["strict"], like["first"]["within_1_percent"], like["by_chance"]) == (1.0, 1.0, 0.5)
    apart = figures.edge_quads([row("a", "own", log_ratios=[0.06, 1.27, 1.16, 1.15, 1.10])])
    assert apart["first"]["within_1_percent"] == 0.0
    assert apart["first"]["worst"] == pytest.approx(1.04)
    assert apart["last"]["strict"] == 1.0


def test_agreement_counts_modules_within_one_percent() -> None:
    runs = [{"log_ratios": [0.0, 0.001, -0.001]}, {"log_ratios": [0.03] * 3}, {"why_not": "it is random"}]
    found = figures.agreement(runs)
    assert (found["modules"], found["within_1_percent"]) == (2, 0.5)
    assert found["worst"] == pytest.approx(1.0305, abs=1e-3)


def test_first_looks_are_no_verdicts_with_kept_baselines() -> None:
    found = figures.figures(
        content(row("a", "own", first_look=True, wall_s=24.0), row("a", "default"), a=True)
    )
    assert (found["first_look_s"]["longest"], found["kept_s"]["median"]) == (24.0, 4.0)


def test_tables_are_printed_for_rows_of_every_kind() -> None:
    crashed = {
        **figures.crashed("Bug: lost"),
        "module": "b",
        "kind": "own",
        "first_look": True,
        "wall_s": 1.0,
    }
    console = Console(width=200, record=True)
    whole = content(row("a", "own"), crashed, a=True, b=True)
    figures.show(whole, console)
    assert "1.50x 4 s" in console.export_text()
    assert next(bar for bar in whole["bars"] if bar["name"] == "rows with a traceback")["held"] is False


def test_the_same_draw_every_time(tmp_path: Path) -> None:
    for level in (1, 2, 3):
        (tmp_path / f"level{level}").mkdir()
        for number in range(5):
            (tmp_path / f"level{level}" / f"{number}_Name.py").write_text("")
    drawn = [module.name for module in sample(tmp_path, 6, 7)]
    assert drawn == [module.name for module in sample(tmp_path, 6, 7)]
    assert drawn[0].startswith("level") and "__" in drawn[0]
    with pytest.raises(ValueError, match="holds 15 modules"):
        sample(tmp_path, 16, 7)
    with pytest.raises(ValueError, match="no copy of KernelBench"):
        sample(tmp_path / "level1", 1, 7)


class Lost:
    """A referee that is killed during the call."""

    alive = True
    restarts = 0

    def evaluate(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise RefereeLost("the referee was killed")

    def restart(self) -> None:
        self.restarts += 1

    def kill(self) -> None:
        pass


def test_a_lost_row_is_a_row_unless_the_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "level1__a.py"
    path.write_text("class Model: pass\n")
    module = Module("level1__a", path)
    report = Report(tmp_path / "out.json", time.monotonic() + 60)
    report.begin({})
    work = Work("cpu", [module], ("own",), None, tmp_path, report, Console())
    referee: Any = Lost()
    found = real_modules.judge(work, referee, module, "own")
    assert found is not None
    assert (found["verdict"], found["first_look"], referee.restarts) == ("crashed", True, 1)
    report.ends_at = time.monotonic() - 1
    with pytest.raises(OutOfTime):
        real_modules.judge(work, referee, module, "own")


def test_a_report_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for number in (1, 2):
        report = Report(path, 0.0)
        report.begin({"run": number})
        report.content["rows"][str(number)] = {}
        report.save()
    kept = json.loads(path.read_text())
    assert list(kept["rows"]) == ["1", "2"]
    assert [one["settings"]["run"] for one in kept["sessions"]] == [1, 2]
