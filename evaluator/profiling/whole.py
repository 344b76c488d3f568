"""A whole program: what each part of it could save at most (Amdahl), data loading, transfers and waits apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluator.counting import counted
from evaluator.devices import is_accelerator
from evaluator.errors import EvaluatorError

SCHEMA = "kernelwright.program/1"
_ROOT = Path(__file__).resolve().parent.parent.parent
_PARTS = {
    "data": "loading data",
    "transfer": "copies between host and device",
    "backward": "backward",
    "optimizer": "the optimizer",
}
_SHOWN = 5
_WORTH = 0.05


def profile_program(argv: Sequence[str]) -> dict[str, Any]:
    """Runs the user's own program, with its output where it always goes, and ranks its parts.

    Args:
        argv: ``python script.py ...`` or ``python -m module ...``.

    Returns:
        ``parts`` and ``modules`` with their share of the time and ``at_most``, how many times faster the program can become
        if that part took no time at all; ``waits``; ``sentences``.

    Raises:
        EvaluatorError: this is no Python program, or it ended before anything was written.
    """
    if (
        len(argv) < 2
        or "python" not in os.path.basename(argv[0])
        or (argv[1].startswith("-") and argv[1:2] != ["-m"])
    ):
        raise EvaluatorError("give a program as `python script.py ...` or `python -m module ...`")
    _require_torch(argv[0])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [argv[0], "-m", "evaluator.profiling.watched_program", str(report), *argv[1:]]
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            code = subprocess.run(command, env=environment, check=False).returncode
            plain = json.loads(report.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EvaluatorError(f"the program left no report: {error}") from None
    return {"schema": SCHEMA, "exit": code, **ranked(plain)}


def _require_torch(python: str) -> None:
    """Says in a sentence what the program would otherwise end with in a trace of ours."""
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        lacks = subprocess.run([python, "-c", program], check=False, capture_output=True).returncode
    except OSError as error:
        raise EvaluatorError(f"{python} does not run: {error.strerror}") from None
    if lacks:
        where = shutil.which(python) or python
        raise EvaluatorError(f"{where} has no torch; give the Python that the program runs with")


def ranked(plain: dict[str, Any]) -> dict[str, Any]:
    """The report of :mod:`evaluator.profiling.watched_program` with shares, what they could save, and sentences."""
    wall_s = max(plain["wall_s"] - plain["watching_s"], 1e-9)
    parts = []
    forward_s = sum(row["total_s"] for row in plain["modules"] if row["name"] in plain["roots"])
    seconds = {"forward": forward_s}
    for kind, words in _PARTS.items():
        seconds[words] = sum(row["seconds"] for row in plain["spans"] if row["kind"] == kind)
    seconds["everything else"] = max(wall_s - sum(seconds.values()), 0.0)
    for name, spent_s in sorted(seconds.items(), key=lambda item: -item[1]):
        if spent_s:
            parts.append({"name": name, "seconds": spent_s, **_saving(spent_s, wall_s)})
    modules = [{**row, **_saving(row["self_s"], wall_s)} for row in plain["modules"]]
    modules.sort(key=lambda row: -row["self_s"])
    waits = [
        {**row, "what": row["kind"].partition(":")[2]}
        for row in plain["spans"]
        if row["kind"].startswith("wait:")
    ]
    return {
        "device": plain["device"],
        "wall_s": wall_s,
        "parts": parts,
        "modules": modules,
        "waits": waits,
        "startup_s": plain["startup_s"],
        "sentences": [
            f"Starting up took {plain['startup_s']:.1f} s, the rest {wall_s:.1f} s, of which all shares are.",
            *_sentences(parts, modules, waits, plain["device"]),
        ],
    }


def _saving(spent_s: float, wall_s: float) -> dict[str, float]:
    share = min(spent_s / wall_s, 1.0)
    return {"share": round(share, 4), "at_most": round(1 / max(1 - share, 1e-3), 3)}


def _sentences(parts: list[Any], modules: list[Any], waits: list[Any], device: str) -> list[str]:
    said = [
        f"{part['share']:.0%} of the time is {part['name']}." for part in parts if part["share"] >= _WORTH
    ]
    for row in modules[:_SHOWN]:
        if row["share"] >= _WORTH:
            said.append(
                f"{row['name']} ({row['type']}, {counted(row['calls'], 'call')}) takes {row['share']:.0%} itself: even for nothing, the "
                f"program would be {row['at_most']:.2f} times faster at most."
            )
    for row in waits[:_SHOWN]:
        verb = (
            "the host waits for the device"
            if is_accelerator(device)
            else "on a GPU the host would wait for the device"
        )
        said.append(f"{row['where']}: {verb} ({row['what']}), {counted(row['calls'], 'time')}.")
    if not any(row["share"] >= _WORTH for row in modules):
        said.append("No submodule takes a twentieth of the time: optimizing one would not be felt.")
    return said
