"""The key file of commands that ask a service. All else about keys, the environment's too, is `services.client.sending`'s.

A key is never a word of a command line, which every process of the machine can read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.client.sending import KEY_VARIABLE

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
