"""Programs that were written by hand once and vary by parameters: the dialect of the demonstration, and the kernel library.

The dialect's programs are taken in an order that depends on the seed, a family after the other, so that a small data set has all of
them; wrong ones among them (a forgotten tail, a missing mask) are the referee's to find. The library has one kernel for each of its
tasks and devices; its tasks are the catalogue's, so decontamination drops those that the model will be evaluated on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from agent.library.by_task import TaskKernel, list_task_kernels
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog
from rl.data.proposals import Lead, Proposal
from rl.demo.dialect.grammar import Grammar, Program
from rl.demo.dialect.tasks import task_source


def dialect_leads(device: str, seed: int, count: int) -> Iterator[Lead]:
    """`count` programs of the dialect, or all that there are."""
    grammar = Grammar(device, "full")
    generator = random.Random(f"kernelwright.templates/{seed}")  # noqa: S311
    by_family = [
        generator.sample(programs, len(programs)) for programs in map(grammar.of_family, grammar.families)
    ]
    in_turn = [
        family[place]
        for place in range(max(map(len, by_family)))
        for family in by_family
        if place < len(family)
    ]
    for program in in_turn[:count]:
        name = f"template/{device}/{program.name}"
        task = task_source(program.family)
        yield Lead(name, task, partial(_written, name, task, program))


def _written(name: str, task: TaskSource, program: Program) -> Proposal:
    about = {"family": program.family, **dict(program.choices)}
    return Proposal(
        name, task, program.device, program.source, "human", "template", about, operations=(program.family,)
    )


def library_leads(device: str) -> Iterator[Lead]:
    """The library's kernels for tasks of the catalogue."""
    for kernel in list_task_kernels():
        if kernel.device == device:
            task = TaskSource(kernel.task, catalog.load(kernel.task).source)
            name = f"library/{device}/{kernel.task}"
            yield Lead(name, task, partial(_taken, name, task, kernel))


def _taken(name: str, task: TaskSource, kernel: TaskKernel) -> Proposal:
    return Proposal(
        name,
        task,
        kernel.device,
        kernel.source,
        "human",
        "library",
        {"task": kernel.task},
        operations=(kernel.task,),
    )
