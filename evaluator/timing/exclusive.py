"""One clock at a time: processes of this machine that time, and those that only compute, agree through file locks.

Timing is exclusive, correctness and compilation are shared. A gate in front keeps a stream of shared holders from
starving a process that waits to time. Locks are advisory, die with their holder, and are seen by every referee of the
machine, whoever started it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Holds an advisory lock on an empty file that every user of the machine may lock."""
    previous = os.umask(0)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    finally:
        os.umask(previous)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


class DeviceLock:
    """The lock of one device, by name (``cpu`` or a GPU's uuid)."""

    def __init__(self, device: str) -> None:
        folder = Path(tempfile.gettempdir())
        self._gate = folder / f"kernelwright-{device}.gate"
        self._lock = folder / f"kernelwright-{device}.lock"

    @contextmanager
    def shared(self) -> Iterator[None]:
        """While we compute but do not time."""
        with file_lock(self._gate):
            lock = file_lock(self._lock, fcntl.LOCK_SH)
            lock.__enter__()
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While we time."""
        with file_lock(self._gate), file_lock(self._lock):
            yield
