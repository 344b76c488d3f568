"""Parses the critic's answer: exactly one bottleneck and one change. The answer is untrusted, so parsing is strict.

A critic separate from the coder, with one bottleneck per answer, is the best-supported component of such loops (CudaForge,
arXiv 2511.01884: 90.8 % correct at 1.11x with self-refinement, 97.6 % at 1.68x with a judge, at equal rounds).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

BOTTLENECKS = (
    "memory_bandwidth", "memory_latency", "compute", "launch_overhead", "synchronization", "occupancy", "call_overhead",
    "numerics", "other",
)  # fmt: skip
_MAX_WORDS = 45
_OBJECT = re.compile(r"\{[^{}]*\}", re.DOTALL)


@dataclass(frozen=True)
class Diagnosis:
    """One thing to change.

    Attributes:
        bottleneck: one of `BOTTLENECKS`.
        evidence: the measurements that support it.
        change: the one change, in words.
    """

    bottleneck: str
    evidence: str
    change: str


def parse(text: str) -> Diagnosis | None:
    """The diagnosis in an answer; None if it names none or several.

    The last valid JSON object counts. Texts longer than `_MAX_WORDS` words are truncated: the coder needs one decision, not an essay.
    """
    answer = text.rpartition("</think>")[2]
    for found in reversed(_OBJECT.findall(answer)):
        try:
            value = json.loads(found)
        except (ValueError, RecursionError):
            continue
        diagnosis = _diagnosis(value)
        if diagnosis is not None:
            return diagnosis
    return None


def _diagnosis(value: dict[str, Any]) -> Diagnosis | None:
    change = value.get("change")
    bottleneck = value.get("bottleneck")
    if not isinstance(change, str) or not change.strip() or not isinstance(bottleneck, str):
        return None  # for example a list of changes
    name = re.sub(r"[^a-z]+", "_", bottleneck.strip().lower()).strip("_")
    evidence = value.get("evidence")
    return Diagnosis(
        name if name in BOTTLENECKS else "other",
        _short(evidence if isinstance(evidence, str) else ""),
        _short(change),
    )


def _short(text: str) -> str:
    words = text.split()
    return " ".join(words[:_MAX_WORDS]) + (" ..." if len(words) > _MAX_WORDS else "")
