"""`lint`: whether a task measures anything, and how to fix it if not."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from evaluator.commands.options import MinimumTier, TaskFile, WorkDir, errors, text_of
from evaluator.counting import counted
from evaluator.description import LintReport
from evaluator.errors import EvaluatorError
from evaluator.shapes.inference.declaring import told
from evaluator.sources import TaskSource

_COLORS = {"error": "red", "warning": "yellow"}


def lint(
    task: TaskFile,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on standard output.")] = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: WorkDir = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Lint again even if a report is stored.")] = False,
) -> None:
    """Check whether a task measures anything. Exit status: 0 usable, 1 refused, 2 could not check."""
    from evaluator.client import Referee

    source = TaskSource(task.stem, text_of(task))
    try:
        with Referee(device, minimum_tier=minimum_tier, work_dir=work_dir) as referee:
            report = referee.lint(source, fresh=fresh)
    except EvaluatorError as error:
        errors.print(f"could not lint: {error}", markup=False)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(
            json.dumps(
                {name: value for name, value in report.as_json().items() if name != "source"}, indent=2
            )
        )
    else:
        print_report(Console(), report)
    raise typer.Exit({"": 0, "task_rejected": 1}.get(report.verdict, 2))


def print_report(console: Console, report: LintReport) -> None:
    """Prints a report as lines."""
    state = "usable" if report.ok else report.verdict
    console.print(f"[bold {'green' if report.ok else 'red'}]{state}[/]: ", end="")
    words = f"{report.task['name']}, {counted(len(report.findings), 'finding')}, {report.elapsed_s:.1f} s"
    console.print(words, markup=False, highlight=False)
    for finding in report.findings:
        console.print(f"  [{_COLORS[finding.severity]}]{finding.severity}[/] {finding.rule}: ", end="")
        console.print(f"{finding.sentence}.", markup=False, highlight=False)
        console.print(f"    To fix it: {finding.mending}.", markup=False, highlight=False)
    remarks = (one for fact in report.facts for name in ("inputs", "untested") for one in fact.get(name, ()))
    for remark in dict.fromkeys(remarks):
        console.print(f"  {remark}.", markup=False, highlight=False)
    for line in told(report.inferred) if report.inferred else ():
        console.print(f"  {line}", markup=False, highlight=False)
