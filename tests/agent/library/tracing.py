"""Traces modules with the very program that the sandbox runs, many in one process, since importing torch takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from agent.library.match.graph import Traced, read_graphs
from agent.proposers.human import tracing_program

ROOT = Path(__file__).resolve().parents[3]

# One process for all modules: the first export imports half of torch.
_DRIVER = """
import os, sys, traceback
import torch
program = compile(open(sys.argv[1]).read(), "trace_program.py", "exec")
for folder in sys.argv[2:]:
    os.chdir(folder)
    try:
        exec(program, {"__name__": "__main__"})
    except Exception:
        traceback.print_exc(file=open("error.txt", "w"))
"""


def trace_all(sources: Mapping[str, str], folder: Path) -> dict[str, Traced | str]:
    """The graphs of each source by its name, or the text of the error that tracing it raised."""
    (folder / "program.py").write_text(tracing_program(), encoding="utf-8")
    places = []
    for name, source in sources.items():
        place = folder / name
        place.mkdir()
        (place / "task.py").write_text(source, encoding="utf-8")
        places.append(str(place))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _DRIVER, str(folder / "program.py"), *places],
        check=True,
        env=environment,
    )
    found: dict[str, Traced | str] = {}
    for name in sources:
        report = folder / name / "out" / "graphs.json"
        found[name] = (
            read_graphs(report.read_bytes()) if report.exists() else (folder / name / "error.txt").read_text()
        )
    return found


def module_source(
    forward: str,
    *,
    setup: str = "",
    arguments: str = "x, r",
    inputs: int = 2,
    shape: str = "rows, cols",
    dims: bool = False,
) -> str:
    """A task file whose forward returns the given expression of x and r. Without `dims` it is traced at one size."""
    space = 'DIMS = {"rows": Dim(1, 4096, default=8), "cols": Dim(8, 4096, default=48)}' if dims else ""
    return f"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

{space}


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.cols = cols
        self.weight = nn.Parameter(torch.rand(cols) + 0.5)
        self.bias = nn.Parameter(torch.randn(cols))
        {setup or "pass"}

    def forward(self, {arguments}):
        return {forward}


def get_inputs(rows=8, cols=48):
    return [torch.randn({shape}) for _ in range({inputs})]


def get_init_inputs(cols=48):
    return [cols]
"""
