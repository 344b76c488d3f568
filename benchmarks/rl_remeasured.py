"""A replay's claims computed again with figures of another table, in which the same programs were measured another time.

What arms wrote stays what it was, and so does which of eight was taken for the best; only what it is worth is the second measurement's.
So neither an arm nor the optimum is paid for a cell that came out high by chance.

    python -m benchmarks.rl_remeasured replay.json cells.json other_cells.json --out remeasured.json
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rl.demo.arms import Outcome
from rl.demo.cells import Table, read_table
from rl.demo.findings import claims, figures

_QUANTILES = (0.05, 0.5, 0.95)


def speedups(table: Table) -> dict[str, dict[str, float]]:
    """By task and program; failures 0."""
    found: dict[str, dict[str, float]] = {}
    for cell in table.cells:
        found.setdefault(cell.task, {})[cell.program] = cell.speedup
    return found


def second_look(first: Table, second: Table) -> Callable[[str, float], float]:
    """From a task and a speedup of the first table to the same program's in the second.

    Programs that share a speedup in the first are told apart by nothing; their mean counts.
    """
    before, after = speedups(first), speedups(second)
    found: dict[tuple[str, float], list[float]] = {}
    for task, programs in before.items():
        for program, speedup in programs.items():
            found.setdefault((task, speedup), []).append(after[task][program])

    def worth(task: str, speedup: float) -> float:
        if speedup == 0.0:
            return 0.0  # rejected, or no program
        return math.fsum(found[task, speedup]) / len(found[task, speedup])

    return worth


def of_all(outcomes: Sequence[Outcome], worth: Callable[[str, float], float]) -> list[Outcome]:
    """Outcomes with the second measurement's figures of all candidates."""
    return [
        replace(
            outcome,
            scores={
                task: [worth(task, score) for score in scores] for task, scores in outcome.scores.items()
            },
        )
        for outcome in outcomes
    ]


def of_chosen(outcomes: Sequence[Outcome], worth: Callable[[str, float], float]) -> list[Outcome]:
    """Outcomes that hold of each task only what the first measurement took for the best, with the second one's figure."""
    return [
        replace(outcome, scores={task: [worth(task, max(scores))] for task, scores in outcome.scores.items()})
        for outcome in outcomes
    ]


def agreement(first: Table, second: Table) -> dict[str, Any]:
    """How the two tables differ in programs that both accepted: quantiles of the ratio, and how often the first interval holds the second value."""
    other = {(cell.task, cell.program): cell for cell in second.cells}
    pairs = [(cell, other[cell.task, cell.program]) for cell in first.cells]
    both = [(one, two) for one, two in pairs if one.speedup > 0 and two.speedup > 0]
    ratios = sorted(two.speedup / one.speedup for one, two in both)
    held = [one.ci95 is not None and one.ci95[0] <= two.speedup <= one.ci95[1] for one, two in both]
    return {
        "cells": len(pairs),
        "other_verdicts": sum((one.word == "accepted") != (two.word == "accepted") for one, two in pairs),
        "ratio": {str(q): ratios[int(q * (len(ratios) - 1))] for q in _QUANTILES},
        "second_inside_first_interval": sum(held) / len(held),
    }


def main(
    replay: Annotated[Path, typer.Argument(help="JSON of benchmarks.rl_replay, on the first table.")],
    first: Annotated[Path, typer.Argument(help="The table that it ran on.")],
    second: Annotated[Path, typer.Argument(help="Another table that holds all of the first one's programs.")],
    out: Annotated[Path, typer.Option(help="JSON.")],
) -> None:
    """Compute the claims again."""
    console = Console(width=150)
    data = json.loads(replay.read_text(encoding="utf-8"))
    outcomes = [Outcome(**outcome) for outcome in data["outcomes"]]
    before, after = read_table(first), read_table(second)
    worth = second_look(before, after)
    means, bests = claims(of_all(outcomes, worth)), claims(of_chosen(outcomes, worth))
    # Of means every candidate counts, of bests the one that was chosen.
    found = [
        asdict(mean if mean.measure.startswith("mean") else best)
        for mean, best in zip(means, bests, strict=True)
    ]
    result = {
        "program": "benchmarks.rl_remeasured",
        "files": {"replay": replay.name, "first": first.name, "second": second.name},
        "environments": [dict(before.environment), dict(after.environment)],
        "agreement": agreement(before, after),
        "claims": found,
        "arms": figures(of_chosen(outcomes, worth)),
    }
    out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    console.print(result["agreement"])
    for one in found:
        console.print(
            f"{one['name']} {one['measure']}: {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]",
            markup=False,
        )


if __name__ == "__main__":
    typer.run(main)
