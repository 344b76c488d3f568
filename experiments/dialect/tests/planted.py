"""A table whose figures are invented by a rule, so that a test knows what is to be found. Never evidence of anything."""

from __future__ import annotations

from experiments.dialect.cells import Cell, Table, digest
from experiments.dialect.grammar import Grammar, Program
from experiments.dialect.tasks import Task


def invented_speedup(program: Program, task: Task) -> float:
    """Fast math is 4 times as good everywhere; lanes matter by the cut into rows, which no prompt shows; dropped tails are wrong."""
    chosen = dict(program.choices)
    if chosen["tail"] == "dropped":
        return 0.0
    speed = {"O2": 0.5, "O3 native": 1.0, "O3 native fast": 2.0}[chosen["flags"]]
    wide = task.cols >= 512
    return speed * (1.5 if (chosen["lanes"] == "32") == wide else 0.8)


def planted_table(families: tuple[str, ...] = ("softmax", "row_sum")) -> Table:
    """The small CPU grammar with invented figures."""
    grammar = Grammar("cpu", "small", families)
    empty = Table("cpu", "small", families, digest(grammar), {"invented": True}, ())
    cells = []
    for part in empty.tasks():
        for task in part:
            for program in grammar.of_family(task.family):
                speedup = invented_speedup(program, task)
                cells.append(Cell(task.name, program.name, "accepted" if speedup else "incorrect", speedup))
    return Table("cpu", "small", families, digest(grammar), {"invented": True}, tuple(cells))
