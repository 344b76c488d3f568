"""Kernels with typical slips: is each caught, by which finding, and at how many shapes?

    python -m benchmarks.bugs --write
    python -m benchmarks.bugs --device cuda --out FOLDER

Shapes are those that the referee draws for an evaluation, in its order (visible, then adversarial). It stops at the first
that fails, and a prefix of the shapes is judged as the whole would be up to there, so the number of that shape is the
smallest number of shapes at which the slip is caught. Contents are fresh each time, so each kernel is judged several
times. On a CPU, Triton kernels run in Triton's interpreter; on a GPU they are compiled.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.shared import MEASUREMENTS, Out, environment, write_new
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from tests.corpus import corpus

SPLITS = ("visible", "adversarial")


class Seen:
    """How many shapes had been begun when the verdict fell."""

    def __init__(self) -> None:
        self.shapes = 0
        self.stage = ""

    def __call__(self, stage: str, done: int, total: int, text: str) -> None:
        """The referee's progress."""
        self.stage = stage
        if stage == "correctness":
            self.shapes = max(self.shapes, done + 1)


def judge(core: RefereeCore, entry: corpus.Entry) -> dict[str, Any]:
    """One verdict, shortened."""
    seen = Seen()
    started = time.monotonic()
    request = Request(corpus.task(entry.task), entry.candidate, "screen", SPLITS, deadline_s=300.0)
    verdict = core.evaluate(request, seen)
    rules = [f.rule for f in verdict.findings if f.severity in ("error", "cheat")]
    return {
        "caught": verdict.verdict not in ("accepted", "not_judged", "task_rejected"),
        "verdict": verdict.verdict,
        "finding": rules[-1] if rules else verdict.verdict,
        "shapes": seen.shapes,
        "timed": seen.stage not in ("compile", "correctness"),
        "reason": verdict.reason,
        "elapsed_s": time.monotonic() - started,
    }


def summary(entry: corpus.Entry, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table: the smallest and the median number of shapes over the runs that caught it."""
    caught = [run for run in runs if run["caught"]]
    return {
        "name": entry.name,
        "task": entry.task,
        "slip": entry.kind,
        "language": entry.language,
        "caught": len(caught),
        "runs": len(runs),
        "verdict": Counter(run["verdict"] for run in caught or runs).most_common(1)[0][0],
        "finding": Counter(run["finding"] for run in caught or runs).most_common(1)[0][0],
        "shapes": [run["shapes"] for run in caught],
        "reason": (caught or runs)[0]["reason"],
        "elapsed_s": statistics.median(run["elapsed_s"] for run in runs),
    }


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    runs: Annotated[int, typer.Option(help="Judgments of each kernel, with contents drawn anew.")] = 3,
    only: Annotated[str, typer.Option(help="Kernels whose name contains this.")] = "",
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Out = MEASUREMENTS,
) -> None:
    """Judge the corpus of wrong kernels; exit 1 when one is not caught."""
    console = Console(width=150)
    entries = [entry for entry in corpus.bugs() if entry.runs_on(device) and only in entry.name]
    table = Table(
        "kernel", "slip", "language", "caught", "finding", "shapes", title=f"wrong kernels on {device}"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        try:
            for number, entry in enumerate(entries, 1):
                row = summary(entry, [judge(core, entry) for _ in range(runs)])
                rows.append(row)
                console.print(
                    f"{number}/{len(entries)} {entry.name}: {row['caught']} of {runs}, {row['finding']}, at {row['shapes']}"
                )
                table.add_row(
                    row["name"],
                    row["slip"],
                    row["language"],
                    f"{row['caught']}/{row['runs']}",
                    row["finding"],
                    " ".join(map(str, row["shapes"])),
                )
            facts = core.fleet.environment()
        finally:
            core.close()
    console.print(table)
    missed = [row["name"] for row in rows if row["caught"] < row["runs"]]
    needed = [max(row["shapes"]) for row in rows if row["shapes"]]
    if needed:
        at_first = sum(count <= 1 for count in needed)
        console.print(
            f"{len(rows) - len(missed)} of {len(rows)} caught in every run; {at_first} at the first shape, "
            f"the last at shape {max(needed)}; missed: {', '.join(missed) or 'none'}"
        )
    if write:
        report = {
            "program": "benchmarks.bugs",
            "settings": {"device": device, "runs": runs, "splits": SPLITS},
            "environment": {**environment(), **facts},
            "bugs": len(rows),
            "missed": missed,
            "rows": rows,
        }
        write_new(out, f"bugs-{device}", report)
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
