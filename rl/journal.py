"""A file that only grows: one record a line, each with its checksum, so that a run killed at any instant goes on from the last whole one.

A line is `crc32 json\\n`. What a killed writer or a full disk left of a line at the file's end is cut off; anything else that does
not fit its checksum is damage, which is told and not skipped. One process writes at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl.errors import JournalError


class Journal:
    """One file of records; a context manager.

    Args:
        path: the file, made where there is none, with its folder.
        kind: what it records; the first line says so, and another kind's file is refused.
        write: False for a rank that only follows what another process writes, see `follow`.

    Raises:
        JournalError: damaged, of another kind, in use by another process, or unreadable.
    """

    def __init__(self, path: Path, kind: str, *, write: bool = True) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._kind = kind
        self._write_allowed = write
        self._read_bytes = 0
        self._lines = 0
        try:
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise JournalError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            if write:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take()
            if write:
                os.ftruncate(self._descriptor, self._read_bytes)
                if not self._lines:
                    self._extend(_line({"kind": kind}))
        except BlockingIOError:
            os.close(self._descriptor)
            raise JournalError(f"{path} is in use by another process; one run writes it at a time") from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let others have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Add records, all of them or none, and wait until they are on the disk.

        Raises:
            JournalError: the disk is full or broken; the file is as it was before.
        """
        if not self._write_allowed:
            raise JournalError(f"{self.path} is followed here; the process that writes it adds to it")
        kept = list(records)
        if kept:
            self._extend(_line({"all": kept}))
            self.records += kept

    def rewind(self, position: int) -> None:
        """Let the first so many records alone count, as of a checkpoint; what came later is made again, or was another run's.

        Raises:
            ValueError: there are fewer records.
            JournalError: the disk is full; nothing is changed.
        """
        if not 0 <= position <= len(self.records):
            raise ValueError(f"{self.path} has no position {position}; the newest is {len(self.records)}")
        if position != len(self.records):
            self._extend(_line({"rewound": position}))
            del self.records[position:]

    def follow(self) -> int:
        """Take into `records` what the process that writes has added since; how many of those before still count.

        Raises:
            JournalError: the file is damaged.
        """
        return self._take()

    def _extend(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._read_bytes + written)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._read_bytes)  # frees room, so it works on a full disk
            raise JournalError(
                f"{self.path} cannot be extended: {error.strerror}. Nothing that it held is lost; make room and resume"
            ) from None
        self._read_bytes += len(data)
        self._lines += 1

    def _take(self) -> int:
        """Read the whole lines that were not read yet; how many of the records before still count."""
        unchanged = len(self.records)
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(self._read_bytes)
            data = file.read()
        for line in data.split(b"\n")[:-1]:
            found = _record(line)
            self._lines += 1
            if found is None:
                raise JournalError(
                    f"{self.path} is damaged in line {self._lines}; restore it from a copy, or cut it off before that line"
                )
            if self._lines == 1 and found != {"kind": self._kind}:
                raise JournalError(f"{self.path} holds {found.get('kind')!r}, not {self._kind!r}")
            if self._lines > 1:
                del self.records[found.get("rewound", len(self.records)) :]
                unchanged = min(unchanged, len(self.records))
                self.records += found.get("all", [])
            self._read_bytes += len(line) + 1
        return unchanged


def _line(record: dict[str, Any]) -> bytes:
    # Escapes keep lone surrogates and line breaks of untrusted texts out of the bytes.
    text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _record(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
