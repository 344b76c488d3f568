"""Stores which extensions a candidate needs, so that its next evaluation need not start it just to ask."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from evaluator.building.extension_call import ExtensionCall, parse
from evaluator.referee.sides.open_shape import OpenShape, freeze_dims


@dataclass(frozen=True)
class BuildRecord:
    """The calls of `load_inline`, and the shapes at which they were collected.

    Attributes:
        calls: the requested extensions.
        shapes: digests; None if the candidate requests extensions only at import.
    """

    calls: list[ExtensionCall]
    shapes: list[str] | None

    def covers(self, shapes: list[str]) -> bool:
        """Whether the candidate's requests at all of these shapes are known."""
        return self.shapes is None or set(shapes) <= set(self.shapes)


def digest(shape: OpenShape) -> str:
    """A digest of a shape."""
    return hashlib.sha256(repr(freeze_dims(shape.dims)).encode()).hexdigest()[:24]


def read_record(path: Path) -> BuildRecord | None:
    """Reads the referee's own file. None if there is none or an earlier version wrote it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return BuildRecord([parse(call) for call in content["calls"]], content["shapes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(path: Path, calls: list[ExtensionCall], shapes: list[str] | None) -> None:
    """Writes what :func:`read_record` reads."""
    canonical = [json.loads(call.canonical) for call in calls]
    path.write_text(json.dumps({"calls": canonical, "shapes": shapes}), encoding="utf-8")
