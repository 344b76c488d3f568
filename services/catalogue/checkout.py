"""Finds the tasks of a KernelBench checkout: numbered files in the folders `level1` to `level4`.

All versions since v0 keep them in a folder `KernelBench`; the path may be that folder or the repository around it. Files are
read as text and never imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("level1", "level2", "level3", "level4")
_NUMBERED = re.compile(r"\d+_.*\.py")
#: Suffix of old copies kept beside the version that replaced them.
_REPLACED = "_OLD"
_MOST_BYTES = 1 << 20
_DEPTH = 2


class NotKernelBench(Exception):
    """The path contains no KernelBench tasks; the message is for the user."""


@dataclass(frozen=True)
class TaskFile:
    """One file of a checkout.

    Attributes:
        name: the name to register it under.
        level: 1 to 4.
        path: the path of the file.
    """

    name: str
    level: int
    path: Path

    def read(self) -> str:
        """Return the file's text.

        Raises:
            ValueError: not text, not a regular file, or too large.
            OSError: the file cannot be read.
        """
        if not self.path.is_file() or self.path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"the file is larger than {_MOST_BYTES >> 20} MiB, or none")
        return self.path.read_text(encoding="utf-8")


def find(path: Path) -> list[TaskFile]:
    """Return all task files of a checkout, by level and number.

    Raises:
        NotKernelBench: there are none.
    """
    if not path.is_dir():
        raise NotKernelBench(f"{path} is no folder")
    found = next((files for files in map(_files, _roots(path)) if files), None)
    if found is None:
        raise NotKernelBench(
            f"{path} is no checkout of KernelBench: it has no folder level1, level2, level3 or level4 with task files "
            "(such as level1/1_Name.py)"
        )
    return found


def _roots(path: Path) -> list[Path]:
    roots, layer = [path], [path]
    for _ in range(_DEPTH):
        layer = [
            child
            for parent in layer
            for child in sorted(parent.iterdir())
            if child.is_dir() and not child.is_symlink() and not child.name.startswith(".")
        ]
        roots += layer
    # Folders of model outputs use the same level names, so search the `KernelBench` folder first.
    return sorted(roots, key=lambda root: root.name.lower() != "kernelbench")


def _files(root: Path) -> list[TaskFile]:
    found: dict[str, TaskFile] = {}
    for number, level in enumerate(LEVELS, start=1):
        folder = root / level
        names = (
            sorted(folder.glob("*.py"), key=lambda file: (_number(file), file.name))
            if folder.is_dir()
            else []
        )
        for file in names:
            if _NUMBERED.fullmatch(file.name) and not file.stem.endswith(_REPLACED) and _has_model(file):
                name = _name(number, file.stem)
                found.setdefault(name, TaskFile(name, number, file))
    return list(found.values())


def _number(file: Path) -> int:
    digits = re.match(r"\d{1,9}", file.name)
    return int(digits.group()) if digits else 0


def _has_model(file: Path) -> bool:
    """Whether the file looks like a task; an unreadable one counts, and the report lists it."""
    try:
        return file.stat().st_size > _MOST_BYTES or "Model" in file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return True


def _name(level: int, stem: str) -> str:
    return f"kb{level}_{re.sub(r'[^A-Za-z0-9]+', '_', stem).strip('_')}"[:120]
