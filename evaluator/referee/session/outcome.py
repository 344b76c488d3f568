"""Observations of a candidate at one shape, and its rejection."""

from __future__ import annotations

from dataclasses import dataclass, field

from evaluator.oracle.tolerance import Bounds
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.verdict import Finding


class Rejected(Exception):
    """The candidate is rejected: word, sentence and findings."""

    def __init__(self, word: str, sentence: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(sentence)
        self.word = word
        self.sentence = sentence
        self.findings = findings


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


def where(shape: OpenShape) -> str:
    """A shape in words."""
    return ", ".join(f"{name}={value}" for name, value in shape.dims.items()) or "the task's shape"
