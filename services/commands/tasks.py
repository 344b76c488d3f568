"""`kernelwright tasks`: the reference problems that come with the project."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="The reference problems that come with the project.")


@app.callback()
def _group() -> None:
    """The reference problems that come with the project."""


@app.command("list")
def list_tasks(as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False) -> None:
    """List the tasks; their names are what `optimize` and POST /optimize take."""
    from kernelbench_tasks import catalog

    found = catalog.list_tasks()
    if as_json:
        shown = [
            {"name": task.name, "level": task.level, "title": task.title, "sha256": task.sha256}
            for task in found
        ]
        json.dump(shown, sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table("task", "level", "what it computes")
    for task in found:
        table.add_row(task.name, str(task.level), task.title)
    Console().print(table)
