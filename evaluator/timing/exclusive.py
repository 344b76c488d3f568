"""One timing run at a time: processes that time, and those that only compute, coordinate through file locks.

Timing is exclusive, correctness is shared, and work without a device takes no lock. A gate in front prevents a
stream of shared holders from starving a process that waits to time. It also tells a shared holder that another
process waits: checking a candidate takes seconds, and a timing run should not wait for the rest of them. Locks are
advisory, end with their holder, and are seen by every referee of the machine, of any user.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path


@contextmanager
def file_lock(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Holds an advisory lock on an empty file that every user of the machine may lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with suppress(PermissionError):  # another user's file already has this mode
        os.fchmod(descriptor, 0o666)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file."""
    try:
        with file_lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


class Hold:
    """A device's lock, held shared; in pauses of its choosing the holder lets others time.

    Args:
        gate: path of the gate.
        lock: path of the lock itself.
    """

    def __init__(self, gate: Path, lock: Path) -> None:
        self._gate = gate
        self._lock = lock
        self._held = self._enter()

    def _enter(self) -> AbstractContextManager[None]:
        with file_lock(self._gate):
            held = file_lock(self._lock, fcntl.LOCK_SH)
            held.__enter__()
        return held

    def wanted(self) -> bool:
        """Whether another process waits at the gate (or, rarely, has just passed it)."""
        return is_locked(self._gate)

    def give_way(self) -> None:
        """Releases the lock and takes it again when the waiting process is done.

        The caller has stopped its device work.
        """
        self.close()
        self._held = self._enter()

    def close(self) -> None:
        """Releases the lock."""
        self._held.__exit__(None, None, None)


class DeviceLock:
    """The lock of one device, by name (``cpu`` or a GPU's uuid)."""

    def __init__(self, device: str) -> None:
        folder = Path(tempfile.gettempdir())
        self._gate = folder / f"kernelwright-{device}.gate"
        self._lock = folder / f"kernelwright-{device}.lock"

    @contextmanager
    def shared(self) -> Iterator[Hold]:
        """Held for computation without timing."""
        hold = Hold(self._gate, self._lock)
        try:
            yield hold
        finally:
            hold.close()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Held for timing."""
        with file_lock(self._gate), file_lock(self._lock):
            yield
