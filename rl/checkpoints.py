"""Run folders: ownership, detection of complete checkpoints, and the state stored besides the trainer's own files.

The trainer writes `checkpoint-N/` file by file. A checkpoint is complete once it has `run.json`, which is written last and lists every
file with its size. An incomplete checkpoint, left by a killed process or a full disk, is ignored and removed when the run resumes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evaluator.keeping import replacing
from rl.config import Stage
from rl.errors import CheckpointError

SEAL = "run.json"
FINAL = "checkpoint"
BASE = "base"
_CONFIG = "config.json"
_SCHEMA = "kernelwright.checkpoint/1"
#: Settings that may change when a run resumes, since none of them affects a draw or a gradient.
_FREE = ("output", "steps", "save_every", "fleet", "micro_batch", "judge")
#: Settings of the fleet that must not change: stored verdicts depend on them, and prompts name them.
_OF_THE_FLEET = ("device", "shapes")
#: The judge's model must not change; its address may.
_OF_THE_JUDGE = ("model",)
#: For `selfsup`, the steps must not change either: they set where each round begins.
_OF_ROUNDS = ("steps",)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: its folder.
        step: optimizer steps done.
        record: the record given to `seal`, such as the positions of databases.
    """

    path: Path
    step: int
    record: Mapping[str, Any]


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Lock a run's folder for the duration of the block.

    Raises:
        CheckpointError: another process holds the lock, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be made: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CheckpointError(f"another process is training in {folder}") from None
    try:
        yield
    finally:
        os.close(descriptor)


def claim(stage: Stage, *, resume: bool) -> None:
    """Record the stage's settings in its folder, or check that they match the run already there.

    Raises:
        CheckpointError: the folder holds a run and `resume` is off, or holds a run with other or missing settings.
    """
    path = stage.output / _CONFIG
    wanted = stage.model_dump(mode="json")
    if not _begun(stage.output):
        # Keep verdicts, which are valid in any run; drop a fresh model that may come from other settings.
        shutil.rmtree(stage.output / BASE, ignore_errors=True)
    elif not path.exists():
        raise CheckpointError(
            f"{stage.output} holds parts of a run without its settings ({_CONFIG}); restore that file, or name another `output`"
        )
    else:
        known = _with_defaults(stage, read_json(path))
        if not resume:
            raise CheckpointError(
                f"{stage.output} holds a run already; go on with it by --resume auto, or name another `output`"
            )
        other = _differences(known, wanted)
        if other:
            raise CheckpointError(
                f"{stage.output} holds a run with other settings ({', '.join(other)}); set them as they were, or name another `output`"
            )
    write_json(path, wanted)


def _begun(folder: Path) -> bool:
    """Whether a folder holds results that another run would destroy."""
    figures = folder / "metrics.jsonl"
    made = [*folder.glob("checkpoint*"), *folder.glob("round-*")]
    return bool(made) or (figures.exists() and figures.stat().st_size > 0)


def newest(folder: Path) -> Checkpoint | None:
    """The complete checkpoint with the most steps, or None."""
    found = [one for path in folder.glob("checkpoint-*") if (one := whole(path)) is not None]
    return max(found, key=lambda one: one.step, default=None)


def whole(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder, or None if it is missing or incomplete."""
    try:
        seal = read_json(path / SEAL)
        for name, size in seal["files"].items():
            if (path / name).stat().st_size != size:
                return None
        return Checkpoint(path, int(seal["step"]), seal["record"])
    except (CheckpointError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def clear_after(folder: Path, kept: Checkpoint | None) -> None:
    """Remove incomplete checkpoints and those later than `kept`."""
    for path in folder.glob("checkpoint-*"):
        one = whole(path)
        if one is None or kept is None or one.step > kept.step:
            shutil.rmtree(path, ignore_errors=True)


def seal(path: Path, step: int, record: Mapping[str, Any]) -> None:
    """Mark a checkpoint as complete: flush its files to disk and list them with their sizes.

    Raises:
        CheckpointError: the disk is full or broken; the folder is removed, and earlier checkpoints are unchanged.
    """
    try:
        files = {}
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.name != SEAL:
                _to_disk(file)
                files[str(file.relative_to(path))] = file.stat().st_size
        write_json(path / SEAL, {"schema": _SCHEMA, "step": step, "record": dict(record), "files": files})
    except OSError as error:
        raise unwritable(path, error) from None
    except CheckpointError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: BaseException) -> CheckpointError:
    """The error for a checkpoint that could not be written; also removes its partial folder to free space."""
    shutil.rmtree(path, ignore_errors=True)
    before = newest(path.parent)
    kept = f"the one of step {before.step} is whole" if before else "there is none before it"
    why = " ".join(str(error).split())[:300] or type(error).__name__
    return CheckpointError(
        f"the checkpoint {path} cannot be written ({why}; {_room(path.parent)}); {kept}. Nothing that was saved is lost: make room and go on "
        "with --resume auto"
    )


def _room(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free >> 20} MiB are free there"
    except OSError:
        return "how much is free there cannot be told"


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is sealed and replaces `folder` if the block succeeds.

    Raises:
        CheckpointError: the disk is full; the previous folder is still there.
    """
    beside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        yield beside
        seal(beside, 0, {})
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    except CheckpointError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    except Exception as error:  # a full disk raises OSError, torch's RuntimeError or safetensors' own error
        raise unwritable(beside, error) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically.

    Raises:
        CheckpointError: the disk is full or broken; the previous file is still there.
    """
    try:
        with replacing(path) as file:
            json.dump(value, file, indent=1, sort_keys=True, allow_nan=False)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a file written by `write_json`.

    Raises:
        CheckpointError: it cannot be read, or is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(f"{path} is damaged") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged")
    return found


def _with_defaults(stage: Stage, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's settings with defaults for settings added since it began; unchanged if they are no longer valid."""
    try:
        return type(stage).model_validate(dict(known)).model_dump(mode="json")
    except ValidationError:
        return known


def _differences(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    names = sorted(set(known) | set(wanted))
    free = set(_FREE) - set(_OF_ROUNDS if wanted.get("stage") == "selfsup" else ())
    other = [name for name in names if name not in free and known.get(name) != wanted.get(name)]
    for part, bound in (("fleet", _OF_THE_FLEET), ("judge", _OF_THE_JUDGE)):
        before, now = known.get(part) or {}, wanted.get(part) or {}
        other += [f"{part}.{name}" for name in bound if before.get(name) != now.get(name)]
    return other


def _to_disk(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
