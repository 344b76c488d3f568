"""Measured cells: what the referee found for every program of a grammar at every task of its family.

A program is judged once, at all of its family's shapes and at ragged ones beside them, so one verdict fills a row of cells. A wrong program is wrong
for all tasks of its family: it is no use at the shapes where it happens to be right. Faults of ours (``not_judged``) leave
cells missing, and a table with missing cells cannot be replayed. Verdicts are kept one a line as they come, so that a
stopped run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluator.batch.manifest import read_manifest
from evaluator.batch.places import places
from evaluator.batch.results import Results
from evaluator.batch.run import UNJUDGED, Batch, Options
from evaluator.keeping import replacing
from rl.demo.dialect.grammar import Grammar, Program
from rl.demo.dialect.tasks import RAGGED, Task, task_source, tasks

SCHEMA = "kernelwright.rl_cells/1"
_DEADLINE_S = 600.0
_CHANGED = "the dialect's sources are not those that were judged; measure the table again"


class TableUnusable(Exception):
    """A table that does not fit the dialect, or is not whole; the message says how."""


@dataclass(frozen=True)
class Cell:
    """A program at a task: the verdict's word, and the speedup over the best baseline, 0 unless it was accepted."""

    task: str
    program: str
    word: str
    speedup: float
    ci95: tuple[float, float] | None = None
    candidate_us: float | None = None
    baseline_us: float | None = None


@dataclass(frozen=True)
class Table:
    """All cells of a grammar on one device; ``source_sha256`` is over the sources that were judged."""

    device: str
    size: str
    families: tuple[str, ...]
    source_sha256: str
    environment: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def grammar(self) -> Grammar:
        """The grammar whose programs were judged."""
        return Grammar(self.device, self.size, self.families)

    def of_families(self, families: tuple[str, ...]) -> Table:
        """The part of the table that is about some of its families.

        Raises:
            TableUnusable: the sources have changed since, or a family is not in it.
        """
        if digest(self.grammar) != self.source_sha256:
            raise TableUnusable(_CHANGED)
        if unknown := set(families) - set(self.families):
            raise TableUnusable(f"the table has no family {', '.join(sorted(unknown))}")
        # In the table's order, in which a grammar's programs are.
        kept = tuple(family for family in self.families if family in families)
        cells = tuple(cell for cell in self.cells if cell.program.split("/")[0] in kept)
        part = Grammar(self.device, self.size, kept)
        return Table(self.device, self.size, kept, digest(part), self.environment, cells)

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """Tasks to train on, and held-out ones."""
        train, held_out = tasks(self.device)
        return (
            [task for task in train if task.family in self.families],
            [task for task in held_out if task.family in self.families],
        )

    def scores(self) -> dict[tuple[str, str], float]:
        """Speedup by (task, program's source); failures 0.

        Raises:
            TableUnusable: the sources have changed since, or cells are missing or of no use.
        """
        grammar = self.grammar
        if digest(grammar) != self.source_sha256:
            raise TableUnusable(_CHANGED)
        measured = {(cell.task, cell.program): cell for cell in self.cells}
        train, held_out = self.tasks()
        found: dict[tuple[str, str], float] = {}
        missing = []
        for task in [*train, *held_out]:
            for program in grammar.of_family(task.family):
                cell = measured.get((task.name, program.name))
                if cell is None or cell.word in UNJUDGED:
                    missing.append(f"{program.name} at {task.name}")
                    continue
                if not math.isfinite(cell.speedup) or (cell.speedup > 0) != (cell.word == "accepted"):
                    raise TableUnusable(
                        f"{program.name} at {task.name}: {cell.word} with a speedup of {cell.speedup}"
                    )
                found[task.name, program.source] = cell.speedup
        if missing:
            raise TableUnusable(f"{len(missing)} cells are missing, the first is {missing[0]}")
        return found


def digest(grammar: Grammar) -> str:
    """SHA-256 over everything that decides what a cell means: programs, references, shapes."""
    references = [task_source(family).source for family in grammar.families]
    shapes = [asdict(task) for part in tasks(grammar.device) for task in part]
    asked = [references, [program.source for program in grammar.programs], shapes, list(RAGGED)]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def manifest_lines(grammar: Grammar) -> list[dict[str, Any]]:
    """A line of a batch's manifest for each program, family by family."""
    train, held_out = tasks(grammar.device)
    lines = []
    for family in grammar.families:
        shapes = [task.shape for task in [*train, *held_out] if task.family == family]
        for program in grammar.of_family(family):
            lines.append(
                {
                    "id": program.name,
                    "task": {"source": task_source(family).source},
                    "candidate": {"source": program.source},
                    "device": grammar.device,
                    "effort": "screen",
                    "shapes": {"visible": shapes, "adversarial": list(RAGGED)},
                    "deadline_s": _DEADLINE_S,
                }
            )
    return lines


def measure(
    grammar: Grammar,
    folder: Path,
    work_dir: Path,
    *,
    gpus: str = "all",
    jobs: int | None = None,
    minimum_tier: str = "landlock",
    warn: Callable[[str], None] = lambda sentence: None,
    show: Callable[[Batch], None] = lambda batch: None,
) -> Table:
    """Judges what has not been judged yet, and gives the table of all that has.

    Args:
        grammar: whose programs.
        folder: holds ``manifest.jsonl`` and ``verdicts.jsonl``, one line per program as soon as it is judged.
        work_dir: the referees' caches.
        gpus, jobs: as for ``evaluate-batch``.
        minimum_tier: the weakest sandbox to accept.
        warn: told where a GPU has less room than its referees take.
        show: called several times a second with the running batch.

    Raises:
        EvaluatorError: no such device, or no sandbox.
        ResultsUnusable: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.jsonl"
    manifest.write_text(
        "".join(f"{json.dumps(line)}\n" for line in manifest_lines(grammar)), encoding="utf-8"
    )
    lines = read_manifest(manifest, grammar.device)
    with Results(folder / "verdicts.jsonl") as results:
        batch = Batch(
            lines,
            results,
            lambda devices: places(devices, gpus, jobs, work_dir, warn),
            # Every cell of a table is measured in this run; faults of ours are tried again.
            Options(work_dir, minimum_tier, fresh=True, retry=True),
        )
        batch.run(lambda: show(batch))
        found = [results.find(line.id, line.digest) for line in lines]
    verdicts = {record["id"]: record["verdict"] for record in found if record is not None}
    return table_of(grammar, verdicts)


def table_of(grammar: Grammar, verdicts: Mapping[str, Mapping[str, Any]]) -> Table:
    """The table that verdicts (by program's name) make; programs without one have no cells."""
    train, held_out = tasks(grammar.device)
    cells: list[Cell] = []
    environment: Mapping[str, Any] = {}
    for program in grammar.programs:
        verdict = verdicts.get(program.name)
        if verdict is None:
            continue
        if verdict["verdict"] == "accepted":
            environment = environment or verdict["environment"]
        cells += _row(
            program, [task for task in [*train, *held_out] if task.family == program.family], verdict
        )
    return Table(grammar.device, grammar.size, grammar.families, digest(grammar), environment, tuple(cells))


def _row(program: Program, of_family: Sequence[Task], verdict: Mapping[str, Any]) -> list[Cell]:
    word = str(verdict["verdict"])
    if word != "accepted":
        return [Cell(task.name, program.name, word, 0.0) for task in of_family]
    timed = {
        (shape["dims"]["rows"], shape["dims"]["cols"]): shape
        for shape in verdict["shapes"]
        if shape["split"] == "visible" and shape["speedup"] is not None
    }
    cells = []
    for task in of_family:
        shape = timed.get((task.rows, task.cols))
        if shape is None:  # accepted, but not timed here: our fault, not the program's
            cells.append(Cell(task.name, program.name, "not_judged", 0.0))
            continue
        low, high = shape["ci95"]
        cells.append(
            Cell(
                task.name,
                program.name,
                word,
                round(shape["speedup"], 4),
                (round(low, 4), round(high, 4)),
                round(shape["candidate_us"], 2),
                round(shape["baseline_us"], 2),
            )
        )
    return cells


def summary(table: Table) -> dict[str, Any]:
    """How many cells, by the verdict's word, and the best speedup of each family's tasks (geometric mean)."""
    best: dict[str, dict[str, float]] = {}
    for cell in table.cells:
        family = cell.program.split("/")[0]
        of_family = best.setdefault(family, {})
        of_family[cell.task] = max(of_family.get(cell.task, 0.0), cell.speedup)
    return {
        "cells": len(table.cells),
        "words": dict(Counter(cell.word for cell in table.cells)),
        "best": {
            family: math.exp(sum(math.log(max(value, 1e-3)) for value in scores.values()) / len(scores))
            for family, scores in best.items()
        },
    }


def write_table(table: Table, path: Path) -> None:
    """Writes a table as JSON, a line per cell."""
    head = {"schema": SCHEMA, **asdict(table)}
    del head["cells"]
    cells = ",\n".join(json.dumps(list(asdict(cell).values())) for cell in table.cells)
    whole = json.dumps({**head, "columns": list(Cell.__dataclass_fields__), "cells": []}, indent=1)
    whole = whole.replace('"cells": []', f'"cells": [\n{cells}\n]')
    with replacing(path) as file:
        file.write(whole + "\n")


def _cell(row: Sequence[Any]) -> Cell:
    task, program, word, speedup, ci95, candidate_us, baseline_us = row
    return Cell(task, program, word, speedup, tuple(ci95) if ci95 else None, candidate_us, baseline_us)


def read_table(path: Path) -> Table:
    """Reads what :func:`write_table` wrote.

    Raises:
        TableUnusable: it is something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA or data["columns"] != list(Cell.__dataclass_fields__):
            raise TableUnusable(f"{path} is a table of another kind: {data['schema']!r}")
        cells = tuple(_cell(row) for row in data["cells"])
        return Table(
            data["device"],
            data["size"],
            tuple(data["families"]),
            data["source_sha256"],
            data["environment"],
            cells,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableUnusable(f"{path} is no table of cells: {error}") from None
