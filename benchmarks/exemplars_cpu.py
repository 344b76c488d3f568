"""The library's CPU kernels against eager and torch.compile, shape by shape.

Everything takes turns within one process: in each round every contender runs one block of calls, in random order, and a figure
is the median over rounds. All outputs of a block stay alive until it ends, as the referee has it, so that nobody gains
by handing out the same hot buffer again. A contender's best thread count is found for each shape, the baseline's as well. The
referee's own numbers are the ones that count; this program is for the people who write kernels.

    python -m benchmarks.exemplars_cpu layernorm_relu_add --shapes 20 --write
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from agent.library.assemble import assemble
from agent.library.catalog import EXEMPLARS
from agent.library.find import find_matches
from agent.library.match.graph import read_graphs
from agent.proposers.human import tracing_program
from kernelbench_tasks import Choice, catalog

MAX_ELEMENTS = 4 << 20
BLOCK_S = 0.004
BLOCK_OUTPUT_BYTES = 128 << 20
ROOT = Path(__file__).resolve().parents[1]


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


def library_candidate(task_source: str, device: str = "cpu") -> str:
    """The candidate that the library offers for a task of the catalogue."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "task.py").write_text(task_source, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", tracing_program()], cwd=folder, check=True, env=environment)
        traced = read_graphs(Path(folder, "out", "graphs.json").read_bytes())
    match = next(find_matches(traced))
    return assemble(match, device, task_source)


def draw_shapes(dims: dict[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """Log-uniform sizes, odd ones included, within a limit of elements."""
    generator = random.Random(seed)
    shapes: list[dict[str, Any]] = []
    while len(shapes) < count:
        shape: dict[str, Any] = {}
        for name, dim in dims.items():
            if isinstance(dim, Choice):
                shape[name] = dim.default
            else:
                size = round(math.exp(generator.uniform(math.log(max(dim.min, 1)), math.log(dim.max))))
                shape[name] = dim.nearest(size)
        if math.prod(size for size in shape.values() if isinstance(size, int)) <= MAX_ELEMENTS:
            shapes.append(shape)
    return shapes


def named(function: Callable[..., Any], shape: dict[str, Any]) -> Any:
    """Call a task's function with the dimensions that it takes."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return function(**{name: value for name, value in shape.items() if name in names})


def block_us(call: Callable[..., torch.Tensor], inputs: list[list[torch.Tensor]], calls: int) -> float:
    """Microseconds a call over one block; the inputs rotate, the outputs live until the end."""
    outputs = []
    start = time.perf_counter()
    for index in range(calls):
        outputs.append(call(*inputs[index % len(inputs)]))
    return (time.perf_counter() - start) / calls * 1e6


def measure_shape(
    task: ModuleType, candidate: ModuleType, shape: dict[str, Any], modes: list[str], rounds: int
) -> dict[str, float]:
    """Median microseconds a call of every contender at every thread count."""
    init = named(task.get_init_inputs, shape)
    reference = task.Model(*init).eval()
    for tensor in reference.state_dict().values():
        tensor.uniform_(0.5, 1.5)
    kernel = candidate.ModelNew(*init).eval()
    kernel.load_state_dict(reference.state_dict())
    first = named(task.get_inputs, shape)
    copies = max(1, min(8, (2 << 20) // max(sum(x.nbytes for x in first), 1)))
    inputs = [first, *(named(task.get_inputs, shape) for _ in range(copies - 1))]
    torch._dynamo.reset()
    calls: dict[str, Callable[..., torch.Tensor]] = {"library": kernel, "eager": reference}
    for mode in modes:
        calls[f"compile {mode}"] = torch.compile(
            reference, dynamic=False, mode=None if mode == "default" else mode
        )
    expected = reference(*first)
    for call in calls.values():
        torch.testing.assert_close(call(*first), expected, rtol=1e-4, atol=1e-4)

    contenders = [(name, threads) for name in calls for threads in range(1, torch_threads() + 1)]
    per_call = max(block_us(reference, inputs, 3), 1.0)
    limit = max(1, BLOCK_OUTPUT_BYTES // max(expected.nbytes, 1))
    count = max(2, min(int(BLOCK_S * 1e6 / per_call), limit, 500))
    samples: dict[str, list[float]] = {f"{name}/{threads}t": [] for name, threads in contenders}
    for _ in range(rounds):
        random.shuffle(contenders)
        for name, threads in contenders:
            torch.set_num_threads(threads)
            block_us(calls[name], inputs, 2)
            samples[f"{name}/{threads}t"].append(block_us(calls[name], inputs, count))
    torch.set_num_threads(torch_threads())
    return {name: statistics.median(values) for name, values in samples.items()}


def torch_threads() -> int:
    """The thread counts that are tried: 1 up to this."""
    return min(len(os.sched_getaffinity(0)), 2)


def environment() -> dict[str, Any]:
    """What a number needs beside it."""
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


def main(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks of the catalogue; all that have a CPU kernel.")
    ] = None,
    shapes: Annotated[int, typer.Option(help="Random shapes a task.")] = 20,
    rounds: Annotated[int, typer.Option(help="Blocks a contender.")] = 15,
    seed: Annotated[int, typer.Option(help="Of the shapes.")] = 1,
    modes: Annotated[str, typer.Option(help="Modes of torch.compile.")] = "default",
    write: Annotated[bool, typer.Option(help="Write JSON to docs/measurements.")] = False,
) -> None:
    """Measure the library's CPU kernels against the best baseline at each shape."""
    console = Console(width=120)
    results: dict[str, Any] = {}
    chosen = tasks or [exemplar.task for exemplar in EXEMPLARS if "cpu" in exemplar.devices]
    with torch.no_grad():
        for name in chosen:
            source = catalog.load(name).source
            task = module_from(source, f"task_{name}")
            candidate = module_from(library_candidate(source), f"candidate_{name}")
            table = Table("shape", "library us", "best baseline us", "which", "speedup", title=name)
            rows = []
            for shape in draw_shapes(task.DIMS, shapes, seed):
                measured = measure_shape(task, candidate, shape, modes.split(","), rounds)
                ours = {k: v for k, v in measured.items() if k.startswith("library")}
                baselines = {k: v for k, v in measured.items() if not k.startswith("library")}
                default = ours[f"library/{torch_threads()}t"]
                best = min(baselines, key=baselines.__getitem__)
                rows.append(
                    {
                        "shape": shape,
                        "us": measured,
                        "best_baseline": best,
                        "speedup": baselines[best] / default,
                    }
                )
                sizes = " x ".join(str(value) for value in shape.values() if isinstance(value, int))
                table.add_row(
                    sizes, f"{default:.1f}", f"{baselines[best]:.1f}", best, f"{rows[-1]['speedup']:.2f}"
                )
            geomean = math.exp(statistics.fmean(math.log(row["speedup"]) for row in rows))
            worst = min(row["speedup"] for row in rows)
            table.caption = f"geometric mean {geomean:.2f}, worst {worst:.2f}, load {os.getloadavg()[0]:.1f}"
            console.print(table)
            results[name] = {"geomean_speedup": geomean, "worst_speedup": worst, "shapes": rows}
    if write:
        folder = ROOT / "docs" / "measurements"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(UTC):%Y-%m-%d}-exemplars-cpu.json"
        settings = {
            "shapes": shapes,
            "rounds": rounds,
            "seed": seed,
            "modes": modes,
            "max_elements": MAX_ELEMENTS,
        }
        report = {
            "program": "benchmarks.exemplars_cpu",
            "settings": settings,
            "environment": environment(),
            "tasks": results,
        }
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
