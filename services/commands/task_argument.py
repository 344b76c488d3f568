"""The argument TASK of several commands: a file, or the name of a task of the catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

EXIT_USAGE = 2


def task_field(task: str) -> dict[str, str]:
    """The fields of a request that name `task`: the text of a file, or a name of the catalogue."""
    path = Path(task)
    if path.suffix == ".py" or path.exists():
        return {"source": text_of(path), "name": path.stem}
    return {"task": task}


def json_of(path: Path | None) -> Any:
    """A field of a request from a JSON file; ends the program with a sentence when there is none in it."""
    if path is None:
        return None
    try:
        return json.loads(text_of(path))
    except ValueError as error:
        Console(stderr=True).print(f"[red]no JSON in[/] {path}: {error}")
        raise typer.Exit(EXIT_USAGE) from None


def text_of(path: Path) -> str:
    """A file's text; ends the program with a sentence when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        Console(stderr=True).print(f"[red]cannot read[/] {path}: {error}")
        raise typer.Exit(EXIT_USAGE) from None
