"""Whether the referee tells the truth: the reference against itself, and against itself made 2 % slower.

    python -m benchmarks.truth --runs 10
    python -m benchmarks.truth --device cuda --runs 50 --write

Each run has processes of its own for both sides. A run that calls the reference faster or slower than itself is a false
decision. On a GPU every run is made twice: eager calls, and replays of a CUDA graph, where a device's own time shows.
The planted slowdown is a wait on the device for 2 % of the module's own time; it is only asked of modules that
the device, not the host, holds up.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exemplars_cpu import ROOT, environment
from benchmarks.referee import unused
from evaluator.errors import EvaluatorError
from evaluator.referee import measure
from evaluator.referee.candidate import CandidateRun
from evaluator.referee.captured import measure_captured
from evaluator.referee.control import Control, twin
from evaluator.referee.core import RefereeCore
from evaluator.referee.correctness import Outcome, Rejected, cases, check
from evaluator.referee.open_shape import OpenShape
from evaluator.referee.task_session import TaskSession
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
_HOST_BOUND = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        for _ in range(20):
            x = torch.tanh(x) * 1.01
        return x

def get_inputs():
    return [torch.randn(64, 64)]

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
    """Eight of them: short, long, one product of matrices, one that waits for the host."""

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
            Subject("20 short calls", _HOST_BOUND, {}),
        ]
    return [
        of("rmsnorm", rows=64, cols=512),
        of("softmax", rows=4096, cols=2048, device_bound=True),
        of("layernorm_relu_add", rows=4096, cols=4096, device_bound=True),
        of("swiglu", rows=16384, cols=8192, device_bound=True),
        of("row_sum", rows=8192, cols=4096, device_bound=True),
        of("cross_entropy", rows=8192, classes=4096, device_bound=True),
        Subject("gemm 8192", _GEMM.replace("SIZE", "8192"), {}, device_bound=True),
        Subject("20 short calls", _HOST_BOUND, {}),
    ]


def one_run(
    session: TaskSession, shape: OpenShape, candidate: CandidateSource, effort: measure.Effort
) -> dict[str, measure.Timing]:
    """Times a candidate against the eager reference, each in a new process; by regime."""
    run, control = CandidateRun(session.fleet, session, candidate), Control(session.fleet, session)
    try:
        run.start()
        side, outcome = run.open(shape), Outcome()
        check(side, shape, cases(session, shape, [])[:1], outcome)
        eager = measure.measure(session, shape, side, control.rivals(shape), outcome, [], effort)
        found = {"eager": eager}
        if session.fleet.gpu:
            captured = measure_captured(session, shape, side, control, outcome, [], effort, eager)
            if not isinstance(captured, str):
                found["captured"] = captured
        return found
    finally:
        run.close()
        control.close()


def study(
    core: RefereeCore, subject: Subject, runs: int, effort: measure.Effort, console: Console
) -> list[dict[str, Any]]:
    """All runs at one subject; a record per run and regime."""
    task = TaskSource(subject.name, subject.source)
    session = core.session(task)
    shape = session.open({**{name: dim.default for name, dim in session.space.items()}, **subject.dims})
    count = core.fleet.threads
    shape.baselines = [b for b in core.fleet.baselines() if b.mode == "eager" and b.threads == count]
    records: list[dict[str, Any]] = []

    def keep(kind: str, found: dict[str, measure.Timing]) -> None:
        for regime, timing in found.items():
            records.append(
                {
                    "subject": subject.name,
                    "kind": kind,
                    "regime": regime,
                    "speedup": timing.speedup,
                    "ci95": list(timing.ci95),
                    "decision": timing.decision,
                    "candidate_us": timing.candidate_us,
                    "quads": len(timing.log_ratios),
                    "disturbed": timing.disturbed,
                }
            )

    with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
        for baseline in shape.baselines:
            session.prepare(shape.side, baseline)
        session.rank(shape)
        for index in range(runs):
            console.print(f"  {subject.name}: run {index + 1} of {runs}", highlight=False)
            try:
                found = one_run(session, shape, twin(task), effort)
                keep("a/a", found)
                if subject.device_bound and "captured" in found:
                    cycles = round(0.02 * found["captured"].candidate_us * _MHZ)
                    slower = f"{subject.source}{_SLOWER.replace('CYCLES', str(cycles))}"
                    keep("2 % slower", one_run(session, shape, CandidateSource(slower), effort))
            except (Rejected, EvaluatorError) as failure:
                console.print(f"  [red]void[/]: {failure}", highlight=False)
                records.append({"subject": subject.name, "kind": "void", "why": str(failure)[:300]})
    return records


def summary(records: list[dict[str, Any]], console: Console) -> list[dict[str, Any]]:
    """Prints and returns a row per subject, kind and regime."""
    rows = []
    table = Table(
        "module", "what", "regime", "runs", "µs", "median", "95 % interval", "half-width", "faster", "slower"
    )
    keys = dict.fromkeys((r["subject"], r["kind"], r.get("regime")) for r in records if r["kind"] != "void")
    for subject, kind, regime in keys:
        mine = [r for r in records if (r["subject"], r["kind"], r.get("regime")) == (subject, kind, regime)]
        median, low, high = median_interval([math.log(r["speedup"]) for r in mine])
        half = statistics.median((r["ci95"][1] - r["ci95"][0]) / 2 for r in mine)
        row = {
            "subject": subject,
            "kind": kind,
            "regime": regime,
            "runs": len(mine),
            "candidate_us": statistics.median(r["candidate_us"] for r in mine),
            "median": median,
            "ci95": [low, high],
            "half_width": half,
            "faster": sum(r["decision"] == "faster" for r in mine),
            "slower": sum(r["decision"] == "slower" for r in mine),
        }
        rows.append(row)
        table.add_row(
            subject,
            kind,
            regime,
            str(len(mine)),
            f"{row['candidate_us']:.1f}",
            f"{median:.4f}",
            f"{low:.4f} to {high:.4f}",
            f"{half:.4f}",
            str(row["faster"]),
            str(row["slower"]),
        )
    console.print(table)
    return rows


def main(
    runs: Annotated[int, typer.Option(help="A/A runs per module, each with processes of its own.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Modules whose names contain this.")] = "",
    seconds: Annotated[float, typer.Option(help="Longest time of one measurement.")] = 3.5,
    limit: Annotated[float, typer.Option(help="Begin no new module after so many seconds.")] = 1e9,
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the JSON.")] = ROOT / "docs" / "measurements",
) -> None:
    """Measure false decisions and the power to see 2 %."""
    console = Console(width=140)
    base = measure.EFFORTS["confirm"]
    effort = measure.Effort(base.looks, base.half_width, seconds, base.until_decided, base.blocks)
    started = time.monotonic()
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        facts = core.fleet.environment()
        try:
            for subject in subjects(device):
                if only in subject.name and time.monotonic() - started < limit:
                    records += study(core, subject, runs, effort, console)
        finally:
            core.close()
    rows = summary(records, console)
    aa = [record for record in records if record["kind"] == "a/a"]
    false = sum(record["decision"] in ("faster", "slower") for record in aa)
    planted = [
        record for record in records if record["kind"] == "2 % slower" and record["regime"] == "captured"
    ]
    seen = sum(record["decision"] == "slower" for record in planted)
    console.print(
        f"{false} false decisions in {len(aa)} A/A runs; {seen} of {len(planted)} planted slowdowns seen (captured)"
    )
    if write:
        path = unused(out / f"{datetime.now(UTC):%Y-%m-%d}-truth-{device}.json")
        report = {
            "program": "benchmarks.truth",
            "settings": {"runs": runs, "device": device, "seconds": seconds, "only": only},
            "environment": {**environment(), **facts},
            "summary": rows,
            "false_decisions": [false, len(aa)],
            "planted_seen": [seen, len(planted)],
            "records": records,
        }
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {path.name}")


if __name__ == "__main__":
    typer.run(main)
