"""Folders of runs: whose they are, which checkpoints in them are whole, and what belongs to one besides the trainer's own files.

The trainer writes `checkpoint-N/` file by file. It counts once `run.json` stands in it, which is written last and names every file with
its size: a checkpoint that a killed process or a full disk left half-way is no checkpoint, and is removed when the run goes on.
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
#: What may change between the two halves of a run: none of it enters a draw or a gradient.
_FREE = ("output", "steps", "save_every", "fleet", "micro_batch", "judge")
#: Except these of the fleet: what kept verdicts are about, and what prompts name.
_OF_THE_FLEET = ("device", "shapes")
#: And of the judge which one it is; where it is asked may change.
_OF_THE_JUDGE = ("model",)
#: And of rounds how long they are: each begins where those before it have ended.
_OF_ROUNDS = ("steps",)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        path: its folder.
        step: optimizer steps done.
        record: what `seal` was given: where databases stood.
    """

    path: Path
    step: int
    record: Mapping[str, Any]


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Have a run's folder alone, as long as the block runs.

    Raises:
        CheckpointError: another process trains in it, or it cannot be made.
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
    """Say what a folder's run is, or that this is the run whose folder it is.

    Raises:
        CheckpointError: there is a run in it and `resume` is off, or it is a run with other settings.
    """
    path = stage.output / _CONFIG
    wanted = stage.model_dump(mode="json")
    if not _begun(stage.output):
        # Verdicts that it has are true in any run; what it made for other settings is not.
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
    """Whether there is anything in a folder that another run would lose."""
    figures = folder / "metrics.jsonl"
    made = [*folder.glob("checkpoint*"), *folder.glob("round-*")]
    return bool(made) or (figures.exists() and figures.stat().st_size > 0)


def newest(folder: Path) -> Checkpoint | None:
    """The whole checkpoint with the most steps; None without any."""
    found = [one for path in folder.glob("checkpoint-*") if (one := whole(path)) is not None]
    return max(found, key=lambda one: one.step, default=None)


def whole(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder, None where it is none or only a part of one."""
    try:
        seal = read_json(path / SEAL)
        for name, size in seal["files"].items():
            if (path / name).stat().st_size != size:
                return None
        return Checkpoint(path, int(seal["step"]), seal["record"])
    except (CheckpointError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def clear_after(folder: Path, kept: Checkpoint | None) -> None:
    """Remove what came after a checkpoint, and what is only a part of one."""
    for path in folder.glob("checkpoint-*"):
        one = whole(path)
        if one is None or kept is None or one.step > kept.step:
            shutil.rmtree(path, ignore_errors=True)


def seal(path: Path, step: int, record: Mapping[str, Any]) -> None:
    """Make a checkpoint count: all of its files are on the disk, and are named with their sizes.

    Raises:
        CheckpointError: the disk is full or broken; the folder is removed, and those before it are as they were.
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
    """What is said of a checkpoint that could not be written; its part is removed, which makes room."""
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
    """A folder to write into that takes the place of `folder`, sealed, when the block ends well.

    Raises:
        CheckpointError: the disk is full; what was there before is still there.
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
    except Exception as error:  # a full disk has many names: OSError, torch's RuntimeError, safetensors' own
        raise unwritable(beside, error) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file whole: it is the old one or the new one, whatever happens meanwhile.

    Raises:
        CheckpointError: the disk is full or broken; what was there is still there.
    """
    try:
        with replacing(path) as file:
            json.dump(value, file, indent=1, sort_keys=True, allow_nan=False)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """What a file of `write_json` says.

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
    """A run's settings with the defaults of those that there were not when it began; as they are where they make no sense now."""
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
