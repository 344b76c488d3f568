"""Small JSON files in which a referee keeps what it would otherwise find out again: whole or not at all."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def keep_json(path: Path, value: Any) -> None:
    """Writes a file in the place of an older one; without room on the disk nothing is kept, and a warning is logged."""
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps(value), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _log.warning("%s could not be kept: %s", path.name, error)
        part.unlink(missing_ok=True)
