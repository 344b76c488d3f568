"""What recalibrating at eight shapes is worth when a bundle moves to a machine with another number of threads.

The variants of `benchmarks.dispatch` are timed at the same shapes in processes of two cores and of one. A portfolio and its tree
are built by the job's own code from what one of them measured, and its choices at shapes that nothing was chosen by are looked
at on the other: as they are; corrected by what up to eight shapes say there (the very code that optimized.py carries); and
beside them what a tree built there would choose. Figures are shares of the portfolio's oracle, geometric means. Oracles
pick by half of the rounds and are timed by the other half, so noise may bring a figure above 100 %.

    python -m benchmarks.recalibration run --write      # about 10 minutes on two cores
    python -m benchmarks.recalibration report FOLDER    # from kept matrices
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from agent.bundle.assembly import mode_text
from agent.bundle.measured import constants_text
from agent.dispatch.features import points_of
from agent.dispatch.tree import member_at
from agent.portfolio import build_portfolio
from agent.portfolio.telling import measured
from benchmarks.dispatch import Study
from benchmarks.dispatch_variants import CPU
from benchmarks.exemplars_cpu import ROOT, environment

THREADS = (2, 1)
app = typer.Typer(help=__doc__)


@app.command(hidden=True)
def child(name: str, threads: int, out: Path, building: int, held_out: int, rounds: int, seed: int) -> None:
    """Measure one operation in this process, which has so many cores and threads from now on."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    import torch

    torch.set_num_threads(threads)
    from benchmarks.dispatch import measure

    operation = next(one for one in CPU if one.name == name)
    matrix = measure(operation, (building, held_out), rounds, seed, "cpu")
    out.write_text(json.dumps({**matrix, "threads": threads}), encoding="utf-8")


def moved(home: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """A bundle built from the one matrix, and its choices on the other's machine."""
    at_home, away = Study(home, 0), Study(there, 0)
    entries = [
        dataclasses.replace(entry, verdict={**entry.verdict, "environment": {"threads": home["threads"]}})
        for entry in at_home.entries(range(at_home.building))
    ]
    portfolio = build_portfolio(entries, at_home.domain, at_home.dims, 0)
    found: dict[str, Any] = {"from_threads": home["threads"], "to_threads": there["threads"]}
    if portfolio is None:
        return {**found, "members": []}
    sizes = list(at_home.shapes[0])
    told = measured(portfolio.members, sizes, 0)
    file = loaded(constants_text(told, len(portfolio.members), (), ()), sizes, len(portfolio.members))
    columns = [at_home.reference, *(entry.order for entry in portfolio.members)]
    corrections = file._Corrections(
        [timed_again(away, at_home.shapes.index(dict(shape)), columns) for shape in told.shapes]
    )
    before, after = [], []
    for point in points_of(at_home.shapes[at_home.building :], at_home.domain):
        index = member_at(portfolio.tree, point)
        key = ("", *(point.dims[name] for name in sizes))
        before.append(index)
        after.append(file._corrected_choice(index, {}, key, corrections))

    def share(study: Study, picks: list[int | None]) -> float:
        taken = [columns[0] if index is None else columns[1 + index] for index in picks]
        return math.exp(statistics.fmean(study._against(taken, columns)))

    rebuilt = away.judged(range(away.building))
    return {
        **found,
        "members": [at_home.names[column] for column in columns],
        "timed_shapes": len(told.shapes),
        "held_out_shapes": len(before),
        "at_home": share(at_home, before),
        "before": share(away, before),
        "after": share(away, after),
        "changed": sum(one != other for one, other in zip(before, after, strict=True)),
        "tree_built_there_of_its_own_oracle": rebuilt["of_portfolio_oracle"],
        "doubts": [round(float(doubt), 3) for doubt in corrections.doubts],
    }


def timed_again(away: Study, place: int, columns: list[int]) -> dict[str, Any]:
    """One shape as a recalibration's file holds it."""
    medians = np.median(away.all[place], axis=1)
    logs = {
        str(number): float(medians[column] - medians[columns[0]])
        for number, column in enumerate(columns[1:], start=1)
    }
    return {"sizes": away.shapes[place], "logs": logs}


def loaded(constants: str, sizes: list[str], members: int) -> Any:
    """The sections of optimized.py that rank and correct, with what this bundle would know."""
    values: dict[str, Any] = {"math": math, "KEY_SIZES": tuple(sizes), "MEMBERS": [None] * members}
    for text in (constants, mode_text("ranking"), mode_text("recalibration")):
        exec(compile(text, "optimized.py", "exec"), values)
    return SimpleNamespace(**values)


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """The figures as a table."""
    table = Table(
        "operation",
        "threads",
        "members",
        "at home",
        "moved",
        "recalibrated",
        "choices changed",
        "tree built there",
    )
    for row in rows:
        if not row["members"]:
            continue
        table.add_row(
            row["operation"],
            f"{row['from_threads']} -> {row['to_threads']}",
            str(len(row["members"])),
            f"{row['at_home']:.1%}",
            f"{row['before']:.1%}",
            f"{row['after']:.1%}",
            f"{row['changed']} of {row['held_out_shapes']}",
            f"{row['tree_built_there_of_its_own_oracle']:.1%}",
        )
    known = [row for row in rows if row["members"]]
    means = [statistics.geometric_mean(row[name] for row in known) for name in ("at_home", "before", "after")]
    table.add_row("all", "", "", *(f"{mean:.1%}" for mean in means), "", "")
    console.print(table)


@app.command()
def report(
    folder: Path, write: Annotated[bool, typer.Option(help="Write JSON to docs/measurements.")] = False
) -> None:
    """From matrices that were kept."""
    rows = []
    for operation in CPU:
        paths = [folder / f"{operation.name}-{threads}.json" for threads in THREADS]
        if all(path.exists() for path in paths):
            first, second = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
            for home, there in ((first, second), (second, first)):
                rows.append({"operation": operation.name, **moved(home, there)})
    console = Console(width=150)
    show(console, rows)
    if write:
        value = {"program": "benchmarks.recalibration", "environment": environment(), "moves": rows}
        path = ROOT / "docs" / "measurements" / f"{datetime.now(UTC):%Y-%m-%d}-recalibration-cpu.json"
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {path.relative_to(ROOT)}")


@app.command()
def run(
    building: Annotated[int, typer.Option(help="Shapes to build from.")] = 64,
    held_out: Annotated[int, typer.Option(help="Shapes to look at.")] = 64,
    rounds: Annotated[int, typer.Option(help="Blocks of each variant at each shape.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the shapes.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Folder for the matrices.")] = None,
    write: Annotated[bool, typer.Option(help="Write JSON to docs/measurements.")] = False,
) -> None:
    """Measure every operation with two threads and with one, and report."""
    folder = keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    for operation in CPU:
        for threads in THREADS:
            settings = [building, held_out, rounds, seed]
            out = folder / f"{operation.name}-{threads}.json"
            command = [
                sys.executable,
                "-m",
                "benchmarks.recalibration",
                "child",
                operation.name,
                threads,
                out,
                *settings,
            ]
            subprocess.run(
                [*map(str, command)], check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
            )
    report(folder, write)


if __name__ == "__main__":
    app()
