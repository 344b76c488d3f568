"""`profile`: where a task's time goes and what holds it back, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evaluator.commands.ceilings import pick
from evaluator.errors import EvaluatorError
from evaluator.profiling import ceilings as measuring
from evaluator.profiling.diagnosis import Diagnosis, Part
from evaluator.profiling.profile import profile_task
from kernelbench_tasks import catalog

_errors = Console(stderr=True)


def profile(
    task: Annotated[str, typer.Argument(help="Task file, or the name of a task of the catalogue.")],
    device: Annotated[
        str, typer.Option(help="cpu or cuda; the GPU by default, where there is one.")
    ] = "auto",
    dim: Annotated[
        list[str] | None, typer.Option(help="A size other than the file's, NAME=VALUE; may be repeated.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The diagnosis as JSON on standard output.")
    ] = False,
    minimum_tier: Annotated[
        str, typer.Option(help="Weakest sandbox to accept: namespaces or landlock.")
    ] = "landlock",
    work_dir: Annotated[Path | None, typer.Option(help="Folder for caches.")] = None,
) -> None:
    """Say where a task's time goes and what holds it back. Exit status: 0, or 2 if it could not be profiled."""
    from evaluator.client import Referee, default_work_dir

    text = _text(task)
    folder = work_dir or default_work_dir()
    try:
        kind = pick(device)
        rates = measuring.ceilings(folder, kind)["rates"]
        with Referee(kind, minimum_tier=minimum_tier, work_dir=folder) as referee:
            found = profile_task(referee, text, rates, device=kind, dims=_dims(dim or []))
    except EvaluatorError as error:
        _errors.print(f"could not profile: {error}", markup=False)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        show(Console(), found)


def _text(task: str) -> str:
    path = Path(task)
    try:
        if path.suffix == ".py" or path.exists():
            return path.read_text(encoding="utf-8")
        return catalog.load(task).source
    except (OSError, UnicodeDecodeError, KeyError) as error:
        _errors.print(f"cannot read {task}: {error}", markup=False)
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
    """A diagnosis as sentences and tables."""
    for sentence in found.sentences:
        console.print(sentence, markup=False, highlight=False)
    for title, parts in (("line", found.lines), ("module", found.modules), ("kernel", found.kernels)):
        table = Table(title, "share", "us", "calls", "bound by")
        for part in parts:
            table.add_row(*_row(part))
        console.print(table)


def _row(part: Part) -> tuple[str, ...]:
    # A name may hold what rich takes for markup.
    name = part.name.replace("[", "\\[")
    return name[:80], f"{part.share:.1%}", f"{part.seconds * 1e6:.1f}", str(part.calls), part.bound
