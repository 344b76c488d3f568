"""The verdict: one module defines it, everything else reads it. JSON-able through :func:`as_json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "kernelwright.verdict/1"
#: Bump when a change makes old and new figures incomparable.
HARNESS_VERSION = "1"

WORDS = (
    "accepted", "incorrect", "compile_error", "runtime_error", "timeout", "out_of_memory", "cheating",
    "contract_violation", "task_rejected", "not_judged",
)  # fmt: skip
SEVERITIES = ("cheat", "error", "warning", "info")
DECISIONS = ("faster", "same", "slower", "undecided")


@dataclass(frozen=True)
class Finding:
    """One thing the referee noticed: a rule's name, how bad it is, and the evidence in words."""

    rule: str
    severity: str
    evidence: str


@dataclass(frozen=True)
class ShapeResult:
    """What was measured at one shape; times in microseconds per call, speedup = best baseline over candidate."""

    dims: dict[str, Any]
    split: str
    dtype: str
    correct: bool
    error: dict[str, float]
    timed: bool = False
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    best_baseline: str | None = None
    baseline_us: float | None = None
    candidate_us: float | None = None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    decision: str | None = None
    log_ratios: tuple[float, ...] = ()
    disturbed_quads: int = 0
    #: The same as replays of a CUDA graph: ``baseline``, ``baseline_us``, ``candidate_us``, ``speedup``, ``ci95``,
    #: ``decision`` and ``log_ratios``; or ``why_not``. None where it was not asked for.
    captured: dict[str, Any] | None = None
    #: Clock of the multiprocessors meanwhile, lowest and highest in MHz, and why it was held back, if it was.
    clock: dict[str, Any] | None = None


@dataclass(frozen=True)
class Verdict:
    """See design section 3; field names are the JSON's."""

    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    task: dict[str, str]
    candidate: dict[str, str]
    effort: str
    splits: tuple[str, ...]
    environment: dict[str, Any]
    shapes: tuple[ShapeResult, ...]
    summary: dict[str, Any]
    timing: dict[str, Any]
    setup_s: float | None
    first_call_s: float | None
    compile_s: float | None
    stages_s: dict[str, float]
    elapsed_s: float
    energy: None = None
    detail: str = ""
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.verdict not in WORDS:
            raise ValueError(f"unknown verdict word {self.verdict!r}")


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Plain dictionaries and lists, ready for ``json.dumps``."""
    plain = asdict(verdict)
    for shape in plain["shapes"]:
        shape["log_ratios"] = list(shape["log_ratios"])
        shape["ci95"] = None if shape["ci95"] is None else list(shape["ci95"])
    plain["findings"] = list(plain["findings"])
    plain["shapes"] = list(plain["shapes"])
    plain["splits"] = list(plain["splits"])
    return plain
