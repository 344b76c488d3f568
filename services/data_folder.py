"""Keeps the data folder private to its owner: it holds users' sources, bundles, and key digests."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from services.errors import ServiceError

_PRIVATE = 0o700
_OTHERS = 0o077
#: Names that identify a folder as one of our data folders.
_OURS = ("kernelwright.db", "bench")


class DataFolderOpen(ServiceError):
    """The data folder cannot be used, or other users of this machine could read or change its contents."""


def make_private(folder: Path) -> str | None:
    """Create the data folder, or check that other users cannot access an existing one.

    If an existing folder is open but is empty or comes from an earlier version, its mode is set to 0700. Any other open folder
    may serve another purpose and is not changed.

    Returns:
        A sentence for the log if the mode was changed, else None.

    Raises:
        DataFolderOpen: the folder cannot be used, belongs to another user, or is open; the message says what to do.
    """
    folder = folder.expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        found = folder.stat()
        ours = not any(folder.iterdir()) or any((folder / name).exists() for name in _OURS)
    except OSError as error:
        raise DataFolderOpen(
            f"the data folder {folder} cannot be used: {error.strerror}; name another one in KERNELWRIGHT_DATA_DIR"
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise DataFolderOpen(
            f"the data folder {folder} belongs to another user (uid {found.st_uid}), who could change what is kept; "
            "name one of your own in KERNELWRIGHT_DATA_DIR"
        )
    if not mode & _OTHERS:
        return None
    if not ours:
        raise DataFolderOpen(
            f"the data folder {folder} is open to other users of this machine (mode {mode:04o}) and is to hold sources and "
            f"keys' digests: `chmod 700 {folder}`, or name another one in KERNELWRIGHT_DATA_DIR"
        )
    folder.chmod(_PRIVATE)
    return f"the data folder {folder} was open to other users of this machine (mode {mode:04o}); it is now private"
