"""The key that a command shows to a service: from where it comes. To whom it is sent, `services.client.sending` says.

Never as a word of the command line, which every process of the machine can read: from `KERNELWRIGHT_API_KEY`, or from a file.
"""

from __future__ import annotations

import os
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


def key_from(key_file: Path | None = None) -> str | None:
    """The key of a file, or else of the environment; None where there is none.

    Raises:
        KeyNotSent: the file holds none.
    """
    if key_file is None:
        return os.environ.get(KEY_VARIABLE, "").strip() or None
    try:
        key = key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyNotSent(f"the key cannot be read from {key_file}: {type(error).__name__}") from None
    if not key:
        raise KeyNotSent(f"{key_file} is empty")
    return key
