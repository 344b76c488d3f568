"""Files that are whole or not there: written beside their place, and put into it at once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_log = logging.getLogger(__name__)


@contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write into (UTF-8, or bytes) that takes the place of `path` when the block ends well, and is on the disk then.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with beside.open("wb" if binary else "w", encoding=None if binary else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def keep_json(path: Path, value: Any) -> None:
    """Writes a small file, replacing an older one. If the disk is full, nothing is stored and a warning is logged."""
    try:
        with replacing(path) as file:
            json.dump(value, file)
    except OSError as error:
        _log.warning("could not store %s: %s", path.name, error)


def seal(name: str, data: bytes) -> bytes:
    """A digest (32 bytes) over a name and its data.

    It no longer matches if the data is damaged or moved to another name.

    It does not protect against anyone with write access to the folder.
    """
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


def keep_sealed(path: Path, value: Any) -> None:
    """Writes what :func:`read_sealed` reads, as :func:`keep_json` does."""
    keep_json(path, {"seal": _seal(path, value), "value": value})


def read_sealed(path: Path) -> Any:
    """Reads what was stored under exactly this name.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is damaged, or was stored under another name.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(kept, dict) or kept.get("seal") != _seal(path, kept.get("value")):
        raise ValueError(f"{path.name} is damaged or was stored under another name")
    return kept["value"]


def _seal(path: Path, value: Any) -> str:
    return seal(path.name, json.dumps(value, sort_keys=True).encode()).hex()
