"""What recalibrating at eight shapes is worth when a bundle moves to a machine with another number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

MANY, ONE = 2, 1


def measure_here(
    name: str, threads: int, building: int, held_out: int, rounds: int, seed: int
) -> dict[str, Any]:
    """The matrix of one operation in this process, which has so many cores and threads from now on."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    import torch

    torch.set_num_threads(threads)
    from benchmarks.dispatch import measure
    from benchmarks.dispatch_variants import CPU

    operation = next(one for one in CPU if one.name == name)
    return {**measure(operation, (building, held_out), rounds, seed, "cpu"), "threads": threads}


app = typer.Typer()


@app.command()
def child(
    name: str, threads: int, out: Path, building: int = 64, held_out: int = 64, rounds: int = 8, seed: int = 1
) -> None:
    out.write_text(json.dumps(measure_here(name, threads, building, held_out, rounds, seed)))


@app.command()
def nothing() -> None:
    pass


if __name__ == "__main__":
    app()
