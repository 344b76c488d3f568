"""Whether the referee tells the truth: the reference against itself, and against itself made 2 % slower.

    python -m benchmarks.truth --runs 10
    python -m benchmarks.truth --device cuda --runs 50 --seconds-total 580 --json a.json
    python -m benchmarks.truth --device cuda --index 1 --runs 50 --seconds-total 580 --json b.json
    python -m benchmarks.truth merge a.json b.json --write

Each run is what `confirm` does at one shape: pairs of fresh processes until they are settled. A run that calls the
reference faster or slower than itself is a false decision. On a GPU every run is made twice: eager calls, and replays of a
CUDA graph, where a device's own time shows. The planted slowdown is a wait on the device for 2 % of the module's own
time; it is only asked of modules that the device, not the host, holds up. Modules take turns, a few runs at a time, and
what is known is written after every run, so a study may be cut, continued and made in pieces.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.shared import MEASUREMENTS, Out, environment, nth_visible, unused, write_new, write_whole
from evaluator.errors import EvaluatorError
from evaluator.referee.checking.correctness import Outcome, Rejected
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring import measure
from evaluator.referee.measuring.pairs import Timed, figure, time_in_pairs
from evaluator.referee.session.baseline_ranking import rank
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import twin
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import on_core
from evaluator.timing.statistics import median_interval
from kernelbench_tasks import catalog

_GEMM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.randn(SIZE, SIZE).to(torch.bfloat16), torch.randn(SIZE, SIZE).to(torch.bfloat16)]

def get_init_inputs():
    return []
"""
_ELEMENTWISE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        for _ in range(20):
            x = torch.tanh(x) * 1.01
        return x

def get_inputs():
    return [torch.randn(SIZE, SIZE)]

def get_init_inputs():
    return []
"""
_SLOWER = """

class ModelNew(Model):
    def forward(self, *arguments):
        result = super().forward(*arguments)
        torch.cuda._sleep(CYCLES)
        return result
"""

#: Cycles of a microsecond while an H200 or H100 is not held back; `_sleep` counts cycles.
_MHZ = 1980.0
#: What a kernel takes in a graph that only waits for no cycles (from earlier plants on an H200: 0.5 to 0.7 us).
_EMPTY_KERNEL_US = 0.6
#: Runs of one module before it is the next one's turn: opening a task takes a second.
_TURN = 3
_AA, _PLANTED, _VOID = "a/a", "2 % slower", "void"


@dataclass(frozen=True)
class Subject:
    """A module at one shape.

    Attributes:
        name: in the table.
        source: task file.
        dims: its shape.
        device_bound: whether the device holds it up on a GPU, so that 2 % of its time can be planted.
    """

    name: str
    source: str
    dims: dict[str, Any]
    device_bound: bool = False


def subjects(device: str) -> list[Subject]:
    """At least eight: below 10 us, above 1 ms, one product of matrices that throttles, one that waits for the host."""

    def of(name: str, *, device_bound: bool = False, **dims: Any) -> Subject:
        shape = ", ".join(str(value) for value in dims.values())
        return Subject(f"{name} {shape}", catalog.load(name).source, dims, device_bound)

    if device == "cpu":
        return [
            of("rmsnorm", rows=32, cols=256),
            of("softmax", rows=512, cols=512),
            of("layernorm_relu_add", rows=256, cols=1024),
            of("swiglu", rows=512, cols=1024),
            of("row_sum", rows=1024, cols=1024),
            of("cross_entropy", rows=256, classes=1024),
            Subject("gemm 256", _GEMM.replace("SIZE", "256").replace(".to(torch.bfloat16)", ""), {}),
            Subject("40 short kernels", _ELEMENTWISE.replace("SIZE", "64"), {}),
        ]
    return [
        of("row_sum", rows=64, cols=512),
        of("softmax", rows=4096, cols=2048, device_bound=True),
        of("layernorm_relu_add", rows=4096, cols=4096, device_bound=True),
        of("swiglu", rows=4096, cols=8192, device_bound=True),
        of("rmsnorm", rows=8192, cols=4096, device_bound=True),
        of("cross_entropy", rows=8192, classes=4096, device_bound=True),
        Subject("gemm 8192", _GEMM.replace("SIZE", "8192"), {}, device_bound=True),
        Subject("40 long kernels", _ELEMENTWISE.replace("SIZE", "4096"), {}, device_bound=True),
        Subject("40 short kernels", _ELEMENTWISE.replace("SIZE", "64"), {}),
    ]


class Study:
    """Runs and their records, written to a file after each.

    Args:
        core: the referee.
        path: the file.
        settings: of this piece.
        ends_at: monotonic time after which nothing begins; a run takes as long as the longest one of its module did.
    """

    def __init__(self, core: RefereeCore, path: Path, settings: dict[str, Any], ends_at: float) -> None:
        self.core = core
        self.records: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {
            "program": "benchmarks.truth",
            "piece": secrets.token_hex(8),
            "settings": settings,
            "environment": {**environment(), **core.fleet.environment()},
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "records": self.records,
        }
        self._path = path
        self._ends_at = ends_at
        self._longest_s: dict[str, float] = {}

    def turn(self, subject: Subject, runs: int, console: Console) -> bool:
        """So many runs at one subject; False when there is no time for another one."""
        core = self.core
        task = TaskSource(subject.name, subject.source)
        if not self._fits(subject):
            return False
        with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
            try:
                session = core.session(task)
                shape = self._ready(session, subject)
            except EvaluatorError as failure:
                self._void(subject, failure, console)
                return True
            for _ in range(runs):
                if not self._fits(subject):
                    return False
                began = time.monotonic()
                self._one(session, shape, subject, console)
                took_s = time.monotonic() - began
                self._longest_s[subject.name] = max(took_s, self._longest_s.get(subject.name, 0.0))
                write_whole(self._path, self.report)
        return True

    def _fits(self, subject: Subject) -> bool:
        return time.monotonic() + self._longest_s.get(subject.name, 10.0) < self._ends_at

    def _ready(self, session: TaskSession, subject: Subject) -> OpenShape:
        """The subject's shape, with the eager reference as its only baseline (at every number of threads)."""
        core = self.core
        shape = session.open({**{name: dim.default for name, dim in session.space.items()}, **subject.dims})
        if not shape.ranked:
            shape.baselines = [b for b in core.fleet.baselines() if b.mode == "eager"]
            for baseline in shape.baselines:
                session.prepare(shape.side, baseline)
            rank(session.fleet, shape)
            shape.ranked = True
        return shape

    def _one(self, session: TaskSession, shape: OpenShape, subject: Subject, console: Console) -> None:
        try:
            found = self._run(session, shape, subject, _AA, twin(session.task))
            known = found.get("captured")
            done = sum((r["subject"], r["kind"]) == (subject.name, _AA) for r in self.records) // len(found)
            if subject.device_bound and known is not None and done % self.report["settings"]["every"] == 0:
                mhz = statistics.fmean(known.clock["sm_mhz"]) if known.clock else _MHZ
                cycles = round(max(0.02 * known.candidate_us - _EMPTY_KERNEL_US, 0.0) * mhz)
                slower = CandidateSource(f"{subject.source}{_SLOWER.replace('CYCLES', str(cycles))}")
                self._run(session, shape, subject, _PLANTED, slower)
        except (Rejected, EvaluatorError) as failure:
            self._void(subject, failure, console)

    def _void(self, subject: Subject, failure: Exception, console: Console) -> None:
        console.print(f"  [red]void[/]: {subject.name}: {failure}", highlight=False)
        self.records.append({"subject": subject.name, "kind": _VOID, "why": str(failure)[:300]})

    def _run(
        self,
        session: TaskSession,
        shape: OpenShape,
        subject: Subject,
        kind: str,
        candidate: CandidateSource,
    ) -> dict[str, measure.Timing]:
        began = time.monotonic()
        gpu = self.core.fleet.gpu
        timed = Timed(shape, Outcome())
        effort = measure.effort_for("confirm", gpu=gpu)
        run = CandidateRun(self.core.fleet, session, candidate)
        time_in_pairs(session, run, [timed], effort, lambda number, at: None, captured=gpu)
        found = {"eager": figure(timed.eager)}
        if gpu and not timed.why_not:
            found["captured"] = figure(timed.captured)
        for regime, timing in found.items():
            self.records.append(
                {
                    "subject": subject.name,
                    "kind": kind,
                    "regime": regime,
                    "speedup": timing.speedup,
                    "ci95": list(timing.ci95),
                    "decision": timing.decision,
                    "candidate_us": timing.candidate_us,
                    "quads": len(timing.log_ratios),
                    "pairs": list(timing.pairs),
                    "disturbed": timing.disturbed,
                    "clock": timing.clock,
                    "elapsed_s": time.monotonic() - began,
                }
            )
        return found


def summary(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A row per subject, kind and regime, and what the bar asks for."""
    every = list(records)
    rows = []
    keys = dict.fromkeys((r["subject"], r["kind"], r.get("regime")) for r in every if r["kind"] != _VOID)
    for subject, kind, regime in keys:
        mine = [r for r in every if (r["subject"], r["kind"], r.get("regime")) == (subject, kind, regime)]
        logs = [math.log(r["speedup"]) for r in mine]
        median, low, high = median_interval(logs)
        rows.append(
            {
                "subject": subject,
                "kind": kind,
                "regime": regime,
                "runs": len(mine),
                "candidate_us": statistics.median(r["candidate_us"] for r in mine),
                "median": median,
                "ci95": [low, high],
                "sd": statistics.stdev(logs) if len(logs) > 1 else None,
                "pair_sd": _pair_sd(mine),
                "half_width": statistics.median((r["ci95"][1] - r["ci95"][0]) / 2 for r in mine),
                "pairs": statistics.fmean(len(r["pairs"]) for r in mine),
                "elapsed_s": statistics.median(r["elapsed_s"] for r in mine),
                **{
                    word: sum(r["decision"] == word for r in mine)
                    for word in ("faster", "slower", "undecided")
                },
            }
        )
    aa = [r for r in every if r["kind"] == _AA]
    planted = [r for r in every if r["kind"] == _PLANTED and r["regime"] == "captured"]
    return {
        "rows": rows,
        "aa_runs": len(aa),
        "false_decisions": sum(r["decision"] in ("faster", "slower") for r in aa),
        "aa_median": math.exp(statistics.median(math.log(r["speedup"]) for r in aa)) if aa else None,
        "aa_half_width": statistics.median((r["ci95"][1] - r["ci95"][0]) / 2 for r in aa) if aa else None,
        "planted_runs": len(planted),
        "planted_seen": sum(r["decision"] == "slower" for r in planted),
        "void": sum(r["kind"] == _VOID for r in every),
    }


def _pair_sd(records: list[dict[str, Any]]) -> float | None:
    """Standard deviation (log) between pairs of one run, over all runs."""
    variances = [
        statistics.variance(math.log(pair["speedup"]) for pair in record["pairs"])
        for record in records
        if len(record["pairs"]) > 1
    ]
    return math.sqrt(statistics.fmean(variances)) if variances else None


def show(found: dict[str, Any], console: Console) -> None:
    """Prints the table and the lines below it."""
    names = (
        "module",
        "what",
        "regime",
        "runs",
        "µs",
        "median",
        "95 % interval",
        "pairs differ",
        "half-width",
    )
    table = Table(*names, "pairs", "s", "faster", "slower", "undecided")
    for row in found["rows"]:
        table.add_row(
            row["subject"],
            row["kind"],
            row["regime"],
            str(row["runs"]),
            f"{row['candidate_us']:.1f}",
            f"{row['median']:.4f}",
            f"{row['ci95'][0]:.4f} to {row['ci95'][1]:.4f}",
            "-" if row["pair_sd"] is None else f"{row['pair_sd']:.4f}",
            f"{row['half_width']:.4f}",
            f"{row['pairs']:.1f}",
            f"{row['elapsed_s']:.1f}",
            *(str(row[word]) for word in ("faster", "slower", "undecided")),
        )
    console.print(table)
    if found["aa_runs"]:
        console.print(
            f"{found['false_decisions']} false decisions in {found['aa_runs']} A/A runs, median "
            f"{found['aa_median']:.4f}, half-width {found['aa_half_width']:.4f}; {found['planted_seen']} of "
            f"{found['planted_runs']} planted slowdowns seen (captured); {found['void']} void runs"
        )
    else:
        console.print(f"no A/A run; {found['void']} void runs")


app = typer.Typer(add_completion=False, help=__doc__)


@app.callback(invoke_without_command=True)
def study(
    context: typer.Context,
    runs: Annotated[int, typer.Option(help="A/A runs per module, each of several pairs of processes.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    index: Annotated[int | None, typer.Option(help="Which of several GPUs.")] = None,
    only: Annotated[str, typer.Option(help="Modules whose names contain one of these (commas).")] = "",
    every: Annotated[int, typer.Option(help="A planted slowdown after so many A/A runs of a module.")] = 1,
    seconds_total: Annotated[float, typer.Option(help="Ends within so many seconds.")] = 1e9,
    path: Annotated[Path | None, typer.Option("--json", help="Where runs are written as they come.")] = None,
) -> None:
    """Measure false decisions and the power to see 2 %."""
    if context.invoked_subcommand is not None:
        return
    ends_at = time.monotonic() + seconds_total - 5.0
    console = Console(width=170)
    if index is not None:
        # Before anything asks CUDA or NVML: both the referee and the processes it starts go by this.
        os.environ["CUDA_VISIBLE_DEVICES"] = nth_visible(index)
    settings = {"runs": runs, "device": device, "index": index, "every": every, "only": only}
    words = [word.strip() for word in only.split(",")]
    chosen = [s for s in subjects(device) if any(word in s.name for word in words)]
    path = path or unused(MEASUREMENTS, f"truth-{device}")
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        try:
            piece = Study(core, path, settings, ends_at)
            for begin in range(0, runs, _TURN):
                left = [piece.turn(subject, min(_TURN, runs - begin), console) for subject in chosen]
                console.print(f"{len(piece.records)} records, {ends_at - time.monotonic():.0f} s left")
                if not any(left):
                    break
        finally:
            core.close()
    show(found := summary(piece.records), console)
    write_whole(path, {**piece.report, "summary": found})
    console.print(f"wrote {path.name}")


@app.command()
def merge(
    pieces: Annotated[list[Path], typer.Argument(help="JSON files of pieces, or of tables made before.")],
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Out = MEASUREMENTS,
) -> None:
    """One table over several pieces of the same harness."""
    console = Console(width=170)
    reports = [json.loads(piece.read_text(encoding="utf-8")) for piece in pieces]
    environments = [one for report in reports for one in listed(report["environment"])]
    alike = {(one["harness"], one["device_name"], one["torch"]) for one in environments}
    if len(alike) > 1:
        raise typer.BadParameter(f"these pieces do not belong together: {sorted(alike)}")
    records = [record for report in reports for record in report["records"]]
    if len({json.dumps(record, sort_keys=True) for record in records}) < len(records):
        raise typer.BadParameter("one piece is named twice; its runs would count twice")
    show(found := summary(records), console)
    if write:
        settings = [one for report in reports for one in listed(report["settings"])]
        merged = {"settings": settings, "environment": environments, "summary": found, "records": records}
        write_new(out, f"truth-{settings[0]['device']}", {"program": "benchmarks.truth merge", **merged})


def listed(found: Any) -> list[Any]:
    """What a table has of each of its pieces, and a piece of itself."""
    return found if isinstance(found, list) else [found]


if __name__ == "__main__":
    app()
