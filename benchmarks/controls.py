"""Honest candidates: is any of them rejected?

    python -m benchmarks.controls --write
    python -m benchmarks.controls --device cuda --out FOLDER
    python -m benchmarks.controls --timed --sample 20
    python -m benchmarks.controls --timed --part 1/4 --limit 250 --write     # tasks in an order that is drawn

Each is judged at the shapes that the referee draws (the adversarial ones; with ``--timed`` the visible ones too, in
blocks of chained calls whose drawn results are verified). One rejection is one too many.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.shared import MEASUREMENTS, ROOT, Out, environment, quiet, write_new
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from tests.corpus import controls, corpus


def judge(core: RefereeCore, entry: corpus.Entry, splits: tuple[str, ...]) -> dict[str, Any]:
    """One verdict, shortened."""
    started = time.monotonic()
    request = Request(corpus.task(entry.task), entry.candidate, "screen", splits, deadline_s=600.0)
    verdict = core.evaluate(request, quiet)
    return {
        "name": entry.name,
        "task": entry.task,
        "style": entry.kind,
        "language": entry.language,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "detail": verdict.detail.replace(f"{ROOT}/", "")[-1000:] if verdict.verdict != "accepted" else "",
        "findings": [finding.rule for finding in verdict.findings],
        "worst_error_over_bound": max((shape.error["max_ratio"] for shape in verdict.shapes), default=None),
        "geomean_speedup": verdict.summary.geomean_speedup,
        "elapsed_s": time.monotonic() - started,
    }


def table_of(rows: list[dict[str, Any]], device: str) -> Table:
    """One line a style."""
    styles = defaultdict(list)
    for row in rows:
        styles[row["style"]].append(row)
    table = Table(
        "style", "judged", "accepted", "not judged", "worst error / bound", "median s", title=device
    )
    for style, group in sorted(styles.items()):
        words = [row["verdict"] for row in group]
        ratios = [row["worst_error_over_bound"] for row in group if row["worst_error_over_bound"] is not None]
        table.add_row(
            style,
            str(len(group)),
            str(words.count("accepted")),
            str(words.count("not_judged")),
            f"{max(ratios):.2f}" if ratios else "",
            f"{statistics.median(row['elapsed_s'] for row in group):.1f}",
        )
    return table


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Candidates whose name contains this.")] = "",
    part: Annotated[
        str, typer.Option(help="Judge part i of n (`i/n`), for several of these beside each other.")
    ] = "1/1",
    sample: Annotated[int, typer.Option(help="Judge so many, drawn at random; 0 for all.")] = 0,
    beside: Annotated[int, typer.Option(help="How many of these share the device, this one among them.")] = 1,
    limit: Annotated[float, typer.Option(help="Begin no new one after so many seconds.")] = math.inf,
    timed: Annotated[bool, typer.Option(help="Time them at the visible shapes, too.")] = False,
    compiled: Annotated[bool, typer.Option(help="Include what a compiler builds.")] = True,
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Out = MEASUREMENTS,
) -> None:
    """Judge the honest candidates; exit 1 when one is rejected."""
    console = Console(width=150)
    entries = [
        e for e in controls.every() if e.runs_on(device) and only in e.name and (compiled or not e.compiles)
    ]
    at, parts = map(int, part.split("/"))
    # Neighbors in the list share a task, so each part takes whole tasks.
    tasks = sorted({entry.task for entry in entries})[at - 1 :: parts]
    entries = [entry for entry in entries if entry.task in tasks]
    if sample:
        drawn = random.sample(entries, min(sample, len(entries)))
        entries = sorted(drawn, key=lambda entry: (entry.task, entry.name))
    elif limit < math.inf:
        # Which are reached is drawn; to open a task is what takes long, so those of a task stay together.
        random.shuffle(tasks)
        entries.sort(key=lambda entry: (tasks.index(entry.task), entry.name))
    splits = ("visible", "adversarial") if timed else ("adversarial",)
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock", referees=beside)
        try:
            for number, entry in enumerate(entries, 1):
                if time.monotonic() - started > limit:
                    console.print(f"the time is up before {entry.name}")
                    break
                rows.append(judge(core, entry, splits))
                if rows[-1]["verdict"] != "accepted" or number % 20 == 0:
                    console.print(
                        f"{number}/{len(entries)} {entry.name}: {rows[-1]['verdict']}, {rows[-1]['reason']}"
                    )
            facts = core.fleet.environment()
        finally:
            core.close()
    console.print(table_of(rows, device))
    unjudged = [row["name"] for row in rows if row["verdict"] == "not_judged"]
    rejected = [row["name"] for row in rows if row["verdict"] not in ("accepted", "not_judged")]
    console.print(
        f"{len(rejected)} of {len(rows)} rejected: {', '.join(rejected) or 'none'}; not judged: {len(unjudged)}"
    )
    if write:
        report = {
            "program": "benchmarks.controls",
            "settings": {
                "device": device,
                "splits": splits,
                "part": part,
                "sample": sample,
                "limit_s": limit if limit < math.inf else None,
                "of": len(entries),
                "compiled": compiled,
            },
            "environment": {**environment(), **facts},
            "judged": len(rows),
            "rejected": rejected,
            "not_judged": unjudged,
            "rows": rows,
        }
        write_new(out, f"controls-{device}" + (f"-{at}" if parts > 1 else ""), report)
    raise typer.Exit(1 if rejected else 0)


if __name__ == "__main__":
    typer.run(main)
