"""Stored verdicts and jobs as the API sends them, made by hand: what pages are rendered from without a referee."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from services.jobs.views import EventView

BEGUN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
JOB_ID = "01JD3K8Q2M7XW9N4T6VBRZC5HE"
REFERENCE = '''\
"""Scale and shift."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, cols=32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        return torch.relu(x) * self.weight + 1.0
'''
FASTER = REFERENCE.replace("Model(", "ModelNew(").replace("+ 1.0", ".add(1.0)")
ENVIRONMENT = {
    "device": "cpu",
    "device_name": "Test CPU, 2 cores",
    "gpu_uuid": None,
    "driver": None,
    "torch": "2.13.0+cpu",
    "triton": None,
    "python": "3.11.7",
    "platform": "Linux",
    "threads": 2,
    "power_limit_w": None,
    "harness": "0.1.0",
    "sandbox_tier": "namespaces",
}
SIZES = ((1, 8), (7, 33), (64, 1024), (512, 1024), (4096, 257), (16384, 8192))


def at(offset_s: float) -> str:
    """A time stamp of the story."""
    return (BEGUN + timedelta(seconds=offset_s)).isoformat()


def shape(
    rows: int, cols: int, split: str, speedup: float | None, ci95: tuple[float, float] | None, decision: str
) -> dict[str, Any]:
    """One timed shape of a verdict."""
    baseline_us = rows * cols / 2000 + 8
    return {
        "dims": {"rows": rows, "cols": cols, "dtype": "float32"},
        "split": split,
        "dtype": "float32",
        "correct": True,
        "error": {"max_ratio": 0.1, "max_abs": 1e-6},
        "timed": True,
        "baselines": {
            "eager/1t": {"median_us": baseline_us * 3},
            "compile_default/2t": {"median_us": baseline_us},
        },
        "best_baseline": "compile_default/2t",
        "baseline_us": baseline_us,
        "candidate_us": baseline_us / speedup if speedup else None,
        "speedup": speedup,
        "ci95": list(ci95) if ci95 else None,
        "decision": decision,
        "log_ratios": [],
    }


def adversarial_shape(rows: int, cols: int, *, correct: bool = True) -> dict[str, Any]:
    """A shape that is checked for correct results and never timed."""
    return {
        "dims": {"rows": rows, "cols": cols, "dtype": "float32"},
        "split": "adversarial",
        "stratum": "prime",
        "dtype": "float32",
        "correct": correct,
        "error": {"max_ratio": 0.2, "max_abs": 1e-6},
        "timed": False,
    }


def verdict(
    speedups: Sequence[float | None],
    *,
    split: str = "validation",
    word: str = "accepted",
    reason: str = "Matches the reference on every shape.",
    findings: Sequence[dict[str, Any]] = (),
    weights: Sequence[float | None] = (),
) -> dict[str, Any]:
    """A verdict with one timed shape per speedup; ``None`` is a shape without a figure, a weight is of the traffic."""
    shapes = []
    for (rows, cols), speedup in zip(SIZES, speedups, strict=False):
        if speedup is None:
            shapes.append(shape(rows, cols, split, None, None, "undecided"))
            continue
        low, high = speedup * 0.97, speedup * 1.03
        decision = "faster" if low > 1 else "slower" if high < 1 else "same"
        shapes.append(shape(rows, cols, split, speedup, (low, high), decision))
    for row, weight in itertools.zip_longest(shapes, weights[: len(shapes)]):
        row["weight"] = weight
    known = [speedup for speedup in speedups if speedup is not None]
    mean = math.exp(sum(map(math.log, known)) / len(known)) if known else None
    return {
        "schema": "kernelwright.verdict/1",
        "verdict": word,
        "reason": reason,
        "findings": list(findings),
        "task": {"name": "scale", "sha256": hashlib.sha256(REFERENCE.encode()).hexdigest()},
        "effort": "screen",
        "splits": [split],
        "environment": ENVIRONMENT,
        "shapes": shapes,
        "summary": {
            "geomean_speedup": mean,
            "geomean_ci95": [mean * 0.98, mean * 1.02] if mean else None,
            "p5_speedup": min(known, default=None),
            "worst_speedup": min(known, default=None),
            "share_slower": sum(value < 0.97 for value in known) / len(known) if known else None,
            "share_faster": None,
            "overfit_index": None,
            "traffic": traffic(speedups, weights) if weights else None,
            "by_split": {},
        },
        "timing": {"protocol": "paired", "quads": 12, "aa": None, "throttle": None},
        "setup_s": None,
        "first_call_s": None,
        "compile_s": None,
        "energy": None,
        "stages_s": {},
        "elapsed_s": 4.2,
    }


def traffic(speedups: Sequence[float | None], weights: Sequence[float | None]) -> dict[str, Any]:
    """A summary's figures over the user's own shapes, which are three quarters of their traffic."""
    pairs = [(speed, weight) for speed, weight in zip(speedups, weights, strict=True) if speed and weight]
    total = sum(weight for _, weight in pairs)
    mean = math.exp(sum(math.log(speed) * weight for speed, weight in pairs) / total)
    return {
        "geomean_speedup": mean,
        "geomean_ci95": [mean * 0.97, mean * 1.03],
        "time_speedup": mean,
        "shapes": len(pairs),
        "share": 0.75,
    }


def candidate(
    label: str,
    origin: str,
    *,
    source: str | None = None,
    screen: dict[str, Any] | None = None,
    validation: dict[str, Any] | None = None,
    offset_s: float = 10.0,
    parent_sha256: str | None = None,
) -> dict[str, Any]:
    """A candidate as GET /candidates/{id} sends it."""
    text = source if source is not None else f"{FASTER}\n# {label}\n"
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    latest = validation or screen
    return {
        "id": f"{JOB_ID}.{sha256[:12]}",
        "job_id": JOB_ID,
        "sha256": sha256,
        "origin": origin,
        "label": label,
        "parent_sha256": parent_sha256,
        "source": text,
        "note": "",
        "created_at": at(offset_s),
        "state": "judged" if latest else "pending",
        "verdict": latest["verdict"] if latest else None,
        "reason": latest["reason"] if latest else None,
        "findings": latest["findings"] if latest else [],
        "screen": screen,
        "validation": validation,
        "held_out": None,
    }


def best_of(one: dict[str, Any]) -> dict[str, Any]:
    """A candidate as `best` and `winner` of a job name it."""
    summary = (one["validation"] or one["screen"])["summary"]
    return {
        "sha256": one["sha256"],
        "label": one["label"],
        "origin": one["origin"],
        "geomean_speedup": summary["geomean_speedup"],
        "ci95": summary.get("geomean_ci95"),
    }


def job(state: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """A job as GET /jobs/{id} sends it."""
    made: dict[str, Any] = {
        "id": JOB_ID,
        "name": "scale",
        "state": state,
        "task": {"name": "scale", "sha256": hashlib.sha256(REFERENCE.encode()).hexdigest(), "catalog": False},
        "device": "cpu",
        "created_at": at(0),
        "started_at": at(1),
        "finished_at": at(100) if state in ("succeeded", "failed", "cancelled") else None,
        "attempt": 1,
        "priority": 0,
        "verdict": None,
        "reason": None,
        "counts": {"candidates": 0, "accepted": 0, "rejected": 0, "pending": 0},
        "best": None,
        "winner": None,
        "summary": None,
        "spend": {"usd": 0.0, "tokens": 0, "seconds": 99.0},
        "urls": {},
    }
    made.update(changes)
    return made


def event(number: int, name: str, offset_s: float, **data: Any) -> EventView:
    """An event of the job."""
    return EventView(id=number, time=BEGUN + timedelta(seconds=offset_s), name=name, data=data)
