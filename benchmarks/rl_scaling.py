"""Weak scaling of supervised training over the GPUs of one host: half a billion weights, as many sequences a GPU whatever their number.

Numbers of GPUs take turns, each in fresh processes, so that a drift of the host falls on all of them. The first steps of each run
(compilation, memory pools) are left out.

    python -m benchmarks.rl_scaling pairs.jsonl --counts 1,2 --rounds 2 --out scaling.json
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exemplars_cpu import ROOT, environment
from evaluator.devices import open_device
from evaluator.environment import measured_on

_CONFIG = "rl/configs/half_billion_sft.yaml"
_CLUSTER = "rl/configs/cluster/accelerate_ddp.yaml"
_RESAMPLES = 4000


def run(data: Path, count: int, each: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Trains for some steps on so many GPUs; the lines of its metrics.

    Raises:
        RuntimeError: it failed; the message has the end of what it printed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "output": folder,
        "data": data,
        "steps": steps,
        "save_every": steps,
        "batch": each * count,
        "micro_batch": each,
    }
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    launched = [sys.executable, "-m", "accelerate.commands.launch"]
    if count > 1:
        launched += ["--config_file", _CLUSTER, "--num_processes", str(count)]
    else:
        launched += [
            "--num_processes",
            "1",
            "--num_machines",
            "1",
            "--mixed_precision",
            "bf16",
            "--dynamo_backend",
            "no",
        ]
    visible = ",".join(_visible()[:count])
    ended = subprocess.run(
        [*launched, "-m", "rl.train", _CONFIG, *given],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{count} GPUs: {(ended.stdout + ended.stderr)[-3000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _visible() -> list[str]:
    """The GPUs that this program may use, as `CUDA_VISIBLE_DEVICES` names them."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        return [word.strip() for word in mask.split(",") if word.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def efficiency(one: list[float], several: list[float]) -> tuple[float, float, float]:
    """Step of one GPU over a step of several with as much for each: 1 is perfect. With a 95 % interval, bootstrap over steps: what differs from run to run is not in it."""
    generator = np.random.default_rng(0)
    before, after = np.array(one), np.array(several)
    found = [
        np.median(generator.choice(before, before.size)) / np.median(generator.choice(after, after.size))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(np.median(before) / np.median(after)), float(low), float(high)


def main(
    data: Annotated[Path, typer.Argument(help="Rows (rl/rows.py).")],
    out: Annotated[Path, typer.Option(help="JSON.")],
    counts: Annotated[str, typer.Option(help="Numbers of GPUs, 1 first.")] = "1,2",
    rounds: Annotated[int, typer.Option(min=1, help="How often each.")] = 2,
    each: Annotated[int, typer.Option(min=1, help="Sequences a GPU and step.")] = 16,
    steps: Annotated[int, typer.Option(min=6)] = 24,
    skipped: Annotated[int, typer.Option(min=1, help="First steps of a run that do not count.")] = 4,
    seconds_total: Annotated[float, typer.Option(help="No round begins that would end later.")] = 1e9,
    folder: Annotated[Path, typer.Option(help="Of the runs; emptied.")] = Path("/tmp/rl-scaling"),
) -> None:
    """Measure weak scaling."""
    console = Console(width=120)
    numbers = [int(word) for word in counts.split(",")]
    if numbers[0] != 1:
        raise typer.BadParameter("what several reach is told against one: 1 comes first")
    if max(numbers) > len(_visible()):
        raise typer.BadParameter(f"{max(numbers)} GPUs are asked for, and {len(_visible())} are here")
    lines: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    began = time.monotonic()
    for turn in range(rounds):
        elapsed_s = time.monotonic() - began
        if turn and elapsed_s * (turn + 1) / turn > seconds_total:
            console.print(f"{turn} of {rounds} rounds: the next one would end after {seconds_total:g} s")
            break
        for number in numbers if turn % 2 == 0 else reversed(numbers):
            found = run(data.resolve(), number, each, steps, folder)
            lines[number] += found[skipped:]
            console.print(f"round {turn + 1}, {number} GPUs: {len(found)} steps", highlight=False)
    if not all(lines.values()):
        raise typer.BadParameter(f"no step is left after the {skipped} that do not count")
    printed = Table(
        "GPUs", "sequences", "step s", "samples/s", "efficiency", "95 % interval", "most memory GiB"
    )
    rows = []
    one = [line["step_s"] for line in lines[1]]
    for number in numbers:
        taken = [line["step_s"] for line in lines[number]]
        value, low, high = efficiency(one, taken)
        step_s = statistics.median(taken)
        peak = max(line["peak_memory_gib"] or 0.0 for line in lines[number])
        rows.append(
            {
                "gpus": number, "batch": each * number, "step_s": step_s, "samples_per_s": each * number / step_s,
                "efficiency": value, "low": low, "high": high, "peak_memory_gib": peak, "steps_s": taken,
            }
        )  # fmt: skip
        printed.add_row(
            str(number), str(each * number), f"{step_s:.3f}", f"{each * number / step_s:.1f}", f"{value:.1%}",
            f"{low:.1%} to {high:.1%}", f"{peak:.1f}",
        )  # fmt: skip
    console.print(printed)
    document = {
        "program": "benchmarks.rl_scaling",
        "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
        "settings": {"counts": numbers, "rounds": rounds, "each": each, "steps": steps, "skipped": skipped},
        "environment": {**environment(), **measured_on(open_device("cuda"))},
        "rows": rows,
    }
    out.write_text(json.dumps(document) + "\n", encoding="utf-8")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
