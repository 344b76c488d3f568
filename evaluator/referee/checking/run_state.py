"""What one evaluation has found so far, and how long its stages took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from evaluator.referee.checking.investigation import Explanation
from evaluator.referee.session.outcome import Outcome
from evaluator.verdict import Finding, KernelShare, ShapeResult


@dataclass
class RunState:
    """What is known so far."""

    findings: list[Finding] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)
    results: list[ShapeResult] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    kernels: tuple[KernelShare, ...] = ()
    #: See :attr:`evaluator.verdict.Verdict.energy`.
    energy: dict[str, Any] | None = None

    def explain(self, explanation: Explanation) -> None:
        """Adds the explanation of a correct candidate. Its seconds are within those of other stages."""
        self.findings += explanation.findings
        self.labels, self.kernels = explanation.labels, explanation.kernels
        self.stages_s["integrity"] = explanation.elapsed_s


class Stages:
    """Seconds per stage, in order."""

    def __init__(self, target: dict[str, float]) -> None:
        self._target = target
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Ends the current stage and starts the next."""
        now = time.monotonic()
        self._target[name] = self._target.get(name, 0.0) + now - self._last
        self._last = now
