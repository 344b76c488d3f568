"""How long `load_inline` takes: torch's own, the referee's when the text is new, and when somebody has asked before.

    python -m benchmarks.compile --write
    python -m benchmarks.compile --device cuda --out FOLDER

The kernel is small, so what is measured is torch's headers, the compilers' start and the referee's own work: starting
the candidate to hear what it asks for, starting the compiler's process, and taking the library. With a GPU the kernel
is CUDA and the C++ binding is compiled beside it; then nvcc's steps are measured one by one, too
(:mod:`benchmarks.compile_steps`).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import compile_steps
from benchmarks.exemplars_cpu import ROOT, environment
from benchmarks.referee import unused
from evaluator.referee.candidate import CandidateRun
from evaluator.referee.core import RefereeCore
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog

_CPP = """
torch::Tensor scale(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  auto y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) to[i] = NUMBERf * from[i];
  return y;
}
"""
_CUDA = """
__global__ void scale_kernel(const float* from, float* to, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) to[i] = NUMBERf * from[i];
}
torch::Tensor scale(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  auto y = torch::empty_like(x);
  scale_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
_CANDIDATE = """
from torch import nn
from torch.utils.cpp_extension import load_inline

extension = load_inline("scale_NAME", cpp_sources=CPP_TEXT, cuda_sources=CUDA_TEXT, functions=["scale"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    pass
"""


def candidate_text(number: float, device: str) -> str:
    """A candidate file whose kernel holds the number; another number is another text."""
    cpp, cuda = (_CPP, None) if device == "cpu" else ("torch::Tensor scale(torch::Tensor x);", _CUDA)
    text = _CANDIDATE.replace("NAME", str(number).replace(".", "_"))
    for name, source in (("CPP_TEXT", cpp), ("CUDA_TEXT", cuda)):
        text = text.replace(name, repr(source.replace("NUMBER", str(number)) if source else source))
    return text


def naive_s(number: float, device: str) -> float:
    """Seconds of torch's own `load_inline` in a new interpreter, without the import of torch."""
    program = (
        "import time, torch, torch.utils.cpp_extension\n"
        "started = time.monotonic()\n"
        f"exec(compile({candidate_text(number, device)!r}, 'candidate', 'exec'), {{'__name__': 'candidate'}})\n"
        "print(time.monotonic() - started)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        shown = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "TORCH_EXTENSIONS_DIR": folder, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(shown.stdout.split()[-1])


def built_s(core: RefereeCore, task: TaskSource, text: str) -> float:
    """Seconds of the referee's compile stage for one candidate; the session of the task is open."""
    session = core.session(task)
    run = CandidateRun(
        core.fleet, session, CandidateSource(text, "external", "benchmark"), time.monotonic() + 300
    )
    try:
        started = time.monotonic()
        run.build([])
        elapsed_s = time.monotonic() - started
        run.start()
    finally:
        run.close()
    return elapsed_s


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repeats: Annotated[int, typer.Option(help="Measurements of each kind.")] = 3,
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the JSON.")] = ROOT / "docs" / "measurements",
) -> None:
    """Measure compilation."""
    console = Console(width=120)
    task = TaskSource("layernorm_relu_add", catalog.load("layernorm_relu_add").source)
    rows: dict[str, list[float]] = {}
    rows["torch's own, cold"] = [naive_s(1.5 + repeat, device) for repeat in range(repeats)]
    with tempfile.TemporaryDirectory() as folder:
        previous = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = folder  # headers that are precompiled already would be a head start
        core = RefereeCore(device, Path(folder) / "referee", "landlock")
        try:
            core.session(task)
            texts = [candidate_text(100.5 + repeat, device) for repeat in range(repeats + 2)]
            taken = [built_s(core, task, text) for text in texts]
            rows["ours, cold"] = taken[:1]
            rows["ours, cold, precompiling the header" if device == "cpu" else "ours, cold, second"] = taken[
                1:2
            ]
            rows["ours, cold, header precompiled" if device == "cpu" else "ours, cold, later"] = taken[2:]
            again = [f"# another candidate with the same kernel\n{text}" for text in texts[:repeats]]
            rows["ours, same kernel in another candidate"] = [built_s(core, task, text) for text in again]
            rows["ours, same candidate again"] = [built_s(core, task, text) for text in texts[:repeats]]
        finally:
            core.close()
            if previous is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = previous
    table = Table("load_inline with torch's headers", "median s", "all", title=f"compilation, {device}")
    for name, seconds in rows.items():
        table.add_row(
            name, f"{statistics.median(seconds):.2f}", " ".join(f"{second:.2f}" for second in seconds)
        )
    console.print(table)
    steps: dict[str, list[float]] = {}
    if device == "cuda":
        with tempfile.TemporaryDirectory() as folder:
            steps = compile_steps.measure(compile_steps.find_nvcc(), Path(folder), repeats, whole=False)
        console.print(compile_steps.table(steps))
    if write:
        path = unused(out / f"{datetime.now(UTC):%Y-%m-%d}-compile-{device}.json")
        report: dict[str, Any] = {
            "program": "benchmarks.compile",
            "settings": {"device": device, "repeats": repeats},
            "environment": {**environment(), **core.fleet.environment()},
            "load_average": os.getloadavg(),
            "seconds": rows,
            "steps_seconds": steps,
        }
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {path.name}")


if __name__ == "__main__":
    typer.run(main)
