"""The data folder is its owner's alone: it holds people's sources, bundles, and the digests of their keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from services.errors import ServiceError

_PRIVATE = 0o700
_OTHERS = 0o077
#: What only a data folder of ours has.
_OURS = ("kernelwright.db", "bench")


class DataFolderOpen(ServiceError):
    """Others of this machine could read, or change, what is kept."""


def make_private(folder: Path) -> str | None:
    """Makes the folder, or checks that nobody else can look into the one that is there.

    One that was made by an earlier version, or is empty, is closed; any other may be somebody's for another purpose, and is left
    as it is.

    Returns:
        A sentence for the log where something was changed.

    Raises:
        DataFolderOpen: with what to do about it.
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
