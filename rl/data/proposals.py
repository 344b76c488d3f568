"""Proposals for rows, before the referee has judged them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from evaluator.sources import TaskSource

Source = Literal["compiled", "library", "service"]

#: License of a row's text by its source; a published data set must include these.
LICENCES: Mapping[Source, str] = {
    "compiled": "module: MIT (Kernelwright); kernels: written by PyTorch's Inductor and by Kernelwright around it, "
    "MIT, with what Inductor puts into each file under PyTorch's BSD-3-Clause",
    "library": "MIT (Kernelwright)",
    "service": "whoever owns the job; ask before passing it on",
}


@dataclass(frozen=True)
class Proposal:
    """A module, a candidate file for it, and their provenance.

    Attributes:
        id: the same in every run that makes the same pair.
        task: the module.
        device: "cpu" or "cuda".
        candidate: the file.
        origin: as in `agent.candidates`.
        source: the part of this package that made it.
        about: provenance as plain values, such as seed, program or job.
        dims: the task's space as `Referee.describe` returns it; None if not known yet.
        operations: names of the module's operations, for the text of the answer.
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
    """A proposal to be made, with the parts that are cheap to know.

    Attributes:
        id: the proposal's id.
        task: the module.
        make: makes the proposal; it may take long and needs a referee.
    """

    id: str
    task: TaskSource
    make: Callable[[], Proposal]


Leads = Iterator[Lead]
