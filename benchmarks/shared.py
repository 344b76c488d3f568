"""What the measuring programs share: the machine's description, the library's candidates, where a result is written."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer

from agent.compiler.inductor import CAPTURE_PROGRAM, assemble
from agent.kernels.writing import row_module, row_program_text
from evaluator.keeping import replacing
from kernelbench_tasks import Dim

ROOT = Path(__file__).resolve().parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements"
#: Options that benchmarks share.
Out = Annotated[Path, typer.Option(help="Folder of the JSON.")]
Seconds = Annotated[float, typer.Option(help="Begin nothing after so many seconds.")]


def environment() -> dict[str, Any]:
    """What a number needs beside it: time, processor, cores, load, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def module_from(source: str, name: str) -> ModuleType:
    """A source text as a module. Only our own tasks and kernels come here."""
    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the compiler looks up where a function is from
    spec.loader.exec_module(module)
    return module


def row_candidate(task_source: str, device: str = "cpu") -> str:
    """A right candidate for a task over rows: the library's loop in C++ on a CPU, the compiler's Triton on a GPU."""
    dims = module_from(task_source, "task").DIMS
    known = {
        name: {"min": dim.min, "max": dim.max, "default": dim.default}
        for name, dim in dims.items()
        if isinstance(dim, Dim)
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "reference.py").write_text(task_source, encoding="utf-8")
        Path(folder, "request.json").write_text(
            json.dumps({"dims": known, "device": device}), encoding="utf-8"
        )
        Path(folder, "row_program.py").write_text(row_program_text(), encoding="utf-8")
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", CAPTURE_PROGRAM.read_text()], cwd=folder, check=True, env=variables
        )
        data = Path(folder, "out", "capture.json").read_text(encoding="utf-8")
    rows = json.loads(data)["rows"]
    return assemble(
        data, task_source, "rows", changed=(lambda _: row_module(rows)) if device == "cpu" else None
    )


def gpu_name() -> str:
    """Name of the GPU that a benchmark runs on.

    Raises:
        typer.BadParameter: there is none.
    """
    if not torch.cuda.is_available():
        raise typer.BadParameter("this needs an NVIDIA GPU, and torch finds none here")
    return str(torch.cuda.get_device_name())


def write_whole(path: Path, report: dict[str, Any]) -> None:
    """Write JSON so that a reader, or a program that is cut off, never leaves half a file."""
    with replacing(path) as file:
        file.write(json.dumps(report, indent=1) + "\n")


def unused(folder: Path, name: str) -> Path:
    """`folder/DATE-name.json` with today's date, numbered if an earlier measurement has that name."""
    path = folder / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json"
    number = 2
    while path.exists():
        path = path.with_stem(f"{path.stem.removesuffix(f'-{number - 1}')}-{number}")
        number += 1
    return path


def write_new(folder: Path, name: str, report: dict[str, Any]) -> None:
    """Write a dated result and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = unused(folder, name)
    write_whole(path, report)
    print(f"wrote {path}")


def nth_visible(index: int) -> str:
    """The GPU of that number among those that are visible.

    Raises:
        typer.BadParameter: there are fewer.
    """
    visible = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    if visible and index >= len(visible):
        raise typer.BadParameter(f"only {len(visible)} GPUs are visible here")
    return visible[index].strip() if visible else str(index)


def quiet(*_: Any) -> None:
    """Takes progress and shows nothing."""
