"""Metrics of a run as JSON lines, one object per optimizer step; docs/training-runs.md describes the fields.

A run resumed from a checkpoint drops the lines of later steps, so each step appears once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evaluator.keeping import replacing
from rl.errors import CheckpointError
from rl.hacks import caught
from rl.step_report import Report, Sample

#: Fields of `metrics.jsonl` in order; values that a stage cannot know are null.
FIELDS = (
    "step", "stage", "time_s", "step_s", "loss", "learning_rate", "gradient_norm", "entropy", "tokens", "round", "snapshot",
    "reward_mean", "speedup_mean", "completions", "accepted_share", "judged", "cached", "missing", "hacks", "in_form_share",
    "idle_share", "peak_memory_gib", "unanswered",
)  # fmt: skip


class StepLog:
    """A file of JSON lines that each carry a `step`.

    Args:
        path: the file.
        after: last step to keep; lines of later steps and truncated lines are dropped.

    Raises:
        CheckpointError: the file cannot be written.
    """

    def __init__(self, path: Path, after: int) -> None:
        self.path = path
        kept = [line for line in read_steps(path) if line["step"] <= after] if path.exists() else []
        try:
            with replacing(path) as file:
                file.writelines(_line(one) for one in kept)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines.

        Raises:
            CheckpointError: the disk is full.
        """
        data = "".join(_line(one) for one in lines).encode()
        try:
            with self.path.open("ab", buffering=0) as file:
                begin = file.seek(0, os.SEEK_END)
                if file.write(data) != len(data):
                    file.truncate(begin)
                    raise CheckpointError(
                        f"{self.path} cannot be extended: the disk is full; make room and resume"
                    )
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be extended: {error.strerror}; make room and resume"
            ) from None


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file, skipping a line that a killed process left incomplete."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict) and isinstance(one.get("step"), int):
            found.append(one)
    return found


def of_reports(reports: Iterable[Report]) -> dict[str, Any]:
    """Compute metrics from a step's judging reports, over all ranks."""
    every = list(reports)
    samples = [sample for report in every for sample in report.samples]
    # Completions without a candidate count as judged: they are rejected without a referee.
    judged = [one for one in samples if one.score.value is not None]
    found = [one for one in samples if one.caught]
    # A hack is paid like a failure and must not show up as progress in the curves.
    accepted = [one for one in judged if one.score.speedup is not None and not one.caught]
    return {
        "reward_mean": _mean([one.score.value for one in judged if one.score.value is not None]),
        "speedup_mean": math.fsum(one.score.speedup or 0.0 for one in accepted) / len(judged)
        if judged
        else None,
        "completions": len(samples),
        "accepted_share": len(accepted) / len(judged) if judged else None,
        "judged": sum(report.judged for report in every),
        "cached": sum(report.repeated for report in every),
        "missing": sum(sum(report.missing.values()) for report in every),
        "hacks": len(found),
        "unanswered": sum(report.unanswered for report in every),
        "in_form_share": _mean([float(one.answer.in_form) for one in samples]),
    }


def of_samples(step: int, reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Build the lines of `samples.jsonl`: each completion of a step with its result."""
    return [
        {
            "step": step,
            "task": one.task,
            "source": one.answer.source,
            "problem": one.answer.problem,
            "in_form": one.answer.in_form,
            "word": one.verdict.verdict if one.verdict is not None else None,
            "speedup": None if one.caught else one.score.speedup,
            "score": one.score.value,
            "reward": one.reward,
            "why": one.score.why[:300],
            "caught": _caught_by(one),
        }
        for report in reports
        for one in report.samples
    ]


def step_line(**known: Any) -> dict[str, Any]:
    """Build a line of `metrics.jsonl`: every field in order, null where unknown."""
    unknown = sorted(set(known) - set(FIELDS))
    if unknown:
        raise KeyError(f"{unknown[0]} is no field of metrics.jsonl")
    return {name: known.get(name) for name in FIELDS}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(one) for name, one in value.items()}, ensure_ascii=True) + "\n"


def _plain(value: Any) -> Any:
    """Round floats and replace non-finite ones with None: JSON has no infinities, and a loss may be infinite."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _caught_by(one: Sample) -> str:
    """What caught or doubts a completion, in the project's own words only; "" if nothing does."""
    if one.verdict is not None and one.verdict.verdict == "cheating":
        found = caught(one.verdict)
        return f"the referee: {found[0]}" if found else "the referee"
    return next((doubt.kind or doubt.word for doubt in one.doubts if doubt.word != "nothing"), "")
