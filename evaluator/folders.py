"""Where a referee stores its files."""

from __future__ import annotations

import os
from pathlib import Path


def default_work_dir() -> Path:
    """Folder for compile caches: ``$XDG_CACHE_HOME/kernelwright/referee`` or below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kernelwright" / "referee"


def verdicts_folder(work_dir: Path) -> Path:
    """Where a referee with this work folder stores its verdicts."""
    return work_dir / "verdicts"
