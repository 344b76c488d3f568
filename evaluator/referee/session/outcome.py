"""What an evaluation has found about a candidate, and its rejection."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from evaluator.oracle.places import Places
from evaluator.oracle.tolerance import Bounds
from evaluator.verdict import Finding, KernelShare, ShapeResult


class Rejected(Exception):
    """The candidate is rejected.

    Args:
        word: of the verdict.
        rule: of the finding.
        sentence: the verdict's reason and the finding's evidence.
        places: see :class:`evaluator.verdict.Finding`.
    """

    def __init__(self, word: str, rule: str, sentence: str, places: Places | None = None) -> None:
        super().__init__(sentence)
        self.word = word
        self.sentence = sentence
        self.finding = Finding(rule, "cheat" if word == "cheating" else "error", sentence, places)


@dataclass
class Outcome:
    """What the checks at one shape saw.

    Attributes:
        max_ratio: largest error relative to its bound.
        max_abs: largest absolute error.
        bounds: per output, what the task's own inputs need.
        checks: calls that were compared.
        first_call_s: seconds that the first call took.
        strict_ratio: largest error relative to the bound of strict arithmetic; above 1 only in a lower precision
            tier.
        unsteady: describes a content whose second result differed from its first; empty if none did.
    """

    max_ratio: float = 0.0
    max_abs: float = 0.0
    bounds: list[Bounds] = field(default_factory=list)
    checks: int = 0
    first_call_s: float = 0.0
    strict_ratio: float = 0.0
    unsteady: str = ""


@dataclass
class Explanation:
    """What an investigation adds to the verdict on a correct candidate."""

    findings: list[Finding] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    kernels: tuple[KernelShare, ...] = ()


@dataclass
class RunState:
    """What one evaluation has found so far, and how long its stages took, in order."""

    findings: list[Finding] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)
    results: list[ShapeResult] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    explanation: Explanation = field(default_factory=Explanation)
    #: See :attr:`evaluator.verdict.Verdict.energy`.
    energy: dict[str, Any] | None = None
    _last_s: float = field(default_factory=time.monotonic)

    def lap(self, stage: str) -> None:
        """Ends a stage, and starts the next one."""
        now_s = time.monotonic()
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + now_s - self._last_s
        self._last_s = now_s
