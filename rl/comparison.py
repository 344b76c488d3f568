"""Compares two policies on the same tasks and seeds: metrics, ratios with intervals, and the best files.

All functions are pure. The 95 % intervals resample seeds and tasks (`rl.intervals`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl.intervals import Interval, mean_of, ratio_of_means

#: Value of a task without any success in a geometric mean.
_LEAST = 1e-2


@dataclass(frozen=True)
class Cell:
    """A policy's results for one task and seed.

    Attributes:
        mean: mean over the first answers, with failures as 0.
        best: best of the judged answers.
        judged: number of distinct candidates judged.
        written: number of answers sampled for them.
        missing: number of answers without a verdict; no metric includes them.
        shown: the file of the best answer, for people.
    """

    policy: str
    task: str
    seed: int
    mean: float
    best: float
    judged: int
    written: int
    missing: int
    accepted: int
    shown: str


def compared(before: Sequence[Cell], after: Sequence[Cell]) -> dict[str, Any]:
    """Metrics of both policies, and their ratios with intervals.

    Args:
        before: cells of the first policy, for every task and seed.
        after: cells of the second policy, for the same tasks and seeds.

    Raises:
        ValueError: their tasks and seeds differ.
    """
    tasks = sorted({cell.task for cell in before})
    ratios = {}
    for measure in ("mean", "best"):
        first, second = grid(before, measure), grid(after, measure)
        ratio = ratio_of_means(second, first) if first.mean() > 0 else None
        ratios[measure] = {"ratio": asdict(ratio) if ratio else None, "word": word_of(ratio)}
    per_task = []
    for task in tasks:
        row: dict[str, Any] = {"task": task}
        for side, cells in (("before", before), ("after", after)):
            own = [cell for cell in cells if cell.task == task]
            top = max(own, key=lambda cell: cell.best)
            row[side] = {
                "mean": statistics.fmean(cell.mean for cell in own),
                "best": statistics.fmean(cell.best for cell in own),
                "source": top.shown,
                "source_speedup": top.best,
            }
        per_task.append(row)
    return {
        "before": figures(before),
        "after": figures(after),
        "after_over_before": ratios,
        "tasks": per_task,
    }


def grid(cells: Sequence[Cell], measure: str) -> NDArray[np.float64]:
    """A measure as an array [seeds, tasks], both axes sorted.

    Raises:
        ValueError: a cell is missing or duplicated.
    """
    found = {(cell.seed, cell.task): float(getattr(cell, measure)) for cell in cells}
    seeds, tasks = sorted({cell.seed for cell in cells}), sorted({cell.task for cell in cells})
    if len(found) != len(cells) or len(found) != len(seeds) * len(tasks):
        raise ValueError("not every task with every seed, once")
    return np.array([[found[seed, task] for task in tasks] for seed in seeds])


def figures(cells: Sequence[Cell]) -> dict[str, Any]:
    """Metrics of one policy: its samples, its best answers, and figures that put the arithmetic mean in context."""
    best = grid(cells, "best")
    judged = sum(cell.judged for cell in cells)
    return {
        "mean": asdict(mean_of(grid(cells, "mean"))),
        "best": asdict(mean_of(best)),
        "geomean_best": math.exp(float(np.log(np.maximum(best, _LEAST)).mean())),
        "median_best": float(np.median(best)),
        "above_1_05": float((best > 1.05).mean()),
        "accepted_share": sum(cell.accepted for cell in cells) / judged if judged else 0.0,
        "judged": judged,
        "written": sum(cell.written for cell in cells),
        "missing": sum(cell.missing for cell in cells),
    }


def word_of(ratio: Interval | None) -> str:
    """`gain`, `loss` or `unknown`; or `no success before`, if there is no ratio because the denominator is zero."""
    if ratio is None:
        return "no success before"
    return "gain" if ratio.low > 1 else "loss" if ratio.high < 1 else "unknown"
