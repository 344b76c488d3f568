"""Where a referee stores its files."""

from __future__ import annotations

import os
from pathlib import Path

from evaluator.environment import package_version


def default_work_dir() -> Path:
    """Folder for compile caches: ``$XDG_CACHE_HOME/kernelwright/referee`` or below ``~/.cache``."""
    return _cache() / "referee"


def headers_folder() -> Path:
    """Folder of Inductor's precompiled C++ headers for this torch."""
    return _cache() / f"headers-{package_version('torch') or 'none'}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")) / "kernelwright"


def verdicts_folder(work_dir: Path) -> Path:
    """Where a referee with this work folder stores its verdicts."""
    return work_dir / "verdicts"
