"""Judges the library's kernels with the referee: is each accepted, and how fast is it?

    python -m benchmarks.exemplars
    python -m benchmarks.exemplars --device cuda --seconds-total 400 --write --out FOLDER
    python -m benchmarks.exemplars --only bessel --adversarial

On a CPU the C++ kernels are timed against the best baseline and Triton's are checked by its interpreter at small shapes;
on a GPU Triton's are timed. Shapes are the referee's own; `--timed-shapes` takes the first few of the visible ones, since each
costs a compilation of every baseline. The exit status is 1 when a kernel is not accepted.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent.library.by_task import list_task_kernels
from agent.library.catalog import EXEMPLARS
from benchmarks.exemplars_cpu import ROOT, environment, library_candidate
from benchmarks.referee import quiet, unused
from evaluator.referee.core import RefereeCore
from evaluator.referee.evaluation import Request
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog


@dataclass(frozen=True)
class Subject:
    """A kernel to be judged.

    Attributes:
        task: of the catalogue.
        language: "C++" or "Triton".
        by: how the library knows the task, "formula" or "text".
        source: the candidate; None where it is assembled from a formula when its turn comes.
    """

    task: str
    language: str
    by: str
    source: str | None

    def candidate(self, device: str) -> CandidateSource:
        """What the referee is given."""
        source = self.source or library_candidate(catalog.load(self.task).source, device)
        return CandidateSource(source, "human", "library")


def subjects(device: str) -> Iterator[Subject]:
    """What can be judged on a device. A formula's kernel for the GPU gives way to the reference elsewhere, so it is not."""
    language = {"cpu": "C++", "cuda": "Triton"}
    for kernel in list_task_kernels():
        if device in ("cpu", kernel.device):
            yield Subject(kernel.task, language[kernel.device], "text", kernel.source)
    for exemplar in EXEMPLARS:
        if device in exemplar.devices:
            yield Subject(exemplar.task, language[device], "formula", None)


def judge(core: RefereeCore, subject: Subject, splits: tuple[str, ...], timed_shapes: int) -> dict[str, Any]:
    """One verdict, shortened."""
    started = time.monotonic()
    task = TaskSource(subject.task, catalog.load(subject.task).source)
    candidate = subject.candidate(core.fleet.device.kind)
    shapes = {}
    if timed_shapes and "visible" in splits:
        shapes["visible"] = core.session(task).drawn.sample("visible")[:timed_shapes]
    # Triton's interpreter needs minutes where a kernel sorts.
    request = Request(task, candidate, "screen", splits, shapes or None, deadline_s=1800.0)
    verdict = core.evaluate(request, quiet)
    timed = [shape for shape in verdict["shapes"] if shape.get("speedup")]
    return {
        "task": subject.task,
        "language": subject.language,
        "known_by": subject.by,
        "verdict": verdict["verdict"],
        "reason": verdict["reason"],
        "detail": verdict["detail"][-1000:] if verdict["verdict"] != "accepted" else "",
        "geomean_speedup": verdict["summary"]["geomean_speedup"],
        "worst_error_over_bound": max(
            (shape["error"]["max_ratio"] for shape in verdict["shapes"]), default=None
        ),
        "shapes": [
            {
                key: shape.get(key)
                for key in (
                    "dims",
                    "speedup",
                    "ci95",
                    "best_baseline",
                    "baseline_us",
                    "candidate_us",
                    "captured",
                )
            }
            for shape in timed
        ],
        "elapsed_s": time.monotonic() - started,
    }


def table_of(rows: list[dict[str, Any]], device: str) -> Table:
    """One line a kernel."""
    table = Table(
        "task", "language", "verdict", "speedup", "worst shape", "worst error / bound", "s", title=device
    )
    for row in sorted(rows, key=lambda row: (row["task"], row["language"])):
        speedups = [shape["speedup"] for shape in row["shapes"]]
        error = row["worst_error_over_bound"]
        table.add_row(
            row["task"],
            row["language"],
            row["verdict"],
            f"{row['geomean_speedup']:.2f}" if row["geomean_speedup"] else "not timed",
            f"{min(speedups):.2f}" if speedups else "",
            "" if error is None else f"{error:.2f}",
            f"{row['elapsed_s']:.0f}",
        )
    return table


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Tasks whose name contains one of these (comma-separated).")] = "",
    language: Annotated[str, typer.Option(help="C++ or Triton; both when left out.")] = "",
    seconds_total: Annotated[float, typer.Option(help="Begin nothing after so many seconds.")] = 1e9,
    timed_shapes: Annotated[int, typer.Option(help="Visible shapes a kernel; 0 for all of them.")] = 0,
    adversarial: Annotated[
        bool, typer.Option(help="The adversarial shapes alone; nothing is timed.")
    ] = False,
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the JSON.")] = ROOT / "docs" / "measurements",
) -> None:
    """Judge the library's kernels; exit 1 when one is not accepted."""
    console = Console(width=150)
    words = [word for word in only.split(",") if word]
    chosen = [
        subject
        for subject in subjects(device)
        if language in ("", subject.language) and (not words or any(word in subject.task for word in words))
    ]
    splits = ("adversarial",) if adversarial else ("visible", "adversarial")
    stop_at = time.monotonic() + seconds_total
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        try:
            for subject in chosen:
                if time.monotonic() > stop_at:
                    break
                rows.append(judge(core, subject, splits, timed_shapes))
                row = rows[-1]
                console.print(
                    f"{len(rows)}/{len(chosen)} {row['task']} ({row['language']}): {row['verdict']}, {row['reason'].partition(': its Triton')[0]}"
                )
            facts = core.fleet.environment()
        finally:
            core.close()
    console.print(table_of(rows, device))
    refused = [f"{row['task']} ({row['language']})" for row in rows if row["verdict"] != "accepted"]
    left = [subject.task for subject in chosen[len(rows) :]]
    speedups = [row["geomean_speedup"] for row in rows if row["geomean_speedup"]]
    if speedups:
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        console.print(f"geometric mean of {len(speedups)} timed kernels: {mean:.2f}")
    console.print(
        f"{len(rows) - len(refused)} of {len(rows)} accepted; not accepted: {', '.join(refused) or 'none'}; "
        f"no time for: {', '.join(left) or 'none'}; load {os.getloadavg()[0]:.1f}"
    )
    if write:
        path = unused(out / f"{datetime.now(UTC):%Y-%m-%d}-exemplars-{device}-judged.json")
        report = {
            "program": "benchmarks.exemplars",
            "settings": {
                "device": device,
                "only": only,
                "language": language,
                "seconds_total": seconds_total,
                "timed_shapes": timed_shapes,
                "splits": splits,
            },
            "environment": {**environment(), **facts},
            "judged": len(rows),
            "not_accepted": refused,
            "no_time_for": left,
            "rows": rows,
        }
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {path.name}")
    raise typer.Exit(1 if refused else 0)


if __name__ == "__main__":
    typer.run(main)
