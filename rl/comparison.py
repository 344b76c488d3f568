"""What can be said of two policies that did the same tasks with the same seeds: figures, ratios with intervals, the best files.

Pure functions. Intervals resample seeds and tasks (`rl.intervals`), 95 %.
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

#: In a geometric mean a task without any success counts as this.
_LEAST = 1e-2


@dataclass(frozen=True)
class Cell:
    """What a policy did at a task with a seed.

    Attributes:
        mean: over the first answers, failures as 0.
        best: of what was judged.
        judged: how many different candidates that is.
        written: how many answers it took.
        missing: answers that nobody judged; they are in no figure.
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
    """Figures of both, and what can be said of their difference.

    Args:
        before: cells of the first policy, every task with every seed.
        after: of the second, the same ones.

    Raises:
        ValueError: they are not of the same tasks and seeds.
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
    """[seeds, tasks] of a measure, both sorted.

    Raises:
        ValueError: a cell is missing, or there twice.
    """
    found = {(cell.seed, cell.task): float(getattr(cell, measure)) for cell in cells}
    seeds, tasks = sorted({cell.seed for cell in cells}), sorted({cell.task for cell in cells})
    if len(found) != len(cells) or len(found) != len(seeds) * len(tasks):
        raise ValueError("not every task with every seed, once")
    return np.array([[found[seed, task] for task in tasks] for seed in seeds])


def figures(cells: Sequence[Cell]) -> dict[str, Any]:
    """Of one policy: what its samples and its best reach, and what keeps an arithmetic mean honest."""
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
    """gain, loss, unknown; or `no success before`, where a ratio would be one to nothing."""
    if ratio is None:
        return "no success before"
    return "gain" if ratio.low > 1 else "loss" if ratio.high < 1 else "unknown"
