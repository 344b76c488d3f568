"""`shapes`: the space of shapes of a task file that declares none, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from evaluator.commands.options import MinimumTier, WorkDir, errors, text_of
from evaluator.counting import counted
from evaluator.description import Description
from evaluator.errors import EvaluatorError
from evaluator.shapes.inference.result import DEADLINE_S, Inferred, infer
from evaluator.shapes.space import ChoiceDim
from evaluator.sources import TaskSource


def shapes(
    task: Annotated[Path, typer.Argument(help="Task file: Model, get_inputs, get_init_inputs.")],
    as_json: Annotated[bool, typer.Option("--json", help="The space as JSON on standard output.")] = False,
    deadline_s: Annotated[
        float, typer.Option(min=1.0, max=600.0, help="Seconds for the search.")
    ] = DEADLINE_S,
    drawn: Annotated[
        bool,
        typer.Option(
            help="Also the shapes that would be judged on a CPU, in the file's own DIMS if it has them."
        ),
    ] = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: WorkDir = None,
) -> None:
    """Infer which sizes of a task can vary; a DIMS in the file is ignored.

    Exit status: 0 there is a space, 1 there is none, 2 unknown.
    """
    from evaluator.client import Referee

    text = text_of(task)
    try:
        with Referee("cpu", minimum_tier=minimum_tier, work_dir=work_dir) as referee:
            inferred = infer(referee, text, deadline_s)
            described = referee.describe(TaskSource(task.stem, text)) if drawn else None
    except EvaluatorError as error:
        errors.print(f"could not infer: {error}", markup=False)
        raise typer.Exit(2) from None
    if as_json:
        judged = {"shapes": described.shapes, "strata": described.strata} if described else {}
        typer.echo(json.dumps({**inferred.as_json(), "source": inferred.source, **judged}, indent=2))
    else:
        show(Console(), inferred)
        if described is not None:
            show_drawn(Console(), described)
    raise typer.Exit(0 if inferred.ok else 1)


def show(console: Console, inferred: Inferred) -> None:
    """Prints a space as a table, then in sentences what could not be varied and what else was found."""
    if not inferred.ok:
        console.print(f"no space of shapes: {inferred.reason}", markup=False, highlight=False)
    else:
        table = Table("dimension", "range", "multiple of", "default", "moves with")
        for name, dim in inferred.space.items():
            others = ", ".join(other for other in inferred.tied[name] if other != name)
            if isinstance(dim, ChoiceDim):
                table.add_row(name, ", ".join(map(str, dim.values)), "", str(dim.default), others)
            else:
                table.add_row(
                    name, f"{dim.low} to {dim.high}", str(dim.multiple_of), str(dim.default), others
                )
        console.print(table)
        console.print(
            f"{counted(inferred.probes, 'size')} tried in {inferred.elapsed_s:.1f} s; torch.export: {inferred.export}",
            markup=False,
        )
    for sentence in inferred.sentences:
        console.print(f"  {sentence}", markup=False, highlight=False)
    for name, reason in inferred.fixed.items():
        console.print(f"  {name} cannot be varied: {reason}", markup=False, highlight=False)


def show_drawn(console: Console, described: Description) -> None:
    """Prints the shapes of every public split, each with its stratum; or why there are none."""
    if not described.ok:
        console.print(f"no shapes: {described.reason}", markup=False, highlight=False)
        return
    table = Table("split", "stratum", "shape")
    for split, strata in described.strata.items():
        for stratum, dims in zip(strata, described.shapes[split], strict=True):
            table.add_row(split, stratum, ", ".join(f"{name}={value}" for name, value in dims.items()) or "-")
    console.print(table)
    console.print("held-out shapes are drawn only when they are needed", markup=False)
