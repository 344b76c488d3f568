"""The results of a batch: one JSON line per verdict, flushed to disk one by one, intact after any interruption.

The last line of a name counts: a changed source is judged again and appended.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.verdict import Verdict, as_json, from_json

_FIRST_BYTES = b'{"id": '


class ResultsUnusable(Exception):
    """The file cannot be written, or is not a file of results; the message says why."""


@dataclass(frozen=True)
class Record:
    """A line of the results: a verdict on one line of the manifest.

    Attributes:
        id, line, digest: of the line, as in :class:`evaluator.batch.manifest.Entry`; no id if it has no usable name.
        same_as: id of the line that asked the same and was judged for both.
    """

    id: str | None
    line: int
    digest: str
    verdict: Verdict
    same_as: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The line's keys and values."""
        shared = {} if self.same_as is None else {"same_as": self.same_as}
        line = {"id": self.id, "line": self.line, "digest": self.digest}
        return {**line, **shared, "verdict": as_json(self.verdict)}


class Results:
    """An open file of results, locked against a second batch.

    Args:
        path: created if missing; a last line that a crash cut short is removed.

    Raises:
        ResultsUnusable: another process writes it, it holds something else, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, Record] = {}
        self._guard = threading.Lock()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ResultsUnusable(f"cannot write {path}: {error.strerror}") from None
        try:
            self._lock()
            self._load()
        except OSError as error:
            self.close()
            raise ResultsUnusable(f"cannot write {path}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise ResultsUnusable(f"cannot write {self.path}: it is not a regular file")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsUnusable(
                f"another evaluate-batch is writing {self.path}; wait for it, or name another file with --out"
            ) from None

    def _load(self) -> None:
        whole = 0
        last_is_torn = False
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for number, line in enumerate(file, start=1):
                record = _read(line)
                if record is None:
                    if not line.endswith(b"\n") and _is_beginning(line):
                        break
                    raise ResultsUnusable(
                        f"{self.path} is not a file of results (see line {number}); nothing was changed in it, "
                        "name another file with --out"
                    )
                self._remember(record)
                whole += len(line)
                last_is_torn = not line.endswith(b"\n")
        os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, whole, os.SEEK_SET)
        if last_is_torn:
            os.write(self._descriptor, b"\n")

    def _remember(self, record: Record) -> None:
        self._records[_key(record.id, record.digest)] = record

    def find(self, name: str | None, digest: str) -> Record | None:
        """The record that already answers a line: the same name, and the same question."""
        record = self._records.get(_key(name, digest))
        return record if record is not None and record.digest == digest else None

    def add(self, record: Record) -> None:
        """Appends a record and waits until it is on disk. May be called from any thread.

        Raises:
            ResultsUnusable: the disk is full or broken.
        """
        data = json.dumps(record.as_json()).encode() + b"\n"
        with self._guard:
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
                os.fsync(self._descriptor)
            except OSError as error:
                raise ResultsUnusable(f"cannot write {self.path}: {error.strerror}") from None
            self._remember(record)

    def close(self) -> None:
        """Closes the file and releases its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _key(name: str | None, digest: str) -> str:
    """A line without a usable name of its own is identified by its contents."""
    return f"={digest}" if name is None else f":{name}"


def _is_beginning(line: bytes) -> bool:
    """Whether an unterminated line may be the beginning of a result line, and not a complete line of something
    else.
    """
    if not (line.startswith(_FIRST_BYTES) or _FIRST_BYTES.startswith(line)):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _read(line: bytes) -> Record | None:
    try:
        plain = json.loads(line)
        name, digest = plain["id"], plain["digest"]
        if not isinstance(name, str | None) or not isinstance(digest, str):
            return None
        return Record(name, plain["line"], digest, from_json(plain["verdict"]), plain.get("same_as"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
