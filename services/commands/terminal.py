"""What several commands share: their TASK argument, keys of a service, this machine's data folder, and how they print.

A key is never a word of a command line, which every process of the machine can read. All else about keys, the environment's too,
is in `services.client.sending`.
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
PlainHttp = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Send the key over http:// to another machine: whoever is between reads it."
    ),
]


class KeyNotSent(Exception):
    """A key that cannot be read; `str()` says what to do."""


def key_from(key_file: Path | None) -> str | None:
    """The key of a file; None without one: the client then takes the environment's.

    Raises:
        KeyNotSent: the file holds none.
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
    """The program's answer as JSON on standard output."""
    json.dump(value, sys.stdout, indent=indent)
    sys.stdout.write("\n")


def print_line(text: object, console: Console | None = None) -> None:
    """A sentence as it is, on standard output by default: text from strangers is no markup."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def give_up(message: str, status: int = EXIT_USAGE) -> NoReturn:
    """End the program with a sentence."""
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def wrong_fields(error: ValidationError) -> str:
    """The fields of a request that are wrong, one a line."""
    return "\n".join(
        f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()
    )


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
        give_up(f"no JSON in {path}: {error}")


def text_of(path: Path) -> str:
    """A file's text; ends the program with a sentence when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        give_up(f"cannot read {path}: {error}")


def close_data_folder(say: Console) -> None:
    """See `services.data_folder.make_private`; ends the command where the folder is another user's or open to others."""
    from services.data_folder import DataFolderOpen, make_private
    from services.settings import get_settings

    try:
        changed = make_private(get_settings().data_dir)
    except DataFolderOpen as error:
        give_up(f"refused: {error}")
    if changed:
        say.print(f"[yellow]note:[/] {changed}", highlight=False, soft_wrap=True)


def open_database(say: Console) -> Database:
    """The database of this machine's settings with the newest schema; a file in the data folder is closed to other users."""
    from services.db.session import database
    from services.db.upgrade import upgrade
    from services.settings import get_settings

    settings = get_settings()
    if (
        not settings.database_url
    ):  # a user who makes a key for PostgreSQL need not own a folder of the service
        close_data_folder(say)
    base = database(settings.database)
    upgrade(base)
    return base
