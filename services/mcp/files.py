"""Reading what a coding agent names: files below one folder, and nothing else of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernelbench_tasks import catalog

MOST_BYTES = 1_000_000


class Refused(Exception):
    """What was asked for is not given; the text says why and what would be."""


class Folder:
    """The folder that may be read.

    Args:
        root: it must exist.
        hidden: a file that is not there for whoever asks: the one with the service's key.
    """

    def __init__(self, root: Path, hidden: Path | None = None) -> None:
        self.root = root.resolve(strict=True)
        self._hidden = hidden.resolve() if hidden is not None else None
        if not self.root.is_dir():
            raise NotADirectoryError(f"{root} is no folder")

    def text_of(self, name: str) -> str:
        """A file's text.

        A name may be relative to the folder. Links are followed, and must end within it. Whoever can swap folders
        beside this program while it opens a file could mislead it, but could read the file as well.

        Raises:
            Refused: it lies elsewhere, or is no plain file of text.
        """
        if "\x00" in name:
            raise Refused("a file's name holds no NUL")
        try:
            path = (self.root / name).resolve(strict=True)
        except (OSError, RuntimeError):
            path = None
        # Whether a file elsewhere exists is not told either.
        if path is None or path == self._hidden or not path.is_relative_to(self.root):
            raise Refused(f"there is no file {name[:200]!r} in the folder that this server may read")
        try:
            # Not blocking: a pipe or a device would hold the server up.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"{name[:200]!r} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise Refused(f"{name[:200]!r} is no plain file")
        with os.fdopen(handle, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise Refused(f"{name[:200]!r} is larger than {MOST_BYTES} bytes")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(f"{name[:200]!r} is no text in UTF-8") from None

    def task(self, task: str | None, source: str | None) -> tuple[str, str]:
        """A task's name and text: of a file, of the catalogue, or as given.

        Raises:
            Refused: neither or both are given, or there is no such task.
        """
        if (task is None) == (source is None):
            raise Refused(
                "give exactly one of `task` (a file, or a name of the catalogue) and `task_source` (its text)"
            )
        if source is not None:
            return "task", source
        assert task is not None
        if task.endswith(".py") or "/" in task:
            return Path(task).stem, self.text_of(task)
        try:
            return task, catalog.load(task).source
        except KeyError as error:
            raise Refused(str(error.args[0])) from None
