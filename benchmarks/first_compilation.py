"""Processor seconds of the first and of later compilations in a new process of a CPU's referee, apart from the C++ compiler's.

python -m benchmarks.first_compilation --out docs/measurements/2026-11-26-first-compilation-cpu.json
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from evaluator.referee.core import RefereeCore

_PROGRAM = """
import time
import torch
from evaluator.roles import shared_headers

shared_headers.use(FOLDER)
for columns in (64, 128, 256):
    model = torch.nn.Sequential(torch.nn.LayerNorm(columns), torch.nn.ReLU())
    began = time.process_time()
    with torch.no_grad():
        torch.compile(model, dynamic=False)(torch.randn(8, columns))
    print(time.process_time() - began)
"""


def main(
    runs: Annotated[int, typer.Option(help="New processes.")] = 5,
    out: Annotated[Path | None, typer.Option(help="JSON.")] = None,
) -> None:
    """Measure."""
    from evaluator.referee.fleet import process_headers

    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore("cpu", Path(folder), "landlock")
        try:
            core.fleet.warm_up()
            program = _PROGRAM.replace("FOLDER", repr(process_headers(core.fleet.tier, core.fleet.headers)))
            found = []
            for _ in range(runs):
                result = core.run_tool(program, {}, deadline_s=120.0)
                if result.status != "ok":
                    raise SystemExit(f"{result.status}: {result.stderr}{result.stdout}")
                found.append([round(float(line), 3) for line in result.stdout.split()])
        finally:
            core.close()
    table = Table("compilation", "median", "all", title="processor seconds without the C++ compiler's")
    for number, seconds in enumerate(zip(*found, strict=True), 1):
        table.add_row(
            str(number), f"{statistics.median(seconds):.2f}", ", ".join(f"{s:.2f}" for s in seconds)
        )
    Console().print(table)
    if out is not None:
        where = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        out.write_text(json.dumps({"environment": where, "cpu_s": found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
