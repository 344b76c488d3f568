"""An append-only file of records with a checksum per line; a run killed at any time resumes from the last complete line.

A line is `crc32 json\\n`. A partial line at the end, left by a killed writer or a full disk, is cut off. Any other line that does not
match its checksum is damage and raises an error. One process writes at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from rl.errors import JournalError


class Journal:
    """One file of records; a context manager. A database is a subclass that builds its state from the records by `_note`.

    Args:
        path: the file; created with its folder if missing.
        kind: the kind of records; stored in the first line, and a file of another kind is refused.
        write: False for a rank that only follows another process's writes, see `follow`.

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
        self._forget()
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
            self.follow()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records atomically and wait until they are on disk.

        Raises:
            JournalError: the disk is full or broken; the file is unchanged.
        """
        if not self._write_allowed:
            raise JournalError(f"{self.path} is followed here; the process that writes it adds to it")
        kept = list(records)
        if kept:
            self._extend(_line({"all": kept}))
            self._add(kept)

    def rewind(self, position: int) -> None:
        """Discard records after a checkpoint's position; the run makes them again, or they were another run's.

        Raises:
            ValueError: there are fewer records than `position`.
            JournalError: the disk is full; nothing is changed.
        """
        if not 0 <= position <= len(self.records):
            raise ValueError(f"{self.path} has no position {position}; the newest is {len(self.records)}")
        if position != len(self.records):
            self._extend(_line({"rewound": position}))
            self._cut(position)

    def _forget(self) -> None:
        """Empty the state that a subclass builds from the records."""

    def _note(self, record: dict[str, Any]) -> None:
        """Add a record to that state; `KeyError`, `TypeError` and `ValueError` mean that the record is invalid."""

    def _add(self, records: list[dict[str, Any]]) -> None:
        self.records += records
        for record in records:
            try:
                self._note(record)
            except (KeyError, TypeError, ValueError) as error:
                raise JournalError(f"{self.path} holds a record that makes no sense: {error!r}") from None

    def _cut(self, position: int) -> None:
        left = self.records[:position]
        self.records.clear()
        self._forget()
        self._add(left)

    def _extend(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._read_bytes + written)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._read_bytes)  # frees space, so it works on a full disk
            raise JournalError(
                f"{self.path} cannot be extended: {error.strerror}. Nothing that it held is lost; make room and resume"
            ) from None
        self._read_bytes += len(data)
        self._lines += 1

    def follow(self) -> None:
        """Read the complete lines that the writing process has appended since.

        Raises:
            JournalError: the file is damaged.
        """
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
                if "rewound" in found:
                    self._cut(found["rewound"])
                self._add(found.get("all", []))
            self._read_bytes += len(line) + 1


def _line(record: dict[str, Any]) -> bytes:
    # ASCII escapes keep lone surrogates and line breaks of untrusted text out of the file.
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
