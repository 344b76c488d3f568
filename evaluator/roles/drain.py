"""Reads the output of an untrusted process: keeps the last part, and kills the process if there is too much."""

from __future__ import annotations

import os
import threading
from typing import Any

_KEPT_OUTPUT_BYTES = 64 << 10
MAX_OUTPUT_BYTES = 16 << 20


class OutputDrain:
    """Reads what a process prints, keeps the last 64 KiB, and kills the process if it prints too much."""

    def __init__(self, descriptor: int, on_flood: Any) -> None:
        self._descriptor = descriptor
        self._on_flood = on_flood
        self.kept = b""
        self.total_bytes = 0
        self.flooded = False
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0) as source:
            while chunk := source.read(1 << 16):
                self.total_bytes += len(chunk)
                self.kept = (self.kept + chunk)[-_KEPT_OUTPUT_BYTES:]
                if self.total_bytes > MAX_OUTPUT_BYTES and not self.flooded:
                    self.flooded = True
                    self._on_flood()

    def text(self) -> str:
        """The last part of its output (untrusted)."""
        self._thread.join(timeout=0.5)
        return self.kept.decode("utf-8", "replace")
