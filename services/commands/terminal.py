"""What commands share: arguments and options, service keys, the data folder, and output.

A key is never a command-line argument, since every process on the machine can read those. `services.client.sending` handles
everything else about keys, including the environment's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from services.client.sending import KEY_VARIABLE

if TYPE_CHECKING:
    from services.db.session import Database

EXIT_USAGE = 2
AsJson = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="KERNELWRIGHT_API_KEY_FILE",
        help=f"File with the key of the service; else {KEY_VARIABLE} is used, if it is set.",
    ),
]
Task = Annotated[str, typer.Argument(help="A task file, or the name of a task of the catalogue.")]
Bundle = Annotated[Path, typer.Argument(help="A bundle: the zip, or the folder unpacked from it.")]
BudgetUsd = Annotated[float | None, typer.Option(help="US dollars for model calls.")]
BudgetCandidates = Annotated[int | None, typer.Option(help="How many candidates are judged.")]
Traffic = Annotated[
    Path | None, typer.Option(help='Your own shapes as JSON: [{"dims": {"rows": 4}, "weight": 12}, ...].')
]
Space = Annotated[
    Path | None, typer.Option(help='Instead of sizes that are inferred, as JSON: {"rows": {"max": 64}, ...}.')
]
MinimumTier = Annotated[str, typer.Option(help="Weakest sandbox to accept: namespaces or landlock.")]
PlainHttp = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Send the key over http:// to another machine: any machine between can read it."
    ),
]


class KeyNotSent(Exception):
    """The key cannot be read; `str()` says what to do."""


def key_from(key_file: Path | None) -> str | None:
    """Read the key from a file; None without a file, and the client then uses the environment's.

    Raises:
        KeyNotSent: the file contains no usable key.
    """
    if key_file is None:
        return None
    try:
        key = key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyNotSent(f"the key cannot be read from {key_file}: {type(error).__name__}") from None
    if not key:
        raise KeyNotSent(f"{key_file} is empty")
    return key


def print_json(value: Any, indent: int | None = None) -> None:
    """Print JSON on standard output."""
    json.dump(value, sys.stdout, indent=indent)
    sys.stdout.write("\n")


def print_line(text: object, console: Console | None = None) -> None:
    """Print text literally, by default on standard output; untrusted text must not act as markup."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def give_up(message: str, status: int = EXIT_USAGE) -> NoReturn:
    """Print a message to standard error and exit."""
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def wrong_fields(error: ValidationError) -> str:
    """List the invalid fields of a request, one per line."""
    return "\n".join(
        f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()
    )


def task_field(task: str) -> dict[str, str]:
    """Request fields for `task`: the text of a file, or a catalogue name."""
    path = Path(task)
    if path.suffix == ".py" or path.exists():
        return {"source": text_of(path), "name": path.stem}
    return {"task": task}


def json_of(path: Path | None) -> Any:
    """Load JSON from a file; exit with a message if it is invalid. None without a file."""
    if path is None:
        return None
    try:
        return json.loads(text_of(path))
    except ValueError as error:
        give_up(f"no JSON in {path}: {error}")


def text_of(path: Path) -> str:
    """Read a text file; exit with a message on failure."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        give_up(f"cannot read {path}: {error}")


def close_data_folder(say: Console) -> None:
    """Call `services.data_folder.make_private`; exit if the folder belongs to another user or is open to others."""
    from services.data_folder import DataFolderOpen, make_private
    from services.settings import get_settings

    try:
        changed = make_private(get_settings().data_dir)
    except DataFolderOpen as error:
        give_up(f"refused: {error}")
    if changed:
        say.print(f"[yellow]note:[/] {changed}", highlight=False, soft_wrap=True)


def open_database(say: Console) -> Database:
    """Open the configured database and upgrade its schema; makes the data folder private if the database is a file in it."""
    from services.db.upgrade import newest
    from services.settings import get_settings

    settings = get_settings()
    if not settings.database_url:  # with PostgreSQL, the user need not own the data folder
        close_data_folder(say)
    return newest(settings.database)
