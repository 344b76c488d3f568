"""Proposes the kernel library's own kernels, one for each of its tasks and devices.

Its tasks come from the catalog, so decontamination drops those that the model will be evaluated on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from agent.library.by_task import TaskKernel, list_task_kernels
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog
from rl.data.proposals import Lead, Proposal


def library_leads(device: str) -> Iterator[Lead]:
    """Leads to the library's kernels for a device, on tasks of the catalog."""
    for kernel in list_task_kernels():
        if kernel.device == device:
            task = TaskSource(kernel.task, catalog.load(kernel.task).source)
            name = f"library/{device}/{kernel.task}"
            yield Lead(name, task, partial(_taken, name, task, kernel))


def _taken(name: str, task: TaskSource, kernel: TaskKernel) -> Proposal:
    about = {"task": kernel.task}
    return Proposal(
        name, task, kernel.device, kernel.source, "human", "library", about, operations=(kernel.task,)
    )
