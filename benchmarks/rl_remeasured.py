"""A replay's claims computed again with another table's measurements of the same programs.

What arms wrote stays what it was; what it is worth is the second measurement's, or the mean of both. The optimum is then the best that there is by
the same figures, on either side of a ratio. Beside them stands what the first table's choice is worth: the best of eight by the first measurement
over the best of all by the first, both with the second one's figures. That is what an exhaustive search would have delivered, and no optimum.

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

from experiments.dialect.arms import Outcome
from experiments.dialect.cells import Table, read_table
from experiments.dialect.findings import claims, figures, grid
from rl.intervals import mean_of

_QUANTILES = (0.05, 0.5, 0.95)
#: From a task and a speedup of the first table to what the program with it is worth.
Worth = Callable[[str, float], float]


def speedups(table: Table) -> dict[str, dict[str, float]]:
    """By task and program; failures 0."""
    found: dict[str, dict[str, float]] = {}
    for cell in table.cells:
        found.setdefault(cell.task, {})[cell.program] = cell.speedup
    return found


def looks(first: Table, second: Table) -> dict[str, Worth]:
    """Worth by the second measurement, and by the mean of both.

    Programs that share a speedup in the first table are told apart by nothing there; their mean counts.
    """
    before, after = speedups(first), speedups(second)
    found: dict[tuple[str, float], list[float]] = {}
    for task, programs in before.items():
        for program, speedup in programs.items():
            found.setdefault((task, speedup), []).append(after[task][program])

    def again(task: str, speedup: float) -> float:
        if speedup == 0.0:
            return 0.0  # rejected, or no program
        return math.fsum(found[task, speedup]) / len(found[task, speedup])

    return {"second": again, "both": lambda task, speedup: (speedup + again(task, speedup)) / 2}


def seen_as(outcomes: Sequence[Outcome], first: Table, worth: Worth) -> list[Outcome]:
    """Outcomes with other figures of all candidates, and the optimum that these have."""
    tried = speedups(first)

    def of(scores: dict[str, list[float]]) -> dict[str, list[float]]:
        return {task: [worth(task, one) for one in found] for task, found in scores.items()}

    found = []
    for outcome in outcomes:
        if outcome.arm == "optimum":
            best = {task: [max(worth(task, one) for one in tried[task].values())] for task in outcome.scores}
            found.append(replace(outcome, scores=best, different=best if outcome.different else {}))
        else:
            found.append(replace(outcome, scores=of(outcome.scores), different=of(outcome.different)))
    return found


def chosen_share(outcomes: Sequence[Outcome], worth: Worth) -> dict[str, float]:
    """What the contrastive arm's best of eight by the first table is worth, over what that table's best of all is worth."""
    kept = [
        replace(outcome, scores={task: [worth(task, max(scores))] for task, scores in outcome.scores.items()})
        for outcome in outcomes
    ]
    return asdict(mean_of(grid(kept, "contrastive", max) / grid(kept, "optimum", max)))


def agreement(first: Table, second: Table) -> dict[str, Any]:
    """How the two tables differ in programs that both accepted: quantiles of the ratio, and how often the first interval holds the second value."""
    other = {(cell.task, cell.program): cell for cell in second.cells}
    pairs = [(cell, other[cell.task, cell.program]) for cell in first.cells]
    both = [(one, two) for one, two in pairs if one.speedup > 0 and two.speedup > 0]
    ratios = sorted(two.speedup / one.speedup for one, two in both)
    held = [one.ci95 is not None and one.ci95[0] <= two.speedup <= one.ci95[1] for one, two in both]
    return {
        "cells": len(pairs),
        "accepted_by_both": len(both),
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
    worths = looks(before, after)
    again = {name: seen_as(outcomes, before, worth) for name, worth in worths.items()}
    result = {
        "program": "benchmarks.rl_remeasured",
        "files": {"replay": replay.name, "first": first.name, "second": second.name},
        "environments": [dict(before.environment), dict(after.environment)],
        "agreement": agreement(before, after),
        "claims": {name: [asdict(one) for one in claims(found)] for name, found in again.items()},
        "arms": {name: figures(found) for name, found in again.items()},
        "chosen_over_first_tables_choice": chosen_share(outcomes, worths["second"]),
    }
    out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    console.print(result["agreement"])
    for name, found in again.items():
        for one in claims(found):
            value = "no ratio" if one.value is None else f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"
            console.print(f"{name}: {one.name} {one.measure}: {value}", markup=False)
    console.print(
        "best of eight over the first table's best, both measured again",
        result["chosen_over_first_tables_choice"],
    )


if __name__ == "__main__":
    typer.run(main)
