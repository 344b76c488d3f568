"""Made-up verdicts for the pure parts of the search: a referee's words without a referee."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from agent.candidates import Candidate, Judged
from evaluator.verdict import from_json


def row(dims: Mapping[str, Any], speedup: float, split: str = "visible") -> dict[str, Any]:
    return {
        "dims": dict(dims),
        "split": split,
        "timed": True,
        "speedup": speedup,
        "baseline_us": 10.0,
        "candidate_us": 10.0 / speedup,
        "best_baseline": "eager",
    }


def accepted(*speedups: float, **more: Any) -> dict[str, Any]:
    """An accepted verdict at visible shapes rows=1, 2, 3, ..."""
    rows = [row({"rows": number}, speedup) for number, speedup in enumerate(speedups, start=1)]
    return accepted_at(rows) | more


def accepted_at(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """An accepted verdict with these shapes and the mean of the visible ones."""
    visible = [one["speedup"] for one in rows if one["split"] == "visible"]
    summary = {"geomean_speedup": geometric_mean(visible) if visible else None}
    return {"verdict": "accepted", "reason": "", "findings": [], "shapes": rows, "summary": summary}


def rejected(word: str = "incorrect", reason: str = "wrong", **more: Any) -> dict[str, Any]:
    return {"verdict": word, "reason": reason, "findings": [], "shapes": [], "summary": {}, **more}


def judged(source: str, verdict: dict[str, Any], parent: Judged | None = None, origin: str = "llm") -> Judged:
    return Judged(
        Candidate(source, origin, source[:20], parent.candidate.sha256 if parent else None),
        from_json(verdict),
    )
