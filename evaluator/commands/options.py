"""Options that several commands have, and how a file of the user is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

MinimumTier = Annotated[str, typer.Option(help="Weakest sandbox to accept: namespaces or landlock.")]
WorkDir = Annotated[Path | None, typer.Option(help="Folder for caches and stored results.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Judge again even if a verdict is stored.")]
TaskFile = Annotated[
    Path, typer.Argument(help="Task file: Model, get_inputs, get_init_inputs, perhaps DIMS.")
]
errors = Console(stderr=True)


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
        typer.Exit: it cannot be read, which has been said.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        errors.print(f"cannot read {path}: {error}", markup=False)
        raise typer.Exit(2) from None
