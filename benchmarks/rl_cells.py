"""Exhibit A's table: every program of the demonstration's dialect judged at every task of its family.

Stopped, the same command goes on where it was. Screen effort; each program is judged at all shapes of its family in one evaluation.

    python -m benchmarks.rl_cells --device cpu --size small --families softmax,row_sum --folder /tmp/cells --out cells.json
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evaluator.batch.run import Batch
from evaluator.client import default_work_dir
from experiments.dialect.cells import measure, summary, write_table
from experiments.dialect.grammar import Grammar, describe
from experiments.dialect.tasks import FAMILIES


def main(
    folder: Annotated[Path, typer.Option(help="Verdicts as they come; the same folder goes on.")],
    out: Annotated[Path, typer.Option(help="The table, as JSON.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    size: Annotated[str, typer.Option(help="small or full.")] = "small",
    families: Annotated[str, typer.Option(help="With commas between them.")] = ",".join(FAMILIES),
    gpus: Annotated[str, typer.Option(help="all, or positions.")] = "all",
    jobs: Annotated[
        int | None, typer.Option(help="Referees a device; by default as many as have room: more are slower.")
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="The referees' caches.")] = None,
    minimum_tier: Annotated[str, typer.Option(help="The weakest sandbox to accept.")] = "landlock",
) -> None:
    """Measure a table of cells."""
    console = Console(width=120)
    grammar = Grammar(device, size, tuple(families.split(",")))
    console.print(describe(grammar.programs))
    last = [time.monotonic()]

    def show(batch: Batch) -> None:
        if time.monotonic() - last[0] > 15.0:
            last[0] = time.monotonic()
            console.print(f"{batch.done} of {batch.total}, {batch.rate_per_minute:.1f} a minute")
        for place, why in batch.failures.items():
            console.print(f"[red]{place}: {why}")
        batch.failures.clear()

    table = measure(
        grammar,
        folder,
        work_dir or default_work_dir(),
        gpus=gpus,
        jobs=jobs,
        minimum_tier=minimum_tier,
        warn=lambda sentence: console.print(f"[yellow]{sentence}"),
        show=show,
    )
    write_table(table, out)
    console.print(summary(table))
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
