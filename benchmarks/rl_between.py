"""Two replays of one table and the same seeds, arm by arm: what settings change, as ratios with intervals.

Both are paired by seed and held-out task, so that a hard task weighs on both sides. The table's optimum must be the same.

    python -m benchmarks.rl_between replay.json other_replay.json --out between.json
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as Printed

from experiments.dialect.arms import ARMS, Outcome
from experiments.dialect.findings import grid
from rl.intervals import Interval, mean_of, ratio_of_means


def read(path: Path) -> tuple[dict[str, Any], list[Outcome]]:
    """Settings and outcomes of a replay."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["settings"], [Outcome(**outcome) for outcome in data["outcomes"]]


def differing(first: dict[str, Any], second: dict[str, Any], above: str = "") -> dict[str, list[Any]]:
    """Settings by name, of both, where they differ.

    One that there was not yet when the first ran is None there, and may be the second's default: then it is no difference.
    """
    found: dict[str, list[Any]] = {}
    for name in sorted({*first, *second}):
        one, two = first.get(name), second.get(name)
        if isinstance(one, dict) and isinstance(two, dict):
            found |= differing(one, two, f"{above}{name}.")
        elif one != two:
            found[above + name] = [one, two]
    return found


def between(first: Sequence[Outcome], second: Sequence[Outcome]) -> dict[str, dict[str, Interval]]:
    """By arm: the second's mean over the first's, its best of eight over the first's, and the difference of their shares of the optimum.

    Arms that only one of them has are left out.

    Raises:
        ValueError: they are of other tables, seeds or held-out tasks.
    """
    shared = [arm for arm in ARMS if all(arm in {one.arm for one in each} for each in (first, second))]
    if not shared or _places(first, shared) != _places(second, shared):
        raise ValueError("the two replays are of other seeds or tasks, or have no arm in common")
    optimum = grid(first, "optimum", max)
    if not np.array_equal(optimum, grid(second, "optimum", max)):
        raise ValueError("the two replays are of other tables: their optimum differs")
    found = {}
    for arm in shared:
        before, after = (grid(outcomes, arm, statistics.fmean) for outcomes in (first, second))
        best_before, best_after = (grid(outcomes, arm, max) for outcomes in (first, second))
        found[arm] = {
            "mean": ratio_of_means(after, before),
            "best": ratio_of_means(best_after, best_before),
            "of_optimum": mean_of((best_after - best_before) / optimum),
        }
    return found


def _places(outcomes: Sequence[Outcome], arms: Sequence[str]) -> set[tuple[str, int, tuple[str, ...]]]:
    return {
        (one.arm, one.seed, tuple(sorted(one.scores)))
        for one in outcomes
        if one.arm in arms or one.arm == "optimum"
    }


def main(
    first: Annotated[Path, typer.Argument(help="JSON of benchmarks.rl_replay.")],
    second: Annotated[Path, typer.Argument(help="Another, on the same table.")],
    out: Annotated[Path, typer.Option(help="JSON.")],
) -> None:
    """Compare two replays."""
    console = Console(width=150)
    (settings, outcomes), (others, after) = read(first), read(second)
    try:
        found = between(outcomes, after)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    changed = differing(settings, others)
    printed = Printed("arm", "mean", "best of 8", "share of the optimum, difference")
    for arm, measures in found.items():
        printed.add_row(arm, *(str(interval) for interval in measures.values()))
    console.print(f"{second.name} over {first.name}; {changed}", markup=False)
    console.print(printed)
    result = {
        "program": "benchmarks.rl_between",
        "files": [first.name, second.name],
        "settings": changed,
        "arms": {
            arm: {name: asdict(one) for name, one in measures.items()} for arm, measures in found.items()
        },
    }
    out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
