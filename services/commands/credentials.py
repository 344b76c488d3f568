"""The key that a command shows to a service: from where it comes, and to whom it is sent.

Never as a word of the command line, which every process of the machine can read: from `KERNELWRIGHT_API_KEY`, or from a file.
It goes to the given service alone, no redirect is followed with it, and over plain HTTP it goes to this machine alone, unless
somebody asks for that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from services.users.addresses import is_loopback

VARIABLE = "KERNELWRIGHT_API_KEY"
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="KERNELWRIGHT_API_KEY_FILE",
        help=f"File with the key of the service; else {VARIABLE} is used, if it is set.",
    ),
]
PlainHttp = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Send the key over http:// to another machine: whoever is between reads it."
    ),
]


class KeyNotSent(Exception):
    """A key that cannot be read, or must not go where it was about to; `str()` says what to do."""


def headers_for(url: str, key_file: Path | None = None, *, plain_http: bool = False) -> dict[str, str]:
    """The headers that show a key to the service at `url`; none where there is no key.

    Args:
        url: where the service is.
        key_file: file with the key, in place of the environment's.
        plain_http: send it over http:// to another machine, too.

    Raises:
        KeyNotSent: see there.
    """
    try:
        key = (
            key_file.read_text(encoding="utf-8") if key_file is not None else os.environ.get(VARIABLE, "")
        ).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyNotSent(f"the key cannot be read from {key_file}: {type(error).__name__}") from None
    if not key:
        if key_file is not None:
            raise KeyNotSent(f"{key_file} is empty")
        return {}
    if not key.isascii() or not key.isprintable() or " " in key:
        raise KeyNotSent("the key holds characters that no key has")
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or "") and not plain_http:
        raise KeyNotSent(
            f"the key is not sent to {parts.hostname} over plain HTTP, where whoever is between could read it; "
            "use https://, or say --plain-http"
        )
    return {"Authorization": f"Bearer {key}"}


def goes_directly(url: str) -> bool:
    """Whether proxies of the environment are left out: what is for this machine must not leave it."""
    return is_loopback(urlsplit(url).hostname or "")
