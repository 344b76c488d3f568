"""Small JSON files in which a referee stores results for reuse, written completely or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def keep_json(path: Path, value: Any) -> None:
    """Writes a file, replacing an older one. If the disk is full, nothing is stored and a warning is logged."""
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps(value), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _log.warning("could not store %s: %s", path.name, error)
        part.unlink(missing_ok=True)


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
