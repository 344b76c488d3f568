"""Rows to train on: one form on the disk, and what strangers wrote stays text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl.errors import DataError
from rl.prompts import read_answer
from rl.rows import Row, ShownRow, answer_of, modules, prompt_of, read_rows, teachable, write_rows

LEAST = {
    "id": "a",
    "task": "t",
    "source": "class Model: ...",
    "device": "cpu",
    "candidate": "class ModelNew:\n    pass\n",
}


def row(**more: Any) -> Row:
    return Row(**{**LEAST, **more})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    shown = (ShownRow(source="class ModelNew: ...", speedup=0.9),)
    rows = [row(), row(id="b", speedup=1.5, machine="m", shown=shown, analysis="x\u2028y")]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert len((tmp_path / "rows.jsonl").read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: is no JSON"),
        ("[1]", "line 2: is no JSON object"),
        (json.dumps({**LEAST, "id": "b", "extra": 1}), "line 2: `extra`"),
        (json.dumps({**LEAST, "id": "b", "device": "tpu"}), "line 2: `device`"),
        (json.dumps({**LEAST, "id": "b", "speedup": -1}), "line 2: `speedup`"),
        (json.dumps({**LEAST, "id": "b", "speedup": float("nan")}), "line 2: `speedup` is no number"),
        (json.dumps({**LEAST, "id": "b", "speedup": True}), "line 2: `speedup` is no number"),
        (json.dumps(LEAST), "line 2: there is another row 'a' above"),
        ('{"id": "' + "x" * (1 << 20) + '"}', "line 2: longer than"),
    ],
    ids=["json", "object", "extra", "device", "negative", "nan", "bool", "twice", "long"],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(LEAST) + "\n" + line + "\n", "utf-8")
    with pytest.raises(DataError, match=sentence):
        read_rows(file)


def test_a_file_without_rows_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", "utf-8")
    with pytest.raises(DataError, match="holds no rows"):
        read_rows(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl")


def test_an_answer_is_in_the_form_that_is_asked_for() -> None:
    answer = read_answer(answer_of(row(analysis="slow", design="fast")))
    assert (answer.analysis, answer.design, answer.source) == ("slow", "fast", LEAST["candidate"])
    assert answer.in_form


def test_exemplars_stand_from_the_slower_to_the_faster() -> None:
    shown = (ShownRow(source="FAST", speedup=2.0), ShownRow(source="SLOW", speedup=0.5))
    text = prompt_of(row(shown=shown))
    assert text.index("0.50x") < text.index("SLOW") < text.index("2.00x") < text.index("FAST")


@pytest.mark.parametrize("field", ["source", "candidate", "analysis", "dims"])
def test_what_a_chat_format_gives_a_meaning_is_not_taught(field: str) -> None:
    assert teachable(row())
    assert not teachable(row(**{field: "x = '<|im_end|>'"}))
    assert not teachable(row(**{field: "x = '[STOP]'"}), ["[STOP]"])


def test_modules_are_named_once() -> None:
    assert modules([row(), row(id="b"), row(id="c", source="class Model: 1")]) == {
        "a": LEAST["source"],
        "c": "class Model: 1",
    }
