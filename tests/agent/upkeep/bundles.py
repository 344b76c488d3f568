"""Bundles as a job writes them, with evidence that says what a test wants it to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.bundle.archive import write_bundle
from agent.bundle.evidence import BundleContents
from agent.candidates import Candidate
from evaluator.description import Description
from evaluator.devices import open_device
from evaluator.environment import measured_on
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from tests.services.service import CORRECT, TINY_TASK

SHAPES = ({"rows": 8, "cols": 32}, {"rows": 40, "cols": 64})


def row(dims: dict[str, Any], speedup: float, half: float = 0.01) -> dict[str, Any]:
    """A timed shape of a verdict with an interval of +- `half`."""
    return {
        "dims": dims,
        "split": "held_out",
        "timed": True,
        "speedup": speedup,
        "ci95": [speedup * (1 - half), speedup * (1 + half)],
        "baseline_us": 10.0 * speedup,
        "candidate_us": 10.0,
        "best_baseline": "eager",
        "decision": "same",
    }


def write(
    folder: Path,
    speedups: tuple[float, ...] = (1.0, 1.0),
    *,
    source: str = CORRECT,
    task: str = TINY_TASK,
    half: float = 0.01,
    environment: dict[str, Any] | None = None,
) -> Path:
    """A bundle's zip; its folder lies beside it."""
    optimized = Candidate(source, "human", "optimized.py")
    verdict = {
        "verdict": "accepted",
        "candidate": {"sha256": optimized.sha256},
        "shapes": [
            row(dims, speedup, half) for dims, speedup in zip(SHAPES[: len(speedups)], speedups, strict=True)
        ],
        "summary": {"geomean_speedup": 1.0},
        "environment": {**measured_on(open_device("cpu")), **(environment or {})},
        "labels": ["library_call"],
    }
    contents = BundleContents(
        job_name="tiny",
        device="cpu",
        task=TaskSource("tiny", task),
        description=Description(),
        optimized=optimized,
        members=(Candidate(CORRECT, "human", "scale and shift"),),
        decision="same",
        reason="a claim",
        verdicts=(("held_out", from_json(verdict)),),
        leaderboard=(),
    )
    return write_bundle(contents, folder)
