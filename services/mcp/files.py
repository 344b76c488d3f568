"""Reads files for a coding agent, only from below one folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mcp.server.mcpserver.exceptions import ToolError

from kernelbench_tasks import catalog

MOST_BYTES = 1_000_000


class Refused(ToolError):
    """The request was refused; the agent reads the message, which says why and what is allowed."""


class Folder:
    """The folder that the agent may read.

    Args:
        root: the folder; it must exist.
        hidden: a file to treat as missing: the one with the service's key.
    """

    def __init__(self, root: Path, hidden: Path | None = None) -> None:
        self.root = root.resolve(strict=True)
        self._hidden = hidden.resolve() if hidden is not None else None
        if not self.root.is_dir():
            raise NotADirectoryError(f"{root} is no folder")

    def text_of(self, name: str) -> str:
        """Return a file's text.

        The name may be relative to the folder. Links are followed and must end inside it. A process that swaps folders during
        the open could redirect it, but such a process could also read the file itself.

        Raises:
            Refused: the file is outside the folder, or not a regular text file.
        """
        if "\x00" in name:
            raise Refused("a file's name holds no NUL")
        try:
            path = (self.root / name).resolve(strict=True)
        except (OSError, RuntimeError):
            path = None
        # The same message for all cases: do not reveal whether a file elsewhere exists.
        if path is None or path == self._hidden or not path.is_relative_to(self.root):
            raise Refused(f"there is no file {name[:200]!r} in the folder that this server may read")
        try:
            # O_NONBLOCK: opening a pipe or a device must not block the server.
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
        """Return a task's name and text, from a file, the catalogue, or `source`.

        Raises:
            Refused: neither or both arguments are given, or there is no such task.
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
