"""Made-up verdicts for the pure parts of the search: a referee's words without a referee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.candidates import Candidate
from agent.strategy.exemplars import Judged
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
    return {"verdict": "accepted", "reason": "", "findings": [], "shapes": rows, "summary": {}, **more}


def rejected(word: str = "incorrect", reason: str = "wrong", **more: Any) -> dict[str, Any]:
    return {"verdict": word, "reason": reason, "findings": [], "shapes": [], "summary": {}, **more}


def judged(source: str, verdict: dict[str, Any], parent: Judged | None = None, origin: str = "llm") -> Judged:
    return Judged(
        Candidate(source, origin, source[:20], parent.candidate.sha256 if parent else None),
        from_json(verdict),
    )
