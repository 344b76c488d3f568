"""What is asked of the referee: a candidate to judge against a task, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evaluator.sources import CandidateSource, TaskSource

#: Splits whose shapes are checked but never timed.
UNTIMED = ("adversarial",)


@dataclass(frozen=True)
class Request:
    """What to judge, and how; see :meth:`evaluator.client.Referee.evaluate`."""

    task: TaskSource
    candidate: CandidateSource
    effort: str = "screen"
    splits: tuple[str, ...] = ("visible", "adversarial")
    shapes: Mapping[str, list[dict[str, Any]]] | None = None
    deadline_s: float = 900.0
    #: Weighted shapes that replace those of the task's file.
    traffic: list[Any] | None = None
    #: The task comes from a user: lint runs first, and the shape space is inferred if the file declares none.
    submitted: bool = False
    #: The user's overrides for the inferred space.
    space: Mapping[str, Any] | None = None
    #: With ``confirm``: also measure joules per call at some shapes, about a minute each.
    energy: bool = False

    @property
    def thorough(self) -> bool:
        """Whether to use every baseline. A screen uses only those that compile quickly."""
        return self.effort == "confirm" or not {"validation", "held_out"}.isdisjoint(self.splits)

    @property
    def is_timed(self) -> bool:
        """Whether shapes of any of its splits are timed."""
        return not set(self.splits) <= set(UNTIMED)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Request:
        """The inverse of :meth:`as_json`."""
        sources = {"task": TaskSource(**plain["task"]), "candidate": CandidateSource(**plain["candidate"])}
        return cls(**{**plain, **sources, "splits": tuple(plain["splits"])})
