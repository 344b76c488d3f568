"""Whether figures repeat: eight fixed candidates, on one card today and on another one tomorrow.

    python -m benchmarks.repeat run --device cuda --out A.json
    python -m benchmarks.repeat compare A.json B.json

The candidates are five kernels of the library and three slower ways to write a task, at two fixed shapes each, judged with
`confirm`: correctness, fresh processes, every regime. They are measured against the eager reference, not against the best
baseline: which baseline is best may change from card to card, and it is the referee that is examined here. `compare` prints
the ratio of the speedups, candidate by candidate, and of their geometric mean, which should repeat within 2 %; and of each
regime's: eager calls of short kernels time the host's Python, which is another one on another machine.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exemplars_cpu import environment, library_candidate
from benchmarks.referee import quiet
from evaluator.referee.core import RefereeCore
from evaluator.referee.evaluation import Request
from evaluator.referee.ranking import rank
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import on_core
from kernelbench_tasks import catalog
from tests.corpus import controls

_WITHIN = 0.02


@dataclass(frozen=True)
class Fixed:
    """A candidate and where it is timed.

    Attributes:
        task: of the catalogue.
        control: name of an honest candidate of the corpus; the library's kernel if empty.
        columns: name of the task's second dimension.
    """

    task: str
    control: str = ""
    columns: str = "cols"

    @property
    def name(self) -> str:
        """In the table."""
        return self.control or f"library {self.task}"

    def source(self, device: str) -> str:
        """The candidate's text."""
        if not self.control:
            return library_candidate(catalog.load(self.task).source, device)
        return next(entry.source for entry in controls.every() if entry.name == self.control)

    def shapes(self, device: str) -> list[dict[str, Any]]:
        """A small and a larger one."""
        sizes = [(256, 512), (512, 2048)] if device == "cpu" else [(512, 1024), (4096, 4096)]
        return [{"rows": rows, self.columns: columns, "dtype": "float32"} for rows, columns in sizes]


CANDIDATES = (
    Fixed("layernorm_relu_add"),
    Fixed("rmsnorm"),
    Fixed("softmax"),
    Fixed("swiglu"),
    Fixed("residual_add_rmsnorm"),
    Fixed("row_sum", "row_sum_dot_plain"),
    Fixed("bias_gelu", "bias_gelu_sigmoid_plain"),
    Fixed("cross_entropy", "cross_entropy_gather_plain", "classes"),
)


def judge(core: RefereeCore, fixed: Fixed, device: str, effort: str) -> dict[str, Any]:
    """Speedups against the eager reference, by shape and regime."""
    task = TaskSource(fixed.task, catalog.load(fixed.task).source)
    shapes = fixed.shapes(device)
    with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
        session = core.session(task)
        for dims in shapes:
            shape = session.open(dims)
            if not shape.baselines:
                threads = core.fleet.threads
                shape.baselines = [
                    b for b in core.fleet.baselines() if b.mode == "eager" and b.threads == threads
                ]
                session.prepare(shape.side, shape.baselines[0])
                rank(session, shape)
                shape.ranked = True
    candidate = CandidateSource(fixed.source(device), "human", fixed.name)
    request = Request(task, candidate, effort, ("visible",), {"visible": shapes}, 300.0)
    started = time.monotonic()
    verdict = core.evaluate(request, quiet)
    speedups = {}
    for shape_result in verdict["shapes"]:
        size = " x ".join(str(value) for value in shape_result["dims"].values() if isinstance(value, int))
        speedups[f"{size} eager"] = shape_result["speedup"]
        captured = shape_result.get("captured") or {}
        if "speedup" in captured:
            speedups[f"{size} captured"] = captured["speedup"]
    return {
        "verdict": verdict["verdict"],
        "reason": verdict["reason"],
        "elapsed_s": time.monotonic() - started,
        "stages_s": verdict["stages_s"],
        "speedups": speedups,
        "geomean": _geomean(speedups.values()) if speedups else None,
        "candidate_us": [shape_result["candidate_us"] for shape_result in verdict["shapes"]],
        "ci95": [shape_result["ci95"] for shape_result in verdict["shapes"]],
    }


def _geomean(values: Any) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def compared(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Name and both geometric means over the shapes and regimes that both have; last, over all candidates."""
    rows = []
    regimes: dict[str, list[tuple[float, float]]] = {}
    for name, one in first["candidates"].items():
        other = second["candidates"].get(name, {"speedups": {}})
        both = [key for key in one["speedups"] if key in other["speedups"]]
        for key in both:
            regimes.setdefault(key.rpartition(" ")[2], []).append(
                (one["speedups"][key], other["speedups"][key])
            )
        if both:
            rows.append(
                (
                    name,
                    _geomean(one["speedups"][key] for key in both),
                    _geomean(other["speedups"][key] for key in both),
                )
            )
    if rows:
        means = (_geomean(r[1] for r in rows), _geomean(r[2] for r in rows))
        for regime, pairs in regimes.items():
            rows.append((f"all, {regime}", _geomean(p[0] for p in pairs), _geomean(p[1] for p in pairs)))
        rows.append(("geometric mean", *means))
    return rows


app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def run(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Candidates whose names contain this.")] = "",
    effort: Annotated[str, typer.Option(help="confirm, or screen for a quick look.")] = "confirm",
    seconds_total: Annotated[float, typer.Option(help="Begin no candidate after so many seconds.")] = 1e9,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Measure the eight once."""
    console = Console(width=140)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        report: dict[str, Any] = {
            "program": "benchmarks.repeat",
            "settings": {"device": device, "effort": effort, "only": only},
            "environment": {**environment(), **core.fleet.environment()},
            "candidates": {},
        }
        try:
            for fixed in CANDIDATES:
                if only not in fixed.name or time.monotonic() - started > seconds_total:
                    continue
                row = report["candidates"][fixed.name] = judge(core, fixed, device, effort)
                words = ", ".join(f"{key} {value:.3f}" for key, value in row["speedups"].items())
                console.print(
                    f"{fixed.name}: {row['elapsed_s']:.1f} s; {words or row['reason']}", highlight=False
                )
                means = [one["geomean"] for one in report["candidates"].values() if one["geomean"]]
                report["geomean"] = _geomean(means) if means else None
                if out is not None:
                    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        finally:
            core.close()
    if report.get("geomean"):
        console.print(f"geometric mean of {len(report['candidates'])}: {report['geomean']:.4f}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="JSON file of a run.")],
    second: Annotated[Path, typer.Argument(help="JSON file of another one.")],
) -> None:
    """Compare two runs; exit 1 when the geometric mean does not repeat within 2 %."""
    console = Console(width=140)
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in (first, second)]
    for path, report in zip((first, second), reports, strict=True):
        facts = report["environment"]
        console.print(
            f"{path.name}: {facts['time']}, {facts['device_name']} {facts['gpu_uuid'] or ''}, {report['settings']['effort']}",
            highlight=False,
        )
    rows = compared(*reports)
    table = Table("candidate", "first", "second", "second / first")
    for name, one, other in rows:
        table.add_row(name, f"{one:.4f}", f"{other:.4f}", f"{other / one:.4f}")
    console.print(table)
    if not rows:
        console.print("they have no candidate in common")
        raise typer.Exit(1)
    off = abs(rows[-1][2] / rows[-1][1] - 1)
    console.print(f"the geometric mean differs by {100 * off:.2f} % (bar {100 * _WITHIN:.0f} %)")
    raise typer.Exit(0 if off <= _WITHIN else 1)


if __name__ == "__main__":
    app()
