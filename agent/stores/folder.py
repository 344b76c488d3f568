"""A job store in a plain folder, for `kernelwright optimize` and for tests.

    candidates/00001-<sha256>.json    in order of arrival
    verdicts/<sha256>.<phase>.json
    steps/<name>.json
    events.jsonl                      one event per line
    stop                              present if the job must stop; its text is the reason

Every file is written under a temporary name, flushed to disk and then linked into place, so a reader (or the same job
after a SIGKILL) sees a complete file or none. A lock file lets a second process add external candidates concurrently.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from agent.candidates import Candidate
from agent.errors import StoreCorrupt
from agent.store import PHASES, worked_s
from evaluator.verdict import Verdict, as_json, from_json

_CANDIDATE_FILE = re.compile(r"(\d{5,})-([0-9a-f]{64})\.json")


class FolderStore:
    """`agent.store.JobStore` on a folder.

    Args:
        folder: created if missing; an existing one is resumed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("candidates", "verdicts", "steps"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def candidates(self) -> list[Candidate]:
        """See `JobStore.candidates`."""
        return [self._read_candidate(path) for _, _, path in self._candidate_files()]

    def add_candidate(self, candidate: Candidate) -> bool:
        """See `JobStore.add_candidate`."""
        with self._lock():
            files = self._candidate_files()
            if any(sha256 == candidate.sha256 for _, sha256, _ in files):
                return False
            number = files[-1][0] + 1 if files else 1
            path = self.folder / "candidates" / f"{number:05d}-{candidate.sha256}.json"
            return self._write_new(path, dataclasses.asdict(candidate))

    def verdict(self, sha256: str, phase: str) -> Verdict | None:
        """See `JobStore.verdict`."""
        value = self._read(self._verdict_path(sha256, phase))
        return from_json(value) if isinstance(value, dict) else None

    def add_verdict(self, sha256: str, phase: str, verdict: Verdict) -> bool:
        """See `JobStore.add_verdict`."""
        return self._write_new(self._verdict_path(sha256, phase), as_json(verdict))

    def step(self, name: str) -> object | None:
        """See `JobStore.step`."""
        return self._read(self._step_path(name))

    def finish_step(self, name: str, value: object) -> None:
        """See `JobStore.finish_step`."""
        self._write_new(self._step_path(name), value)

    def steps(self, prefix: str) -> dict[str, object]:
        """See `JobStore.steps`."""
        begin = quote(prefix, safe=" ")
        names = sorted(one for one in os.listdir(self.folder / "steps") if one.startswith(begin))
        found: dict[str, object] = {}
        for name in names:
            if name.endswith(".json"):
                found[unquote(name.removesuffix(".json"))] = self._read(self.folder / "steps" / name)
        return found

    def event(self, name: str, data: dict[str, Any]) -> None:
        """See `JobStore.event`."""
        with self._lock(), open(self._events_path, "ab+") as file:
            file.seek(0)
            lines = file.read().splitlines()
            occasion = _occasion(data) if name == "budget.spent" else None
            if occasion is not None:
                needle = json.dumps(data["request"]).encode()
                told = (
                    event for event in map(_event_in, [line for line in lines if needle in line]) if event
                )
                if any(one["name"] == name and _occasion(one["data"]) == occasion for one in told):
                    return
            last = next((event for event in map(_event_in, reversed(lines)) if event), None)
            number = last["id"] + 1 if last else 1
            if file.tell() and not self._ends_with_newline(file):  # a killed writer left half a line
                file.write(b"\n")
            event = {"id": number, "time": datetime.now(UTC).isoformat(), "name": name, "data": data}
            file.write(json.dumps(event).encode() + b"\n")

    def events(self) -> list[dict[str, Any]]:
        """All events so far, oldest first: {"id", "time", "name", "data"}."""
        if not self._events_path.exists():
            return []
        with open(self._events_path, "rb") as file:
            return list(self._events_in(file))

    def seconds_before(self) -> float:
        """See `JobStore.seconds_before`."""
        return worked_s(
            (one["name"], datetime.fromisoformat(one["time"]).timestamp()) for one in self.events()
        )

    def stop_requested(self) -> str | None:
        """See `JobStore.stop_requested`."""
        try:
            return (self.folder / "stop").read_text().strip() or "cancelled"
        except FileNotFoundError:
            return None

    def request_stop(self, reason: str = "cancelled") -> None:
        """Ask the job to stop, from any process."""
        (self.folder / "stop").write_text(reason)

    @property
    def _events_path(self) -> Path:
        return self.folder / "events.jsonl"

    def _verdict_path(self, sha256: str, phase: str) -> Path:
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r} is unknown; it is one of {', '.join(PHASES)}")
        return self.folder / "verdicts" / f"{quote(sha256, safe='')}.{phase}.json"

    def _step_path(self, name: str) -> Path:
        return self.folder / "steps" / f"{quote(name, safe=' ')}.json"

    def _candidate_files(self) -> list[tuple[int, str, Path]]:
        found = []
        for path in (self.folder / "candidates").iterdir():
            match = _CANDIDATE_FILE.fullmatch(path.name)
            if match:
                found.append((int(match[1]), match[2], path))
        return sorted(found)

    def _read_candidate(self, path: Path) -> Candidate:
        try:
            return Candidate(**json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise StoreCorrupt(f"{path} is not a candidate: {error}") from error

    def _read(self, path: Path) -> object | None:
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreCorrupt(f"{path} is not JSON: {error}") from error

    def _write_new(self, path: Path, value: object) -> bool:
        """Write `value` as JSON unless `path` exists; False if it does. Readers never see a partial file."""
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # unlike rename, link refuses to replace
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with open(self.folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @staticmethod
    def _events_in(file: Any) -> Iterator[dict[str, Any]]:
        file.seek(0)
        for line in file:
            event = _event_in(line)
            if event is not None:
                yield event

    @staticmethod
    def _ends_with_newline(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


def _occasion(data: dict[str, Any]) -> tuple[str, int] | None:
    """The key that identifies a repeated `budget.spent` event."""
    return (str(data["request"]), int(data.get("try") or 0)) if data.get("request") else None


def _event_in(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a partial line left by a killed writer."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
