"""What processes of a service and of PostgreSQL take from the machine, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import text

from services.db.session import Database

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Meter:
    """CPU seconds and resident megabytes of processes."""

    def __init__(self, service_pids: Sequence[int], database: Database) -> None:
        self._service_pids = service_pids
        self._postmaster: int | None = None
        if database.engine.dialect.name == "postgresql":
            with database.read() as session:
                folder = session.scalar(text("SHOW data_directory"))
            self._postmaster = int(Path(str(folder), "postmaster.pid").read_text().split()[0])

    def cpu_s(self) -> dict[str, float]:
        """So far, of the service and of all of PostgreSQL's processes."""
        server = 0.0
        if self._postmaster is not None:
            server = _cpu_s(self._postmaster, ended_children=True) + sum(
                map(_cpu_s, _children(self._postmaster))
            )
        return {"service": sum(map(_cpu_s, self._service_pids)), "postgres": server}

    def service_mb(self) -> float:
        """Resident memory of the service."""
        status = [Path(f"/proc/{pid}/status").read_text() for pid in self._service_pids]
        sizes = [
            line.split()[1] for text in status for line in text.splitlines() if line.startswith("VmRSS:")
        ]
        return sum(map(int, sizes)) / 1024


def _cpu_s(pid: int, *, ended_children: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / _TICKS_PER_S


def stolen_s() -> float:
    """What the host of a virtual machine kept for others so far, in seconds of its cores (man 5 proc, `steal`)."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / _TICKS_PER_S


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in listed]
