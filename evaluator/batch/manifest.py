"""The manifest of a batch: one JSON object per line, each checked separately, so that a bad line affects no other."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from evaluator.devices import BACKENDS
from evaluator.precision import TIERS, with_precision
from evaluator.request import Request
from evaluator.shapes.sampler import SPLITS
from evaluator.sources import CandidateSource, TaskSource

MAX_LINE_BYTES = 16 << 20
MAX_SOURCE_BYTES = 4 << 20
_MAX_ID_LENGTH = 500
_MAX_DEADLINE_S = 86_400.0
_DEFAULT_DEADLINE_S = 900.0
_NEEDED = ("id", "task", "candidate")
_OPTIONAL = ("device", "effort", "splits", "shapes", "deadline_s", "precision")
_EFFORTS = ("screen", "confirm")


class ManifestUnreadable(Exception):
    """The whole manifest cannot be read; the message says why."""


class _Bad(Exception):
    """One line cannot be used; the message says why."""


@dataclass(frozen=True)
class Entry:
    """One evaluation to run.

    Attributes:
        line: number in the manifest, from 1.
        id: the line's own name.
        device: ``cpu`` or ``cuda``.
        request: what the referee is asked.
        digest: SHA-256 over the whole question including sources, but not the name.
    """

    line: int
    id: str
    device: str
    request: Request
    digest: str


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be judged.

    Attributes:
        line: number in the manifest, from 1.
        id: its name if it has a usable one of its own.
        reason: one sentence.
        digest: SHA-256 over its bytes and the reason.
    """

    line: int
    id: str | None
    reason: str
    digest: str


def read_manifest(path: Path, default_device: str) -> list[Entry | BadLine]:
    """All nonempty lines, in order.

    Args:
        path: the manifest; paths inside are relative to its folder.
        default_device: for lines without one.

    Raises:
        ManifestUnreadable: it is missing, not a file, or not readable.
    """
    try:
        with _open_regular(path) as file:
            return list(_lines(file, path.parent, default_device))
    except OSError as error:
        raise ManifestUnreadable(f"cannot read the manifest {path}: {_words(error)}") from None


def _lines(file: BinaryIO, folder: Path, default_device: str) -> Iterator[Entry | BadLine]:
    seen: dict[str, int] = {}
    # Many lines share a task, so its source is kept once.
    tasks: dict[tuple[str, str], TaskSource] = {}
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        digest = hashlib.sha256(raw)
        if len(raw) > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
                digest.update(raw)
            yield BadLine(
                number, None, f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", digest.hexdigest()
            )
            continue
        if not raw.strip():
            continue
        name: str | None = None
        try:
            fields = _parse(raw)
            name = _name(fields)
            if name in seen:
                earlier, name = name, None
                raise _Bad(f"id {earlier!r} was used on line {seen[earlier]} already")
            seen[name] = number
            yield _entry(number, name, fields, folder, default_device, tasks)
        except _Bad as bad:
            digest.update(str(bad).encode("utf-8", "replace"))
            yield BadLine(number, name, str(bad), digest.hexdigest())


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Bad(f"not UTF-8: {error.reason} at byte {error.start + 1}") from None
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _Bad("not valid JSON: nested too deep") from None
    except ValueError as error:
        raise _Bad(f"not valid JSON: {str(error)[:200]}") from None
    if not isinstance(fields, dict):
        raise _Bad("a line must be a JSON object")
    return fields


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _name(fields: dict[str, Any]) -> str:
    name = fields.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_ID_LENGTH:
        raise _Bad(f"id must be a text of 1 to {_MAX_ID_LENGTH} characters")
    return name


def _entry(
    number: int,
    name: str,
    fields: dict[str, Any],
    folder: Path,
    default_device: str,
    tasks: dict[tuple[str, str], TaskSource],
) -> Entry:
    unknown = sorted(set(fields) - set(_NEEDED) - set(_OPTIONAL))
    if unknown:
        known = ", ".join((*_NEEDED, *_OPTIONAL))
        raise _Bad(f"unknown key {', '.join(map(repr, unknown))[:300]}; known: {known}")
    for key in _NEEDED:
        if key not in fields:
            raise _Bad(f"the key {key!r} is missing")
    task_name, task_text = _source(fields["task"], "task", folder)
    candidate_name, candidate_text = _source(fields["candidate"], "candidate", folder)
    try:
        task = with_precision(
            TaskSource(task_name or "inline", task_text), _precision(fields.get("precision"))
        )
    except ValueError as error:
        raise _Bad(f"precision: {error}") from None
    task = tasks.setdefault((task.name, task.sha256), task)
    candidate = CandidateSource(candidate_text, "external", candidate_name or name)
    device = _word(fields, "device", tuple(BACKENDS), default_device)
    effort = _word(fields, "effort", _EFFORTS, "screen")
    splits = _splits(fields.get("splits", ["visible", "adversarial"]))
    shapes = _shapes(fields.get("shapes"))
    deadline_s = _deadline(fields.get("deadline_s", _DEFAULT_DEADLINE_S))
    asked = [task.sha256, candidate.sha256, device, effort, sorted(splits), shapes, deadline_s]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    request = Request(task, candidate, effort, splits, shapes, deadline_s, submitted=True)
    return Entry(number, name, device, request, digest)


def _source(value: Any, key: str, folder: Path) -> tuple[str, str]:
    """(name of the file or "", source): from a path, an object with ``source``, or a string of more than one line."""
    if isinstance(value, dict):
        unknown = sorted(set(value) - {"source"})
        if unknown:
            raise _Bad(f"unknown key {', '.join(map(repr, unknown))[:300]} in {key}; known: source")
        if not isinstance(value.get("source"), str):
            raise _Bad(f"{key}.source must be a text")
        return "", value["source"]
    if not isinstance(value, str) or not value:
        raise _Bad(f'{key} must be a path, or {{"source": "..."}}')
    if "\n" in value:
        return "", value
    path = folder / value
    try:
        with _open_regular(path) as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _Bad(f"cannot read {key} {value[:300]}: {_words(error)}") from None
    if len(data) > MAX_SOURCE_BYTES:
        raise _Bad(f"{key} {value[:300]} is larger than {MAX_SOURCE_BYTES >> 20} MiB")
    try:
        return (path.stem if key == "task" else path.name), data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Bad(f"{key} {value[:300]} is not UTF-8: {error.reason} at byte {error.start + 1}") from None


def _open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading. A pipe or a device is refused, so that nothing blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _word(fields: dict[str, Any], key: str, known: tuple[str, ...], default: str) -> str:
    value = fields.get(key, default)
    if value not in known:
        raise _Bad(f"{key} must be one of {', '.join(known)}")
    return str(value)


def _splits(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not value or any(split not in SPLITS for split in value):
        raise _Bad(f"splits must be a list out of {', '.join(SPLITS)}")
    return tuple(dict.fromkeys(value))


def _shapes(value: Any) -> Mapping[str, list[dict[str, Any]]] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or any(split not in SPLITS for split in value):
        raise _Bad(f"shapes must map splits ({', '.join(SPLITS)}) to lists of shapes")
    for split, shapes in value.items():
        if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
            raise _Bad(f"shapes.{split} must be a list of objects, each from dimension to value")
    return value


def _precision(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _Bad(f"precision must be one of {', '.join(TIERS)}")
    return value


def _deadline(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Bad("deadline_s must be a number of seconds")
    if not (math.isfinite(value) and 0 < value <= _MAX_DEADLINE_S):
        raise _Bad(f"deadline_s must be above 0 and at most {_MAX_DEADLINE_S:.0f}")
    return float(value)


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
