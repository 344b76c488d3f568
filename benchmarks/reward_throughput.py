"""How many distinct candidates a second the reward of `rl` judges on one device, and where the time goes.

    python -m benchmarks.reward_throughput --device cuda --referees 8 --seconds-total 200
    python -m benchmarks.reward_throughput --device cpu --referees 2 --tasks 2 --count 12

Candidates are those of :mod:`benchmarks.mixed`: half right in several languages, half wrong in realistic ways, no two alike. They come all at once,
as the completions of a training step do, and go through `rl.judges.LocalJudge`, which training uses: its referees, their walls, and a first
look at few shapes. One right candidate for each task comes before, which opens the task and compiles its baselines, and is told apart.

A stage's share is of all seconds that the referees had. `other` is what an evaluation spends outside its stages; `between` is the rest: opening a task
to see its shapes, and waiting for the next candidate. The processor's seconds are those of all processes of the container, where it tells them.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import mixed
from benchmarks.shared import MEASUREMENTS, Out, environment, gpu_name, write_new
from evaluator.devices import BACKENDS
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict
from kernelbench_tasks import catalog
from rl.config import FleetPart
from rl.judges import LocalJudge, Unjudged

_USAGE = Path("/sys/fs/cgroup/cpu.stat")


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    referees: Annotated[int, typer.Option(help="How many share the device.", min=1, max=64)] = 8,
    tasks: Annotated[int, typer.Option(help="Tasks of the mix.", min=3, max=7)] = 7,
    count: Annotated[int, typer.Option(help="Candidates.", min=1, max=4096)] = 256,
    visible: Annotated[int, typer.Option(help="Timed shapes of a first look.")] = 2,
    adversarial: Annotated[int, typer.Option(help="Other shapes of a first look.")] = 3,
    seconds_total: Annotated[float, typer.Option(help="Waits for no verdict after so many seconds.")] = 1e9,
    seed: Annotated[int, typer.Option(help="Of the mix.")] = 1,
    out: Out = MEASUREMENTS,
) -> None:
    """Measure, print tables, and write JSON."""
    if device not in BACKENDS:
        raise typer.BadParameter(f"--device {device}: use {' or '.join(BACKENDS)}")
    if device == "cuda":
        gpu_name()
    ends_at = time.monotonic() + seconds_total
    console = Console(width=170)
    settings = FleetPart.model_validate(
        {
            "device": device,
            "local_referees": referees,
            "width": count,
            "first_look": {"visible": visible, "adversarial": adversarial},
        }
    )
    mark, chosen = secrets.token_hex(4), mixed.TASKS[:tasks]
    report: dict[str, Any] = {"environment": environment(), "settings": settings.model_dump(mode="json")}
    with tempfile.TemporaryDirectory() as folder:
        judge = LocalJudge(settings, Path(folder))
        try:
            for name, candidates in (
                ("first", mixed.one_per_task(device, mark, chosen)),
                ("mix", mixed.mix(device, count, seed, mark, chosen)),
            ):
                report[name] = asyncio.run(_judged(judge, candidates, ends_at, referees))
                _print(name, report[name], console)
        finally:
            judge.close()
    write_new(out, f"reward-throughput-{device}", report)


async def _judged(
    judge: LocalJudge, candidates: list[mixed.Candidate], ends_at: float, referees: int
) -> dict[str, Any]:
    began, used = time.monotonic(), _processor_s()
    rows: list[dict[str, Any]] = []

    async def one(candidate: mixed.Candidate) -> None:
        task = TaskSource(candidate.task, catalog.load(candidate.task).source)
        try:
            verdict = await judge.judge(task, candidate.source)
        except Unjudged as error:
            rows.append(
                {
                    "name": candidate.name,
                    "kind": candidate.kind,
                    "verdict": str(error)[:200],
                    "expected": False,
                }
            )
        else:
            rows.append(_row(candidate, verdict, time.monotonic() - began))

    waiting = [asyncio.create_task(one(candidate)) for candidate in candidates]
    _, late = await asyncio.wait(waiting, timeout=max(ends_at - time.monotonic(), 0.0))
    elapsed_s = time.monotonic() - began
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    stages: dict[str, float] = defaultdict(float)
    for row in rows:
        for stage, seconds in row.get("stages_s", {}).items():
            stages[stage] += seconds
    stages["other"] = sum(row.get("elapsed_s", 0.0) for row in rows) - sum(stages.values())
    stages["between"] = referees * elapsed_s - sum(stages.values())
    return {
        "candidates": len(candidates),
        "judged": len(rows),
        "elapsed_s": elapsed_s,
        "a_second": len(rows) / elapsed_s,
        "processor_s_each": (_processor_s() - used) / max(len(rows), 1) or None,
        "stages_s": dict(stages),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "unexpected": [
            f"{row['name']}: {row['verdict']}, {row.get('reason', '')}" for row in rows if not row["expected"]
        ],
        "rows": rows,
    }


def _row(candidate: mixed.Candidate, verdict: Verdict, at_s: float) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "task": candidate.task,
        "kind": candidate.kind,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "rules": [finding.rule for finding in verdict.findings],
        "expected": verdict.verdict in candidate.expected,
        "at_s": at_s,
        "elapsed_s": verdict.elapsed_s,
        "stages_s": dict(verdict.stages_s or {}),
    }


def _processor_s() -> float:
    """Used so far by all processes of the container; 0 where that is not told."""
    try:
        told = dict(line.split() for line in _USAGE.read_text().splitlines())
    except OSError:
        return 0.0
    return int(told["usage_usec"]) / 1e6


def _print(name: str, found: dict[str, Any], console: Console) -> None:
    table = Table("stage", "seconds", "ms a candidate", "share", title=name)
    whole = sum(found["stages_s"].values())
    for stage, seconds in sorted(found["stages_s"].items(), key=lambda one: -one[1]):
        each = 1e3 * seconds / max(found["judged"], 1)
        table.add_row(stage, f"{seconds:.1f}", f"{each:.0f}", f"{100 * seconds / whole:.0f} %")
    console.print(table)
    each = found["processor_s_each"]
    told = f"{each:.1f} s of a core each; " if each else ""
    console.print(
        f"{found['judged']} of {found['candidates']} in {found['elapsed_s']:.0f} s: {found['a_second']:.2f} a second; "
        f"{told}{found['verdicts']}",
        highlight=False,
    )
    for words in found["unexpected"]:
        console.print(f"[red]unexpected[/]: {words}", highlight=False)


if __name__ == "__main__":
    main.__doc__ = __doc__  # for --help
    typer.run(main)
