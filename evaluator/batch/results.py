"""The results of a batch: one JSON line per verdict, flushed to disk one by one, intact after any interruption.

A line is ``{"id", "line", "digest", "verdict"}``, plus ``"same_as"`` if another line of the manifest asked the
same. The last line of a name counts: a changed source is judged again and appended.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

from evaluator.verdict import Verdict, as_json

_FIRST_BYTES = b'{"id": '


class ResultsUnusable(Exception):
    """The file cannot be written, or is not a file of results; the message says why."""


class Results:
    """An open file of results, locked against a second batch.

    Args:
        path: created if missing; a last line that a crash cut short is removed.

    Raises:
        ResultsUnusable: another process writes it, it holds something else, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Latest record by its key, see :meth:`find`.
        self.records: dict[str, dict[str, Any]] = {}
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

    def _remember(self, record: dict[str, Any]) -> None:
        self.records[_key(record["id"], record["digest"])] = record

    def find(self, name: str | None, digest: str) -> dict[str, Any] | None:
        """The record that already answers a line: the same name, and the same question."""
        record = self.records.get(_key(name, digest))
        return record if record is not None and record["digest"] == digest else None

    def add(
        self,
        name: str | None,
        line: int,
        digest: str,
        verdict: Verdict,
        same_as: str | None = None,
    ) -> None:
        """Appends a verdict and waits until it is on disk. May be called from any thread.

        Raises:
            ResultsUnusable: the disk is full or broken.
        """
        record: dict[str, Any] = {"id": name, "line": line, "digest": digest}
        if same_as is not None:
            record["same_as"] = same_as
        record["verdict"] = as_json(verdict)
        data = json.dumps(record).encode() + b"\n"
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


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        good = (
            (record["id"] is None or isinstance(record["id"], str))
            and isinstance(record["digest"], str)
            and isinstance(record["verdict"]["verdict"], str)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if good else None
