"""Divides a GPU's memory into parts. The referees of a machine take as many as they need, and wait for them.

A part is a lock on a file, so it is released when its holder dies. One referee at a time takes parts, behind a
gate: tasks that need few do not overtake one that needs many, and an idle referee sees at the gate that its parts
are wanted.
"""

from __future__ import annotations

import fcntl
import math
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from evaluator.timing.exclusive import file_lock, is_locked

#: Parts per device.
PARTS = 16
_LOOK_SECONDS = 0.02


class Held:
    """Parts that one referee has."""

    def __init__(self) -> None:
        self._locks = ExitStack()
        self._places: set[Path] = set()

    @property
    def count(self) -> int:
        """How many."""
        return len(self._places)

    def take(self, place: Path) -> None:
        """Adds a part, unless another process has it."""
        if place in self._places:
            return
        try:
            self._locks.enter_context(file_lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            return
        self._places.add(place)

    def close(self) -> None:
        """Releases all of them."""
        self._locks.close()
        self._places.clear()


class MemoryParts:
    """The parts of one device, by its uuid."""

    def __init__(self, device: str) -> None:
        folder = Path(tempfile.gettempdir())
        self._gate = folder / f"kernelwright-{device}-memory.gate"
        self._places = [folder / f"kernelwright-{device}-memory-{number}.lock" for number in range(PARTS)]

    def take(self, count: int, most_s: float = math.inf) -> Held | None:
        """Takes ``count`` parts as soon as all are available; None if that takes longer than ``most_s``."""
        ends_at = time.monotonic() + most_s
        while time.monotonic() <= ends_at:
            with suppress(BlockingIOError), file_lock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return self._collected(count, ends_at)
            time.sleep(_LOOK_SECONDS)
        return None

    def _collected(self, count: int, ends_at: float) -> Held | None:
        held = Held()
        try:
            while not self._add(held, count):
                if time.monotonic() > ends_at:
                    held.close()
                    return None
                time.sleep(_LOOK_SECONDS)
        except BaseException:
            held.close()
            raise
        return held

    def take_now(self, count: int) -> Held | None:
        """Takes ``count`` parts; None if they are not available, or others are waiting."""
        held = Held()
        try:
            with file_lock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if self._add(held, count):
                    return held
        except BlockingIOError:
            pass
        held.close()
        return None

    def _add(self, held: Held, count: int) -> bool:
        for place in self._places:
            if held.count < count:
                held.take(place)
        return held.count >= count

    def wanted(self) -> bool:
        """Whether a referee waits for parts."""
        return is_locked(self._gate)
