"""The referee's own cost and bias: where a warm evaluation spends its time, and the reference against itself.

    python -m benchmarks.referee --write
    python -m benchmarks.referee --device cuda --out FOLDER

The candidate is a loop over rows, which needs no compilation after the first round: what is measured
is the referee. Shapes are small and drawn anew, log-uniform, for each run.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.shared import MEASUREMENTS, Out, environment, quiet, row_candidate, write_new
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring import calibration, measure
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.statistics import median_interval, pair_estimate
from evaluator.verdict import Verdict
from kernelbench_tasks import catalog


def small_shapes(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows 1 to 1024, columns 16 to 2048, at most 2^18 elements."""
    generator = random.Random(seed)
    shapes: list[dict[str, Any]] = []
    while len(shapes) < count:
        rows, cols = round(2 ** generator.uniform(0, 10)), round(2 ** generator.uniform(4, 11))
        if rows * cols <= 1 << 18:
            shapes.append({"rows": rows, "cols": cols, "dtype": "float32"})
    return shapes


def stage_table(console: Console, runs: list[Verdict], shapes: int) -> dict[str, float]:
    """Prints seconds per stage, the first run beside the median of the others; returns those medians."""
    warm = {
        stage: statistics.median(run.stages_s.get(stage, 0.0) for run in runs[1:])
        for stage in runs[0].stages_s
    }
    table = Table("stage", "first s", "warm s (median)", title=f"one evaluation at {shapes} shapes")
    for stage, seconds in warm.items():
        table.add_row(stage, f"{runs[0].stages_s[stage]:.2f}", f"{seconds:.2f}")
    total = statistics.median(run.elapsed_s for run in runs[1:])
    table.add_row("all", f"{runs[0].elapsed_s:.2f}", f"{total:.2f}")
    console.print(table)
    return {**warm, "all": total}


def a_against_a(
    core: RefereeCore, task: TaskSource, shapes: list[dict[str, Any]], rounds: int, console: Console
) -> list[dict[str, Any]]:
    """A/A at every shape, each round in a new pair of processes."""
    session = core.session(task)
    rows = []
    table = Table("shape", "A/A median", "95 % interval", "quads", title="the reference against itself")
    with core.fleet.device_lock.exclusive():
        for dims in shapes:
            shape = session.open(dims)
            pairs = [
                calibration.run(session, shape, measure.effort_for("confirm", gpu=session.fleet.gpu))[0]
                for _ in range(rounds)
            ]
            samples = [ratio for pair in pairs for ratio in pair]
            median, low, high = pair_estimate(pairs).interval if rounds > 1 else median_interval(samples)
            rows.append({"dims": dims, "median": median, "ci95": [low, high], "log_ratios": samples})
            table.add_row(
                f"{dims['rows']} x {dims['cols']}",
                f"{median:.4f}",
                f"{low:.4f} to {high:.4f}",
                str(len(samples)),
            )
    console.print(table)
    return rows


def main(
    task: Annotated[
        str, typer.Argument(help="A task of the catalogue with rows and cols.")
    ] = "layernorm_relu_add",
    shapes: Annotated[int, typer.Option(help="Shapes of an evaluation.")] = 8,
    runs: Annotated[int, typer.Option(help="Warm evaluations.")] = 5,
    rounds: Annotated[
        int, typer.Option(help="A/A runs a shape, each in a pair of processes of its own.")
    ] = 2,
    seed: Annotated[int, typer.Option(help="Of the shapes.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Out = MEASUREMENTS,
) -> None:
    """Measure the referee itself."""
    console = Console(width=120)
    source = catalog.load(task).source
    reference = TaskSource(task, source)
    candidate = CandidateSource(row_candidate(source, device), "human", "rows")
    chosen = small_shapes(shapes, seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        core.fleet.warm_up()
        console.print(f"referee up after {time.monotonic() - started:.1f} s, tier {core.fleet.tier}")
        try:
            verdicts = []
            for _ in range(runs + 1):
                request = Request(reference, candidate, "screen", ("visible",), {"visible": chosen})
                verdicts.append(core.evaluate(request, quiet))
                console.print(verdicts[-1].reason)
            warm = stage_table(console, verdicts, shapes)
            same = a_against_a(core, reference, chosen, rounds, console)
        finally:
            core.close()
    everything = [ratio for row in same for ratio in row["log_ratios"]]
    median, low, high = median_interval(everything)
    worst = max((row["median"] for row in same), key=lambda value: abs(math.log(value)))
    console.print(
        f"warm evaluation {warm['all']:.2f} s; A/A over all shapes {median:.4f} [{low:.4f}, {high:.4f}], "
        f"worst shape {worst:.4f}; load {os.getloadavg()[0]:.1f}"
    )
    if write:
        report = {
            "program": "benchmarks.referee",
            "settings": {
                "device": device,
                "task": task,
                "shapes": shapes,
                "runs": runs,
                "rounds": rounds,
                "seed": seed,
            },
            "environment": {**environment(), **verdicts[-1].environment},
            "warm_stages_s": warm,
            "evaluations": [
                {key: getattr(verdict, key) for key in ("verdict", "reason", "stages_s", "elapsed_s")}
                for verdict in verdicts
            ],
            "aa": {"median": median, "ci95": [low, high], "worst_shape_median": worst, "shapes": same},
        }
        write_new(out, f"referee-{device}", report)


if __name__ == "__main__":
    typer.run(main)
