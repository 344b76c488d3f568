"""Made-up verdicts: a referee's words without a referee."""

from __future__ import annotations

from typing import Any


def accepted(*speedups: float, decisions: tuple[str, ...] = (), eager_us: float = 10.0) -> dict[str, Any]:
    """An accepted verdict at visible shapes rows=1, 2, 3, ...; the best baseline takes 10 us everywhere."""
    rows = [
        row(number, speedup, decisions[number - 1] if decisions else None, eager_us)
        for number, speedup in enumerate(speedups, start=1)
    ]
    environment = {"device": "cuda", "device_name": "NVIDIA H200", "threads": 2}
    return {
        "verdict": "accepted",
        "reason": "",
        "findings": [],
        "shapes": rows,
        "summary": {},
        "environment": environment,
    }


def row(
    rows: int, speedup: float, decision: str | None = None, eager_us: float = 10.0, split: str = "visible"
) -> dict[str, Any]:
    return {
        "dims": {"rows": rows},
        "split": split,
        "timed": True,
        "speedup": speedup,
        "decision": decision,
        "baseline_us": 10.0,
        "candidate_us": 10.0 / speedup,
        "best_baseline": "compile",
        "baselines": {"eager": {"median_us": eager_us}, "compile": {"median_us": 10.0}},
    }


def rejected(word: str, *findings: dict[str, Any]) -> dict[str, Any]:
    return {**accepted(), "verdict": word, "reason": word, "findings": list(findings)}
