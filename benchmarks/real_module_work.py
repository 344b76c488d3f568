"""What the parts of :mod:`benchmarks.real_modules` share: the report that is written row by row, and the candidates."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from agent.compiler.cuda_graph import cuda_graph_source
from benchmarks.kernelbench_sample import Module
from benchmarks.shared import environment, write_whole
from evaluator.referee.session.control import twin
from evaluator.sources import TaskSource


class OutOfTime(Exception):
    """The time given is over."""


@dataclass
class Report:
    """What is written, again after every row.

    Attributes:
        path: of the JSON; an existing one is continued. None writes nothing.
        ends_at: on the monotonic clock.
        content: see :meth:`begin`.
    """

    path: Path | None
    ends_at: float
    content: dict[str, Any] = field(default_factory=dict)

    def begin(self, settings: dict[str, Any]) -> None:
        """Reads what there is, and adds this session to it."""
        if self.path is not None and self.path.exists():
            self.content = json.loads(self.path.read_text(encoding="utf-8"))
        for name in ("modules", "rows", "aa", "batch", "plain"):
            self.content.setdefault(name, {})
        self.content.setdefault("program", "benchmarks.real_modules")
        self.content.setdefault("sessions", []).append({"settings": settings, "environment": environment()})

    @property
    def session(self) -> int:
        """Number of this session, which rows carry."""
        return len(self.content["sessions"]) - 1

    def know(self, facts: dict[str, Any]) -> None:
        """The device's facts, from the process that has it open."""
        self.content["sessions"][-1]["environment"] |= facts

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        if self.path is not None:
            write_whole(self.path, self.content)

    @property
    def left_s(self) -> float:
        """Seconds until the end of the time given."""
        return self.ends_at - time.monotonic()

    def check(self) -> None:
        """Raises OutOfTime at the end of the time given."""
        if self.left_s <= 0:
            raise OutOfTime


@dataclass(frozen=True)
class Work:
    """What all parts need."""

    device: str
    modules: list[Module]
    kinds: tuple[str, ...]
    candidates: Path | None
    folder: Path
    report: Report
    console: Console

    def say(self, words: str) -> None:
        """One line."""
        self.console.print(words, highlight=False, markup=False, soft_wrap=True)

    def due(self) -> list[Module]:
        """Modules that can be judged: they run, and a call fits in half of the device's memory."""
        known = self.report.content["modules"]
        return [module for module in self.modules if known.get(module.name, {"fits": True})["fits"]]


def candidate_source(work: Work, module: Module, kind: str) -> str | None:
    """The text of a candidate; None where there is none of this kind.

    Raises:
        ProposalFailed: the module cannot be captured as a CUDA graph.
    """
    if kind == "own":
        return twin(TaskSource(module.name, module.source)).source
    if kind == "graph":
        return cuda_graph_source(module.source, module.name) if work.device == "cuda" else None
    path = work.candidates / f"{module.name}.py" if work.candidates else None
    return path.read_text(encoding="utf-8") if path is not None and path.exists() else None
