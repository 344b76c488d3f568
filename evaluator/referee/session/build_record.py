"""What an earlier evaluation learnt of a candidate's extensions, so that the next need not start it to ask again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from evaluator.building.extension_call import ExtensionCall, parse
from evaluator.referee.sides.open_shape import OpenShape, freeze_dims


@dataclass(frozen=True)
class BuildRecord:
    """The calls of `load_inline`, and at which shapes it was called for them.

    Attributes:
        calls: what it asked for.
        shapes: digests; None for one that asks when it is imported and never later.
    """

    calls: list[ExtensionCall]
    shapes: list[str] | None

    def covers(self, shapes: list[str]) -> bool:
        """Whether the candidate has been asked at all of these shapes."""
        return self.shapes is None or set(shapes) <= set(self.shapes)


def digest(shape: OpenShape) -> str:
    """A name for a shape."""
    return hashlib.sha256(repr(freeze_dims(shape.dims)).encode()).hexdigest()[:24]


def read_record(path: Path) -> BuildRecord | None:
    """The referee's own file; None where there is none, or one that an earlier version wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return BuildRecord([parse(call) for call in content["calls"]], content["shapes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(path: Path, calls: list[ExtensionCall], shapes: list[str] | None) -> None:
    """Keeps what :func:`read_record` reads."""
    canonical = [json.loads(call.canonical) for call in calls]
    path.write_text(json.dumps({"calls": canonical, "shapes": shapes}), encoding="utf-8")
