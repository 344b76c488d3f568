"""What lint says of every task of the catalogue, and how long it takes.

A finding on a task of our own is a false alarm, or a task to mend. The table names each; the JSON has the whole reports and
where it ran.

    python -m benchmarks.lint --device cpu --json lint.json
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evaluator.client import Referee
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Tasks whose name contains this.")] = "",
    as_json: Annotated[Path | None, typer.Option("--json", help="Where the reports are written.")] = None,
) -> None:
    """Lints tasks one after another, each anew."""
    tasks = [task for task in catalog.list_tasks() if only in task.name]
    table = Table("task", "level", "s", "varies by", "findings")
    reports: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work_dir, Referee(device, work_dir=Path(work_dir)) as referee:
        environment = referee.self_check()["device"]
        for task in tasks:
            started = time.monotonic()
            report = referee.lint(TaskSource(task.name, task.source), fresh=True)
            elapsed_s = round(time.monotonic() - started, 2)
            del report["source"]
            reports.append({"level": task.level, "whole_s": elapsed_s, **report})
            _row(table, reports[-1])
            print(f"{task.name}: {elapsed_s} s", _rules(report), flush=True)
            if as_json is not None:
                as_json.write_text(json.dumps({"environment": environment, "reports": reports}, indent=1))
    Console(width=160).print(table)
    seconds = [report["whole_s"] for report in reports]
    refused = sum(not report["ok"] for report in reports)
    marked = sum(bool(report["findings"]) for report in reports) - refused
    print(
        f"{len(reports)} tasks: {refused} refused, {marked} marked; median {statistics.median(seconds):.1f} s, "
        f"longest {max(seconds):.1f} s"
    )


def _rules(report: dict[str, Any]) -> str:
    return ", ".join(f"{finding['severity']} {finding['rule']}" for finding in report["findings"])


def _row(table: Table, report: dict[str, Any]) -> None:
    variation = min((fact["variation"] for fact in report["facts"]), default=float("nan"))
    words = "\n".join(
        f"{finding['severity']} {finding['rule']}: {finding['sentence']}" for finding in report["findings"]
    )
    table.add_row(
        report["task"]["name"], str(report["level"]), f"{report['whole_s']:.1f}", f"{variation:.2g}", words
    )


if __name__ == "__main__":
    typer.run(main)
