"""Files that are the old one or the new one, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file to write into, UTF-8, that takes the place of `path` when the block ends well, and is on the disk then.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    beside = path.with_name(f"{path.name}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
