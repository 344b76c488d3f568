"""`profile`: where a task's time goes and what limits it, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evaluator.commands.ceilings import pick
from evaluator.commands.options import MinimumTier, WorkDir, errors, text_of
from evaluator.errors import EvaluatorError
from evaluator.profiling import ceilings as measuring
from evaluator.profiling.bottleneck import Diagnosis, Part
from evaluator.profiling.counters import Counters
from evaluator.profiling.profile import profile_task
from kernelbench_tasks import catalog

_SHOWN_MODULES = 12


def profile(
    task: Annotated[
        list[str],
        typer.Argument(
            help="Task file, or the name of a task of the catalogue; or, after --, a program: python train.py ..."
        ),
    ],
    device: Annotated[str, typer.Option(help="cpu or cuda; the GPU by default, if there is one.")] = "auto",
    dim: Annotated[
        list[str] | None, typer.Option(help="A size other than the file's, NAME=VALUE; may be repeated.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The diagnosis as JSON on standard output.")
    ] = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: WorkDir = None,
) -> None:
    """Show where the time of a task, or of a whole program, goes and what limits it.

    Exit status: 0, or 2 if it could not be profiled. A program runs as usual, outside the sandbox.
    """
    from evaluator.client import Referee
    from evaluator.folders import default_work_dir

    if len(task) > 1:
        _program(task, as_json=as_json)
        return
    text = _text(task[0])
    folder = work_dir or default_work_dir()
    try:
        kind = pick(device)
        rates = measuring.ceilings(folder, kind)["rates"]
        with Referee(kind, minimum_tier=minimum_tier, work_dir=folder) as referee:
            found = profile_task(referee, text, rates, device=kind, dims=_dims(dim or []), counts=True)
    except EvaluatorError as error:
        errors.print(f"could not profile: {error}", markup=False)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        show(Console(), found)


def _program(argv: list[str], *, as_json: bool) -> None:
    from evaluator.profiling.whole import profile_program

    try:
        found = profile_program(argv)
    except EvaluatorError as error:
        errors.print(f"could not profile: {error}", markup=False)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    table = Table("part or module", "share", "s", "at most")
    for row in (*found["parts"], *found["modules"][:_SHOWN_MODULES]):
        spent_s = row.get("self_s", row.get("seconds"))
        table.add_row(row["name"][:80], f"{row['share']:.1%}", f"{spent_s:.3f}", f"{row['at_most']:.2f}x")
    console.print(table)
    for sentence in found["sentences"]:
        console.print(sentence, markup=False, highlight=False)


def _text(task: str) -> str:
    path = Path(task)
    if path.suffix == ".py" or path.exists():
        return text_of(path)
    try:
        return catalog.load(task).source
    except KeyError as error:
        errors.print(str(error.args[0]), markup=False)
        raise typer.Exit(2) from None


def _dims(given: list[str]) -> dict[str, Any]:
    dims: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE")
        dims[name] = int(value) if value.lstrip("-").isdigit() else value
    return dims


def show(console: Console, found: Diagnosis) -> None:
    """Prints a diagnosis as sentences and tables."""
    for sentence in found.sentences:
        console.print(sentence, markup=False, highlight=False)
    for title, parts in (("line", found.lines), ("module", found.modules), ("kernel", found.kernels)):
        table = Table(title, "share", "us", "calls", "bound by")
        for part in parts:
            table.add_row(*_row(part))
        console.print(table)
    if found.counters is not None:
        _show_counters(console, found.counters)


def _show_counters(console: Console, counters: Counters) -> None:
    for note in counters.notes:
        console.print(note, markup=False, highlight=False)
    for kernel in counters.kernels:
        launched = "once" if kernel.launches == 1 else f"{kernel.launches} times"
        title = f"{kernel.short_name}: {kernel.share:.0%} of what ncu counted (launched {launched})"
        console.print(title, markup=False, highlight=False)
        for rule in kernel.rules:
            console.print(f"  {rule}", markup=False, highlight=False)


def _row(part: Part) -> tuple[str, ...]:
    # A name may contain what rich takes for markup.
    name = part.name.replace("[", "\\[")
    return name[:80], f"{part.share:.1%}", f"{part.seconds * 1e6:.1f}", str(part.calls), part.bound
