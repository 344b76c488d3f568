"""Proposals for rows, before the referee has judged them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from agent.kernels.by_task import list_task_kernels
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog

Source = Literal["compiled", "written", "library", "service"]

#: License of a row's text by its source; a published data set must include these.
LICENCES: Mapping[Source, str] = {
    "compiled": "module: MIT (Kernelwright); kernels: written by PyTorch's Inductor and by Kernelwright around it, "
    "MIT, with what Inductor puts into each file under PyTorch's BSD-3-Clause",
    "written": "MIT (Kernelwright)",
    "library": "MIT (Kernelwright)",
    "service": "the owner of the job; ask before passing it on",
}


@dataclass(frozen=True)
class Proposal:
    """A module, how a candidate file for it is made, and their provenance.

    Attributes:
        id: the same in every run that makes the same pair.
        task: the module.
        device: "cpu" or "cuda".
        make: makes the candidate file; it may take long and need a referee.
        origin: as in `agent.candidates`.
        source: the part of this package that made it.
        about: provenance as plain values, such as seed, program or job.
        dims: the task's space as `Referee.describe` returns it; None if not known yet.
        operations: names of the module's operations, for the text of the answer.
    """

    id: str
    task: TaskSource
    device: str
    make: Callable[[], str]
    origin: str
    source: Source
    about: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, Any] | None = None
    operations: tuple[str, ...] = ()


def from_library(device: str) -> Iterator[Proposal]:
    """The kernel library's own kernels for a device, on tasks of the catalog.

    Decontamination drops the tasks that the model will be evaluated on.
    """
    for kernel in list_task_kernels():
        if kernel.device == device:
            yield Proposal(
                id=f"library/{device}/{kernel.task}",
                task=TaskSource(kernel.task, catalog.load(kernel.task).source),
                device=device,
                make=partial(str, kernel.source),
                origin="human",
                source="library",
                about={"task": kernel.task},
                operations=(kernel.task,),
            )
