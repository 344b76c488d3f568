"""Reads a run's folder (docs/training-runs.md describes its contents).

The folder is untrusted: any process with write access may have changed it, and it contains model answers. Each file is read up to a
limit and never through a symbolic link; values of an unexpected type count as missing, and malformed lines are skipped. Nothing is
executed or imported.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Limit per file; a line takes about 400 bytes in metrics.jsonl and about 4 kB in samples.jsonl. For a longer file, only the
#: beginning and the end are read.
MOST_BYTES = 32 << 20
MOST_STEPS = 50_000
MOST_SAMPLES = 100_000
MOST_RUNS = 500
_MOST_LINE = 2 << 20
#: Limit for metrics.jsonl when listing many runs; the part read includes the last step.
_END_BYTES = 64 << 10
_TEXT = 2000
_SOURCE = 100_000
_LARGEST = 1e30

#: Figures of a step that are drawn and listed, besides its number.
FIGURES = (
    "time_s", "step_s", "loss", "learning_rate", "gradient_norm", "entropy", "tokens", "round", "snapshot", "reward_mean",
    "speedup_mean", "completions", "accepted_share", "judged", "cached", "missing", "hacks", "in_form_share", "idle_share",
    "peak_memory_gib",
)  # fmt: skip
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
#: Separates the folders in a run's name: folder names cannot contain it, and URLs need not escape it.
JOINT = "~"
_FILES = ("config.json", "metrics.jsonl", "samples.jsonl", "comparison.json")
_STAGES = ("sft", "selfsup", "contrastive")


class RunUnknown(Exception):
    """The run does not exist."""


@dataclass(frozen=True)
class Step:
    """One optimizer step; missing figures are None."""

    number: int
    figures: Mapping[str, float | None]


@dataclass(frozen=True)
class Sample:
    """One judged completion; `source` is untrusted model text, `why` may quote it, `caught` is our own text."""

    step: int
    task: str
    source: str
    word: str
    speedup: float | None
    why: str
    caught: str


@dataclass(frozen=True)
class Overview:
    """A run in a list.

    Attributes:
        name: folders below the root, joined by `JOINT`.
        stage: "sft", "selfsup" or "contrastive"; "" if unknown.
        steps: number of the last step.
        planned: number of steps in its config.
        changed_s: time of the last write to its figures, in seconds since 1970.
        last: figures of the last step.
    """

    name: str
    stage: str
    steps: int
    planned: int | None
    changed_s: float
    last: Mapping[str, float | None]


@dataclass(frozen=True)
class Run:
    """The complete data shown for a run.

    Attributes:
        overview: as in the list.
        config: the config as written, plain values; {} if missing.
        steps: in order.
        samples: in file order.
        comparison: the output of `rl.evaluate`; {} if missing.
        cut: names of files that exceed a read limit.
    """

    overview: Overview
    config: Mapping[str, Any]
    steps: tuple[Step, ...]
    samples: tuple[Sample, ...]
    comparison: Mapping[str, Any]
    cut: tuple[str, ...]


def list_runs(root: Path) -> list[Overview]:
    """Runs up to two folders below the root, most recently written first."""
    found = []
    for folder, name in _folders(root):
        if _holds_run(folder):
            steps, _ = _steps(folder, _END_BYTES)
            found.append(_overview(folder, name, _json(folder / "config.json"), steps))
        if len(found) >= MOST_RUNS:
            break
    return sorted(found, key=lambda one: (-one.changed_s, one.name))


def folder_of(root: Path, name: str) -> Path:
    """The folder for a run's name.

    Raises:
        RunUnknown: if there is no such folder, or the name leads outside the root.
    """
    parts = name.split(JOINT)
    if not 1 <= len(parts) <= 2 or not all(_PART.fullmatch(part) for part in parts):
        raise RunUnknown(name[:200])
    folder = root
    for part in parts:
        folder = folder / part
        if folder.is_symlink() or not folder.is_dir():
            raise RunUnknown(name)
    return folder


def state_of(folder: Path) -> tuple[tuple[int, ...] | None, ...]:
    """A fingerprint that changes whenever one of the run's files changes."""
    return tuple(_state_of_file(folder / name) for name in _FILES)


def run_in(folder: Path, name: str) -> Run:
    """Read the run in a folder.

    Raises:
        RunUnknown: if the folder contains no run.
    """
    if not _holds_run(folder):
        raise RunUnknown(name)
    config = _json(folder / "config.json")
    steps, steps_cut = _steps(folder)
    samples, samples_cut = _samples(folder)
    cut = [file for file, is_cut in (("metrics.jsonl", steps_cut), ("samples.jsonl", samples_cut)) if is_cut]
    comparison = _json(folder / "comparison.json")
    return Run(_overview(folder, name, config, steps), config, steps, samples, comparison, tuple(cut))


def _overview(folder: Path, name: str, config: Mapping[str, Any], steps: tuple[Step, ...]) -> Overview:
    stage = config.get("stage")
    planned = number(config.get("steps"))
    file = folder / ("metrics.jsonl" if _plain_file(folder / "metrics.jsonl") else "config.json")
    try:
        changed_s = file.lstat().st_mtime
    except OSError:
        changed_s = 0.0
    return Overview(
        name,
        stage if stage in _STAGES else "",
        steps[-1].number if steps else 0,
        None if planned is None or not 0 < planned < 1e12 else int(planned),
        changed_s,
        steps[-1].figures if steps else {},
    )


def _folders(root: Path) -> Iterator[tuple[Path, str]]:
    for folder in _below(root):
        yield folder, folder.name
        for inner in _below(folder):
            yield inner, f"{folder.name}{JOINT}{inner.name}"


def _below(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)[: 10 * MOST_RUNS] if _PART.fullmatch(name)]


def _holds_run(folder: Path) -> bool:
    """Whether a folder contains a run. A model's folder has a `config.json` too, but without a stage."""
    return _plain_file(folder / "metrics.jsonl") or _json(folder / "config.json").get("stage") in _STAGES


def _plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _state_of_file(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _opened(path: Path, most: int) -> tuple[bytes, bool]:
    """The contents of a regular file, never a symbolic link or a pipe, and whether the file is longer than `most` bytes.

    Returns only the beginning and the end of a longer file, in whole lines.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b"", False
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b"", False
        if found.st_size <= most:
            return file.read(most), False
        head = file.read(most // 2)
        file.seek(found.st_size - most // 2)
        # Drop the middle, including the partial lines at both cuts.
        return head[: head.rfind(b"\n") + 1] + file.read(most // 2).partition(b"\n")[2], True


def _json(path: Path) -> Mapping[str, Any]:
    data, cut = _opened(path, MOST_BYTES >> 3)
    return {} if cut else _object(data)


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path, most: int, most_bytes: int) -> tuple[Iterator[Mapping[str, Any]], bool]:
    """Parse lines lazily: as Python objects, a line takes up to thirty times its size in the file."""
    data, cut = _opened(path, most_bytes)
    lines = data.split(b"\n")
    if len(lines) > most:
        lines, cut = [*lines[: most // 2], *lines[-(most // 2) :]], True
    return (one for line in lines if len(line) <= _MOST_LINE and (one := _object(line))), cut


def _steps(folder: Path, most_bytes: int | None = None) -> tuple[tuple[Step, ...], bool]:
    lines, cut = _lines(folder / "metrics.jsonl", MOST_STEPS, most_bytes or MOST_BYTES)
    # A resumed run writes some steps again: the last record counts.
    found: dict[int, Step] = {}
    for line in lines:
        step = _step_of(line)
        if step > 0:
            found[step] = Step(step, {name: _figure(line.get(name)) for name in FIGURES})
    return tuple(found[step] for step in sorted(found)), cut


def _samples(folder: Path) -> tuple[tuple[Sample, ...], bool]:
    lines, cut = _lines(folder / "samples.jsonl", MOST_SAMPLES, MOST_BYTES)
    return tuple(
        Sample(
            _step_of(line),
            text(line.get("task"), 200),
            text(line.get("source"), _SOURCE),
            text(line.get("word"), 100),
            number(line.get("speedup")),
            text(line.get("why")),
            text(line.get("caught"), 200),
        )
        for line in lines
    ), cut


def _step_of(line: Mapping[str, Any]) -> int:
    """The step number of a line; 0 if missing or out of range."""
    step = number(line.get("step"))
    return int(step) if step is not None and 0 < step < 1e12 else 0


def _figure(value: Any) -> float | None:
    """A number small enough to draw, so the difference of two stays finite; else None."""
    found = number(value)
    return found if found is not None and abs(found) < _LARGEST else None


def number(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def text(value: Any, most: int = _TEXT) -> str:
    """A string, truncated; "" for other types. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
