"""One whole job without the service, kept as a dated measurement: POST aside, what `make demo` does.

    python -m benchmarks.job layernorm_relu_add --device cuda --out docs/measurements/2026-11-21-job-h200

Writes `job.json` (times of every step, held-out summary), `evidence.json` (the bundle's: every verdict with its raw
samples) and `optimized.py` into the folder, and prints the leaderboard.
"""

from __future__ import annotations

import json
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent.job import run_job
from agent.spec import Budget, JobSpec
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog

_KEPT = ("label", "phase", "verdict", "geomean_speedup", "reason")


class TimedStore(FolderStore):
    """A folder store that also remembers when each event came."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.started = time.monotonic()
        self.steps: list[dict[str, Any]] = []

    def event(self, name: str, data: dict[str, Any]) -> None:
        """Stores the event; progress inside an evaluation is not kept as a step."""
        super().event(name, data)
        if name != "candidate.progress":
            at_s = round(time.monotonic() - self.started, 1)
            self.steps.append(
                {"at_s": at_s, "event": name, **{key: data[key] for key in _KEPT if key in data}}
            )
            Console(stderr=True).print(self.steps[-1], markup=False)


def main(
    task: Annotated[str, typer.Argument(help="A task file, or a name of the catalogue.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget in seconds; none by default.")] = None,
) -> None:
    """Run one job and keep what it measured."""
    path = Path(task)
    source = path.read_text(encoding="utf-8") if path.suffix == ".py" else catalog.load(task).source
    spec = JobSpec("benchmark", path.stem, TaskSource(path.stem, source), device, Budget(seconds=seconds))
    with tempfile.TemporaryDirectory() as folder, Referee(device) as referee:
        store = TimedStore(Path(folder) / "store")
        outcome = run_job(spec, store, referee, Path(folder) / "out")
        elapsed_s = time.monotonic() - store.started
        rows = [
            (candidate, phase, verdict)
            for candidate in store.candidates()
            for phase in ("screen", "validation", "held_out")
            if (verdict := store.verdict(candidate.sha256, phase)) is not None
        ]
        _print(rows)
        print(f"{outcome.state}: {outcome.reason} ({elapsed_s:.0f} s)")
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if outcome.bundle_path is not None:
                _keep(out, Path(outcome.bundle_path))
            summary = {
                "command": f"python -m benchmarks.job {task} --device {device}",
                "state": outcome.state,
                "reason": outcome.reason,
                "elapsed_s": round(elapsed_s, 1),
                "environment": rows[-1][2]["environment"] if rows else {},
                "held_out": outcome.summary,
                "steps": store.steps,
            }
            (out / "job.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def _print(rows: list[tuple[Any, str, dict[str, Any]]]) -> None:
    table = Table("candidate", "origin", "phase", "verdict", "geomean", "95 % interval", "worst", "seconds")
    for candidate, phase, verdict in rows:
        summary = verdict.get("summary") or {}
        interval = summary.get("geomean_ci95")
        table.add_row(
            candidate.label,
            candidate.origin,
            phase,
            verdict["verdict"],
            f"{summary['geomean_speedup']:.2f}x" if summary.get("geomean_speedup") else "not timed",
            f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "",
            f"{summary['worst_speedup']:.2f}x" if summary.get("worst_speedup") else "",
            f"{verdict.get('elapsed_s', 0):.0f}",
        )
    Console(width=150).print(table)


def _keep(out: Path, bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        for name in archive.namelist():
            if Path(name).name in ("evidence.json", "optimized.py"):
                (out / Path(name).name).write_bytes(archive.read(name))


if __name__ == "__main__":
    typer.run(main)
