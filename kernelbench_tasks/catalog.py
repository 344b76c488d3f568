"""The list of tasks that ship with the project.

The catalog reads task files as text and never imports them: the API process uses it and must not run any task code, not
even the project's own.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class CatalogTask:
    """One task of the catalog.

    Attributes:
        name: File name without its extension; unique across all levels.
        level: 1 for a single operation, 2 for a fusion of a few, 3 for a block or a small module.
        path: The file's path.
        title: First line of the file's docstring.
    """

    name: str
    level: int
    path: Path
    title: str

    @property
    def source(self) -> str:
        """The task file's text."""
        return self.path.read_text(encoding="utf-8")

    @property
    def sha256(self) -> str:
        """Hex digest of the UTF-8 source, by which verdicts identify a task."""
        return hashlib.sha256(self.source.encode("utf-8")).hexdigest()


@cache
def list_tasks() -> tuple[CatalogTask, ...]:
    """All tasks, ordered by level and name.

    Raises:
        ValueError: Two levels contain a task with the same name.
    """
    tasks: dict[str, CatalogTask] = {}
    for folder in sorted(_ROOT.glob("level[0-9]")):
        for path in sorted(folder.glob("*.py")):
            if path.stem == "__init__":
                continue
            if path.stem in tasks:
                raise ValueError(f"two tasks are called {path.stem!r}: {tasks[path.stem].path} and {path}")
            tasks[path.stem] = CatalogTask(
                path.stem, int(folder.name.removeprefix("level")), path, _title(path)
            )
    return tuple(sorted(tasks.values(), key=lambda task: (task.level, task.name)))


def load(name: str) -> CatalogTask:
    """Return the task named `name`.

    Raises:
        KeyError: There is no such task; the message lists the existing ones.
    """
    for task in list_tasks():
        if task.name == name:
            return task
    raise KeyError(f"no task is called {name!r}; there are: {', '.join(task.name for task in list_tasks())}")


def find_by_sha256(sha256: str) -> CatalogTask | None:
    """Return the task whose source has this digest, or None. Only such tasks rank on the global leaderboard."""
    return _by_sha256().get(sha256)


@cache
def digests() -> tuple[str, ...]:
    """Return the digests of all task sources, in the order of `list_tasks`."""
    return tuple(_by_sha256())


@cache
def _by_sha256() -> dict[str, CatalogTask]:
    """Map digests to tasks. Cached: every request needs it, and an installed catalog's files do not change."""
    return {task.sha256: task for task in list_tasks()}


def _title(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    if not docstring:
        raise ValueError(f"{path} has no docstring; a task must say what it is")
    return docstring.splitlines()[0].rstrip(".")
