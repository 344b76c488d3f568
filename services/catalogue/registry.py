"""The folder of imported tasks below the data folder; replaced as a whole, so it is never incomplete.

Task files are read as text and never imported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluator.sources import TaskSource

_INDEX = "index.json"


@dataclass(frozen=True)
class ImportedTask:
    """A registered task.

    Attributes:
        name: the name in commands and POST bodies.
        level: 1 to 4.
        title: name of the original file.
        sha256: digest of the registered file.
        path: path of the registered file, relative to the registry's folder.
    """

    name: str
    level: int
    title: str
    sha256: str
    path: str


def folder(data_dir: Path) -> Path:
    """The folder of imported tasks."""
    return data_dir.expanduser().resolve() / "tasks" / "kernelbench"


def list_tasks(data_dir: Path) -> list[ImportedTask]:
    """List all imported tasks by level and number; empty if there are none."""
    try:
        index = json.loads((folder(data_dir) / _INDEX).read_text(encoding="utf-8"))
        return [ImportedTask(**entry) for entry in index["tasks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def load(data_dir: Path, name: str) -> TaskSource | None:
    """Load the imported task of this name; None if there is none."""
    for task in list_tasks(data_dir):
        if task.name == name:
            try:
                return TaskSource(name, (folder(data_dir) / task.path).read_text(encoding="utf-8"))
            except OSError:
                return None
    return None


def replace(
    data_dir: Path, tasks: Sequence[ImportedTask], texts: Mapping[str, str], reports: Mapping[str, Any]
) -> Path:
    """Replace all imported tasks with these.

    Args:
        data_dir: see :func:`folder`.
        tasks: the tasks to register.
        texts: the text of each task's file, by task name.
        reports: additional files, by name.

    Returns:
        The folder.
    """
    final = folder(data_dir)
    fresh, old = final.with_name("kernelbench.new"), final.with_name("kernelbench.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    for task in tasks:
        path = fresh / task.path
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[task.name], encoding="utf-8")
    for name, text in reports.items():
        (fresh / name).write_text(text, encoding="utf-8")
    index = json.dumps({"tasks": [asdict(task) for task in tasks]}, indent=1)
    (fresh / _INDEX).write_text(index, encoding="utf-8")
    if final.exists():
        final.rename(old)
    fresh.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    return final
