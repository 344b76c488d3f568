"""How long one evaluation takes, by language and by what is known already, and how many a batch judges in a minute.

    python -m benchmarks.throughput --out FILE.json
    python -m benchmarks.throughput --device cuda --seconds-total 300 --out FILE.json
    python -m benchmarks.throughput --device cuda --only batch --count 60 --out FILE.json

Single evaluations are `screen` at 16 shapes of layernorm_relu_add, of which 8 are timed, in a referee whose session of the
task is warm; each is a decision of its own, not one from the store of verdicts (but for the last kind). "Again" means that
the same text was judged before, so that its compilers have nothing to do. A text that is new differs in a comment.

The batch is the mix of :mod:`benchmarks.mixed`, judged by `python -m evaluator evaluate-batch` with all that it does: one right
candidate per task first (tasks opened, baselines compiled and ranked), then the mix in a second batch, whose referees start
anew. The file is written after every step, so that what was measured stays if time runs out.
"""

from __future__ import annotations

import json
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import mixed, row_kernels
from benchmarks.shared import ROOT, Seconds, environment, quiet, row_candidate
from evaluator.devices import open_device
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import as_json
from evaluator.verdict_store import VerdictStore
from kernelbench_tasks import catalog

TASK = "layernorm_relu_add"
BARS_S = {
    "triton again": 3.0,
    "nvrtc": 4.0,
    "load_inline new": 15.0,
    "load_inline again": 3.0,
    "second submission": 1.0,
}
BATCH_BAR_PER_MINUTE = 60.0
_TORCH = """
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        return F.relu(self.norm(x)).add_(residual)
"""


@dataclass
class Report:
    """What is written, again after every step."""

    path: Path | None
    ends_at: float
    content: dict[str, Any] = field(default_factory=dict)

    def save(self) -> None:
        """Writes the file."""
        if self.path is not None:
            self.path.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    @property
    def left_s(self) -> float:
        """Seconds until the end of the time given."""
        return self.ends_at - time.monotonic()


# -- single evaluations ----------------------------------------------------------------------------------------------


class Singles:
    """Evaluates candidates for one task in one referee."""

    def __init__(self, device: str, folder: Path, report: Report, console: Console) -> None:
        self._core = RefereeCore(device, folder, "landlock", folder / "verdicts")
        self._core.fleet.warm_up()
        self._folder = folder
        self._device = device
        self._report = report
        self._console = console
        self._task = TaskSource(TASK, catalog.load(TASK).source)
        session = self._core.session(self._task)
        timed = [*session.drawn.sample("visible"), *session.drawn.sample("validation")][:8]
        self._shapes = {"visible": timed, "adversarial": session.drawn.sample("adversarial")[:8]}
        report.content["environment"] = {**environment(), **self._core.fleet.environment()}
        report.content["shapes"] = {split: len(shapes) for split, shapes in self._shapes.items()}
        report.content["single"] = {}

    def close(self) -> None:
        """Ends the referee."""
        self._core.close()

    def evaluate(self, kind: str, source: str) -> dict[str, Any]:
        """One decision, added to the report."""
        started = time.monotonic()
        verdict = self._core.evaluate(self._request(kind, source), quiet)
        return self._keep(kind, time.monotonic() - started, as_json(verdict))

    def from_store(self, kind: str, source: str) -> dict[str, Any]:
        """The same question again, as a client asks it."""
        started = time.monotonic()
        store = VerdictStore(self._folder / "verdicts")
        found = store.answer(self._request(kind, source), open_device(self._device), "landlock")
        elapsed_s = time.monotonic() - started
        verdict = as_json(found) if found else {"verdict": "none", "reason": "it is not in the store"}
        # The stages are those of the first evaluation.
        return self._keep(kind, elapsed_s, {**verdict, "stages_s": {}})

    def _request(self, kind: str, source: str) -> Request:
        candidate = CandidateSource(source, "external", kind)
        return Request(self._task, candidate, "screen", tuple(self._shapes), self._shapes, 300.0)

    def _keep(self, kind: str, elapsed_s: float, verdict: dict[str, Any]) -> dict[str, Any]:
        run = {"elapsed_s": elapsed_s, **{key: verdict.get(key) for key in ("verdict", "reason", "stages_s")}}
        if verdict["verdict"] != "accepted":
            run["detail"] = str(verdict.get("detail"))[-1500:]
        row = self._report.content["single"].setdefault(kind, {"runs": []})
        row["runs"].append(run)
        right = [one["elapsed_s"] for one in row["runs"] if one["verdict"] == "accepted"]
        row["median_s"] = statistics.median(right) if right else None
        if kind in BARS_S:
            row["bar_s"] = BARS_S[kind]
            row["of_bar"] = row["median_s"] / BARS_S[kind] if right else None
        self._report.save()
        stages = " ".join(f"{name} {seconds:.2f}" for name, seconds in (run["stages_s"] or {}).items())
        self._console.print(f"{kind}: {elapsed_s:.2f} s, {run['verdict']}; {stages}", highlight=False)
        return run


def single(singles: Singles, device: str, runs: int, report: Report) -> None:
    """Every kind, as long as there is time."""
    mark = secrets.token_hex(4)
    library = row_candidate(catalog.load(TASK).source, device)

    def new(number: int) -> str:
        return f"{mark} {number}"

    def again(kind: str, source: str) -> None:
        for _ in range(runs):
            if report.left_s > 0:
                singles.evaluate(kind, source)

    def several(kind: str, source: Callable[[int], str], count: int) -> str:
        for number in range(count):
            if report.left_s > 0:
                singles.evaluate(kind, source(number))
        return source(0)

    singles.evaluate("first of the task", f"{_TORCH}\n# {mark}\n")
    several("torch", lambda number: f"{_TORCH}\n# {new(number)} torch\n", runs)
    if device == "cuda":
        again("triton again", several("triton new", lambda n: f"{library}\n# {new(n)}\n", max(2, runs // 2)))
        several("nvrtc", lambda n: row_kernels.nvrtc(TASK, new(n)), runs)
        again("load_inline again", several("load_inline new", lambda n: row_kernels.inline(TASK, new(n)), 2))
    else:
        # The first line that the C++ compiler sees, so that the text is another one for the store of libraries, too.
        cpp = library.replace("#include", "// MARK\n#include", 1)
        again("load_inline again", several("load_inline new", lambda n: cpp.replace("MARK", new(n)), 2))
    for _ in range(runs):
        singles.from_store("second submission", f"{_TORCH}\n# {new(0)} torch\n")


def print_singles(rows: dict[str, Any], console: Console) -> None:
    """One line a kind, with the median seconds of every stage."""
    stages = list(
        dict.fromkeys(name for row in rows.values() for run in row["runs"] for name in run["stages_s"] or {})
    )
    table = Table(
        "candidate", "runs", "median s", "bar s", "of bar", *stages, title=f"screen of {TASK}, 16 + 8 shapes"
    )
    for kind, row in rows.items():
        seen = [[(run["stages_s"] or {}).get(stage, 0.0) for run in row["runs"]] for stage in stages]
        wrong = sum(run["verdict"] != "accepted" for run in row["runs"])
        table.add_row(
            kind,
            f"{len(row['runs'])}" + (f" ({wrong} not accepted)" if wrong else ""),
            f"{row['median_s']:.2f}" if row["median_s"] is not None else "",
            f"{row['bar_s']:.0f}" if "bar_s" in row else "",
            f"{row['of_bar']:.2f}" if row.get("of_bar") is not None else "",
            *(f"{statistics.median(values):.2f}" if any(values) else "" for values in seen),
        )
    console.print(table)


# -- batch -----------------------------------------------------------------------------------------------------------


def write_manifest(path: Path, candidates: list[mixed.Candidate], device: str) -> None:
    """A manifest with all sources inline."""
    with path.open("w", encoding="utf-8") as file:
        for one in candidates:
            task = {"source": catalog.load(one.task).source}
            line = {"id": one.name, "task": task, "candidate": {"source": one.source}, "device": device}
            file.write(json.dumps(line) + "\n")


def run_batch(
    folder: Path, name: str, candidates: list[mixed.Candidate], device: str, jobs: int, limit_s: float
) -> dict[str, Any]:
    """Judges them by the command; what came, when, and what it said."""
    manifest, out = folder / f"{name}.jsonl", folder / f"{name}-results.jsonl"
    write_manifest(manifest, candidates, device)
    command = [sys.executable, "-m", "evaluator", "evaluate-batch", str(manifest), "--out", str(out)]
    command += [
        "--device",
        device,
        "--work-dir",
        str(folder / "work"),
        *(["--jobs", str(jobs)] if jobs else []),
    ]
    started = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        arrivals: list[float] = []
        while process.poll() is None:
            count = out.read_bytes().count(b"\n") if out.exists() else 0
            arrivals += [round(time.monotonic() - started, 2)] * (count - len(arrivals))
            if time.monotonic() - started > limit_s:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
            time.sleep(0.05)
    elapsed_s = time.monotonic() - started
    records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    arrivals += [round(elapsed_s, 2)] * (len(records) - len(arrivals))
    return summary(candidates, records, arrivals, elapsed_s, (folder / f"{name}.log").read_text()[-2000:])


def summary(
    candidates: list[mixed.Candidate],
    records: list[dict[str, Any]],
    arrivals_s: list[float],
    elapsed_s: float,
    log: str,
) -> dict[str, Any]:
    """Rates, what held the device's clock, and every verdict that is not of the expected kind."""
    by_name = {one.name: one for one in candidates}
    rows = []
    for record, at_s in zip(records, arrivals_s, strict=True):
        one, verdict = by_name[record["id"]], record["verdict"]
        stages = verdict["stages_s"] or {}
        rows.append(
            {
                "name": one.name,
                "task": one.task,
                "kind": one.kind,
                "verdict": verdict["verdict"],
                "expected": verdict["verdict"] in one.expected,
                "reason": verdict["reason"],
                "at_s": at_s,
                "elapsed_s": verdict["elapsed_s"],
                "stages_s": stages,
                "clock_s": sum(stages.get(stage, 0.0) for stage in ("baselines", "aa", "timing")),
            }
        )
    # Before the first candidate was accepted, referees start and the first task is opened.
    warm_at_s = next((row["at_s"] for row in rows if row["verdict"] == "accepted"), elapsed_s)
    later = sum(row["at_s"] > warm_at_s for row in rows)
    return {
        "candidates": len(candidates),
        "judged": len(rows),
        "elapsed_s": elapsed_s,
        "per_minute": 60 * len(rows) / elapsed_s,
        "warm_at_s": warm_at_s,
        "per_minute_warm": 60 * later / max(elapsed_s - warm_at_s, 1e-3),
        "clock_share": sum(row["clock_s"] for row in rows) / elapsed_s,
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "unexpected": [
            f"{row['name']}: {row['verdict']}, {row['reason']}" for row in rows if not row["expected"]
        ],
        "rows": rows,
        "log": log if len(rows) < len(candidates) else "",
    }


def print_batch(title: str, found: dict[str, Any], console: Console) -> None:
    """The rates, and a line for each kind of candidate."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        kinds.setdefault(row["kind"], []).append(row)
    table = Table("kind", "judged", "as expected", "median s", "correctness s", "clock s", title=title)
    for kind, rows in sorted(kinds.items()):
        table.add_row(
            kind,
            str(len(rows)),
            str(sum(row["expected"] for row in rows)),
            f"{statistics.median(row['elapsed_s'] for row in rows):.2f}",
            f"{statistics.median(row['stages_s'].get('correctness', 0.0) for row in rows):.2f}",
            f"{statistics.median(row['clock_s'] for row in rows):.2f}",
        )
    console.print(table)
    console.print(
        f"{found['judged']} of {found['candidates']} in {found['elapsed_s']:.0f} s: {found['per_minute']:.1f} a minute in "
        f"all, {found['per_minute_warm']:.1f} after the first {found['warm_at_s']:.0f} s; the clock was held for "
        f"{100 * found['clock_share']:.0f} % of the time; {found['verdicts']}",
        highlight=False,
    )
    for words in found["unexpected"]:
        console.print(f"[red]unexpected[/]: {words}", highlight=False)


def batch(
    device: str, folder: Path, count: int, tasks: int, jobs: int, seed: int, report: Report, console: Console
) -> bool:
    """The mix; whether every verdict was of the expected kind."""
    mark = secrets.token_hex(4)
    chosen = mixed.TASKS[: max(tasks, 3)]
    first = mixed.one_per_task(device, mark, chosen)
    parts = {"prepared": first, "mix": mixed.mix(device, count, seed, mark, chosen)}
    report.content["batch"] = {"bar_per_minute": BATCH_BAR_PER_MINUTE}
    good = True
    for name, candidates in parts.items():
        if report.left_s < 5:
            console.print(f"no time is left for the batch: {name}")
            return good
        found = run_batch(folder, name, candidates, device, jobs, report.left_s)
        report.content["batch"][name] = found
        report.save()
        print_batch(f"batch on {device}: {name}", found, console)
        good = good and not found["unexpected"]
    return good


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="single or batch; both by default.")] = "",
    runs: Annotated[int, typer.Option(help="Evaluations of each kind.")] = 5,
    count: Annotated[int, typer.Option(help="Candidates of the batch.")] = 60,
    tasks: Annotated[int, typer.Option(help="Tasks that they are for, 3 to 7.")] = 7,
    jobs: Annotated[int, typer.Option(help="Referees of the batch per device; 0 lets it choose.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the mix.")] = 1,
    seconds_total: Seconds = 1e9,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Measure throughput; exit 1 when a verdict of the batch is not of the expected kind."""
    console = Console(width=180)
    report = Report(out, time.monotonic() + seconds_total)
    settings = {"device": device, "runs": runs, "count": count, "tasks": tasks, "jobs": jobs, "seed": seed}
    report.content.update(
        {"program": "benchmarks.throughput", "settings": settings, "environment": environment()}
    )
    good = True
    if only in ("", "single"):
        with tempfile.TemporaryDirectory() as folder:
            singles = Singles(device, Path(folder), report, console)
            try:
                single(singles, device, runs, report)
            finally:
                singles.close()
        print_singles(report.content["single"], console)
    if only in ("", "batch"):
        with tempfile.TemporaryDirectory() as folder:
            good = batch(device, Path(folder), count, tasks, jobs, seed, report, console)
    report.save()
    raise typer.Exit(0 if good else 1)


if __name__ == "__main__":
    typer.run(main)
