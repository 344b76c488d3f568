"""Tables of cells: what verdicts make of them, and that a table with a hole or of other sources is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch.manifest import Entry, read_manifest
from rl.demo.cells import TableUnusable, manifest_lines, measure, read_table, table_of, write_table
from rl.demo.dialect.grammar import Grammar
from rl.demo.dialect.tasks import tasks
from tests.rl.demo.planted import planted_table

GRAMMAR = Grammar("cpu", "small", ("row_sum",))


def accepted(speedup: float) -> dict[str, Any]:
    train, held_out = tasks("cpu")
    shapes = [
        {
            "dims": task.shape,
            "split": "visible",
            "speedup": speedup,
            "ci95": [speedup * 0.9, speedup * 1.1],
            "candidate_us": 10.0,
            "baseline_us": 10.0 * speedup,
        }
        for task in [*train, *held_out]
        if task.family == "row_sum"
    ]
    return {"verdict": "accepted", "environment": {"cpu": "x"}, "shapes": shapes}


def verdicts() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, program in enumerate(GRAMMAR.programs):
        right = dict(program.choices)["tail"] == "kept"
        found[program.name] = accepted(1.0 + index / 10) if right else {"verdict": "incorrect"}
    return found


def test_one_verdict_fills_a_row_of_cells() -> None:
    table = table_of(GRAMMAR, verdicts())
    scores = table.scores()
    train, held_out = table.tasks()
    assert len(scores) == len(GRAMMAR.programs) * (len(train) + len(held_out))
    first, second = GRAMMAR.programs[:2]
    assert scores[train[0].name, first.source] == 1.0
    assert scores[train[0].name, second.source] == 0.0


@pytest.mark.parametrize("fault", ["no verdict", "not judged", "not timed"])
def test_a_hole_is_no_failure_of_the_program(fault: str) -> None:
    found = verdicts()
    name = GRAMMAR.programs[0].name
    if fault == "no verdict":
        del found[name]
    elif fault == "not judged":
        found[name] = {"verdict": "not_judged"}
    else:
        found[name]["shapes"][0]["speedup"] = None
    with pytest.raises(TableUnusable, match="missing"):
        table_of(GRAMMAR, found).scores()


def test_a_table_of_other_sources_is_refused() -> None:
    table = replace(table_of(GRAMMAR, verdicts()), source_sha256="0" * 64)
    with pytest.raises(TableUnusable, match="measure the table again"):
        table.scores()


def test_a_failure_with_a_speedup_is_refused() -> None:
    table = table_of(GRAMMAR, verdicts())
    lying = replace(table.cells[0], word="incorrect")
    with pytest.raises(TableUnusable, match="incorrect with a speedup"):
        replace(table, cells=(lying, *table.cells[1:])).scores()


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = table_of(GRAMMAR, verdicts())
    write_table(table, tmp_path / "cells.json")
    assert read_table(tmp_path / "cells.json") == table
    (tmp_path / "cells.json").write_text('{"schema": "something"}')
    with pytest.raises(TableUnusable):
        read_table(tmp_path / "cells.json")


def test_what_is_judged_is_what_a_batch_takes(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in manifest_lines(Grammar("cuda", "small"))))
    lines = read_manifest(path, "cuda")
    assert all(isinstance(line, Entry) for line in lines)
    assert len({line.digest for line in lines}) == len(Grammar("cuda", "small").programs)


def test_a_run_that_has_every_verdict_starts_no_referee(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in manifest_lines(GRAMMAR)))
    known = verdicts()
    records = [
        {"id": line.id, "line": line.line, "digest": line.digest, "verdict": known[str(line.id)]}
        for line in read_manifest(manifest, "cpu")
    ]
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    seen = []
    table = measure(GRAMMAR, tmp_path, tmp_path / "work", show=lambda batch: seen.append(batch.judged))
    assert table == table_of(GRAMMAR, known)
    assert set(seen) == {0}


def test_the_planted_table_is_whole() -> None:
    assert planted_table().scores()
