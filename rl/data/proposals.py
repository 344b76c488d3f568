"""What may become a row, before anybody has judged it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from evaluator.sources import TaskSource

Source = Literal["compiled", "library", "service"]

#: What the text of a row is under, by where it came from. Whoever publishes a data set passes these on.
LICENCES: Mapping[Source, str] = {
    "compiled": "module: MIT (Kernelwright); kernels: written by PyTorch's Inductor and by Kernelwright around it, "
    "MIT, with what Inductor puts into each file under PyTorch's BSD-3-Clause",
    "library": "MIT (Kernelwright)",
    "service": "whoever owns the job; ask before passing it on",
}


@dataclass(frozen=True)
class Proposal:
    """A pair of a module and a file for it, and how it came about.

    Attributes:
        id: the same in every run that makes the same pair.
        task: the module.
        device: "cpu" or "cuda".
        candidate: the file.
        origin: as in `agent.candidates`.
        source: which part of this package made it.
        about: provenance, plain values: seed, program, job.
        dims: the task's space as `Referee.describe` gives it; None where it is not known yet.
        operations: names of what the module does, for the words of the answer.
    """

    id: str
    task: TaskSource
    device: str
    candidate: str
    origin: str
    source: Source
    about: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, Any] | None = None
    operations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lead:
    """Something to make proposals of. What is cheap to know stands here; `make` may take long, and runs where a referee is.

    Attributes:
        id: of the proposal that it leads to.
        task: the module.
        make: the proposal.
    """

    id: str
    task: TaskSource
    make: Callable[[], Proposal]


Leads = Iterator[Lead]
