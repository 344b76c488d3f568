"""The result of examining the machine, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GOOD, DOUBTFUL, BAD = "good", "doubtful", "bad"


@dataclass(frozen=True)
class Line:
    """One examined item.

    Attributes:
        name: what.
        state: ``good``, ``doubtful`` (judging works, with less than it could have) or ``bad``.
        found: what was seen, in words.
        advice: what to do about it; never empty unless the state is good.
    """

    name: str
    state: str
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.state not in (GOOD, DOUBTFUL, BAD):
            raise ValueError(f"unknown state {self.state!r}")
        if self.state != GOOD and not self.advice:
            raise ValueError(f"{self.name}: a line that is not good must say what to do")


@dataclass
class Section:
    """A group of lines, and the same facts for programs."""

    title: str
    lines: list[Line] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
