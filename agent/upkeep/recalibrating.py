"""Times a bundle's members anew at a few recorded shapes, for a machine other than the one where they were chosen.

What comes out is the file that `ModelNew.kernelwright_recalibrate` writes, measured by the referee and in its sandbox: each member
against the plain reference, at up to eight shapes that lie far from each other.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent.bundle.assembly import bundle_digest, mode_text
from agent.bundle.domain import dims_key
from agent.bundle.measured import MOST_SHAPES
from agent.errors import UnreadableBundle
from agent.portfolio.entries import eager_speedups, timed_rows
from agent.portfolio.telling import far_apart
from agent.upkeep.reading import ReadBundle, read_members

if TYPE_CHECKING:
    from evaluator.client import Referee


def recalibrate(
    path: Path,
    bundle: ReadBundle,
    referee: Referee,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure every member and give the recalibration as a JSON value.

    Args:
        path: the bundle, for its members.
        bundle: the same, read.
        referee: of the bundle's kind of device.
        on_progress: called as by `Referee.evaluate`.

    Raises:
        UnreadableBundle: its file takes no recalibration, or nothing could be timed.
        evaluator.errors.EvaluatorError: the referee was lost or had a fault.
    """
    sizes = priced_sizes(bundle.optimized)
    shapes = far_apart([one.dims for one in bundle.recorded], sizes, MOST_SHAPES)
    members = read_members(path)
    verdicts = [
        referee.evaluate(
            bundle.task,
            member,
            splits=("held_out",),
            shapes={"held_out": [dict(shape) for shape in shapes]},
            submitted=True,
            on_progress=on_progress,
        )
        for member in members
    ]
    rows = compared(shapes, verdicts)
    if not rows:
        raise UnreadableBundle(
            "none of the recorded shapes could be timed here with a member and the reference"
        )
    return file_of(bundle.device, bundle_digest(bundle.task.source, [one.source for one in members]), rows)


def priced_sizes(optimized: str) -> tuple[str, ...]:
    """The dimensions that the file predicts times from.

    Raises:
        UnreadableBundle: it has none, so that there is nothing to correct.
    """
    for statement in ast.parse(optimized).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "PRICED_SIZES":
            names = ast.literal_eval(statement.value)
            if names and all(isinstance(name, str) for name in names):
                return tuple(names)
    raise UnreadableBundle(
        "optimized.py knows nothing of how times depend on sizes, so a few of them say nothing of others: optimize again here, "
        "or use the verified mode"
    )


def compared(
    shapes: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Log of each member's time over the plain reference's, by shape and number from 1.

    Args:
        shapes: what was asked for.
        verdicts: one for each member, in their order; of those that are not accepted nothing is taken.
    """
    rows: dict[str, dict[str, Any]] = {
        dims_key(shape): {"sizes": dict(shape), "logs": {}} for shape in shapes
    }
    for number, verdict in enumerate(verdicts, start=1):
        if verdict.get("verdict") != "accepted":
            continue
        eager = eager_speedups(verdict)
        for row in timed_rows(verdict):
            key = dims_key(row["dims"])
            if key in rows and key in eager:
                rows[key]["logs"][str(number)] = float(f"{math.log(eager[key] / float(row['speedup'])):.6g}")
    return [row for row in rows.values() if row["logs"]]


def file_of(device: str, bundle: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The file of a recalibration on this machine, in the words of the sections of optimized.py that read it."""
    sections: dict[str, Any] = {"DEVICE": device, "torch": torch}
    exec(compile(_IMPORTS + mode_text("memo"), "memo", "exec"), sections)  # noqa: S102 - our own text
    content = {
        "schema": "kernelwright.recalibration/1",
        "bundle": bundle,
        "platform": sections["_platform"](0),
        "shapes": rows,
    }
    return {**content, "digest": sections["_digest_of"](content)}


_IMPORTS = "import collections, hashlib, importlib.metadata, itertools, json, math, os, threading, weakref\n"
