"""Rows to train on: each is one verified candidate of one task, as a line of JSON.

A file of rows is JSON Lines in UTF-8: one object per line, with the fields of `Row` and no others; fields with a default may be left
out. `sft` trains on rows, `selfsup` writes its accepted samples as rows, and `contrastive` can take its initial exemplars from rows.

    {"id": "softmax/cpp/3", "task": "softmax", "source": "import torch...", "device": "cpu", "candidate": "import ctypes...",
     "origin": "compiler", "dims": "- rows: 1 to 64", "shapes": "- rows=8, cols=32: 5.1 us",
     "machine": "AMD EPYC, 2 threads", "speedup": 1.31, "shown": [{"source": "...", "speedup": 0.9}],
     "analysis": "...", "design": "..."}

The writer of a row guarantees that the referee accepted `candidate` for `source` on `machine`, and that `speedup` is its geometric mean
over visible shapes. Rows are untrusted nevertheless, since they include third-party candidates: they are read but never run here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from agent.messages import Message
from agent.prompts.markers import holds_markers
from evaluator.devices import DeviceName
from evaluator.keeping import replacing
from evaluator.sources import TaskSource
from rl.config import Part
from rl.errors import CheckpointError, DataError
from rl.exemplars import Draw, Exemplar, Success
from rl.prompts import TaskText, as_text, contrastive_prompt

_MOST_BYTES = 1 << 20
_MOST_SOURCE_CHARACTERS = 200_000

Source = Annotated[str, Field(min_length=1, max_length=_MOST_SOURCE_CHARACTERS)]
Speedup = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ShownRow(Part):
    """An exemplar that the prompt of a row shows: a candidate file and the speedup beside it."""

    source: Source
    speedup: Speedup


class Row(Part):
    """One verified pair of a module and a faster file for it.

    Attributes:
        id: unique in its file, for people.
        task: name of the task; rows of one module share it.
        source: the task file (`class Model`, `get_inputs`, ...), the module that is made faster.
        device: what the candidate is for.
        candidate: the file that the model learns to write, with `class ModelNew`.
        origin: what proposed it, as in `agent.candidates`.
        dims: the task's space for the prompt, a line a dimension; "" for "as in the file".
        shapes: some visible shapes for the prompt, a line each, with the time to beat where it is known.
        machine: type of machine that it was measured on (`evaluator.fingerprint.type_of`); "" where it was not timed.
        speedup: geometric mean over visible shapes; None where it was not timed.
        shown: exemplars of the same task for the prompt, none for a prompt without; up to four.
        analysis: first part of the answer, "" for a standing sentence.
        design: second part of the answer, likewise.
    """

    id: Annotated[str, Field(min_length=1, max_length=200)]
    task: Annotated[str, Field(min_length=1, max_length=200)]
    source: Source
    device: DeviceName
    candidate: Source
    origin: Literal["llm", "policy", "compiler", "human", "external"] = "external"
    dims: Annotated[str, Field(max_length=20_000)] = ""
    shapes: Annotated[str, Field(max_length=20_000)] = ""
    machine: Annotated[str, Field(max_length=200)] = ""
    speedup: Speedup | None = None
    shown: Annotated[tuple[ShownRow, ...], Field(max_length=4)] = ()
    analysis: Annotated[str, Field(max_length=20_000)] = ""
    design: Annotated[str, Field(max_length=20_000)] = ""

    @property
    def reference(self) -> TaskSource:
        """The task in the referee's form."""
        return TaskSource(self.task, self.source)


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a file.

    Raises:
        DataError: the file is unreadable or empty, or a line is not a row; the message names the line.
    """
    rows: list[Row] = []
    known: set[str] = set()
    try:
        with path.open("rb") as file:
            for number, line in _lines(path, file):
                row = _row(path, number, line)
                if row.id in known:
                    raise DataError(f"{path}, line {number}: there is another row {row.id!r} above")
                known.add(row.id)
                rows.append(row)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not rows:
        raise DataError(f"{path} holds no rows; `python -m rl.data build` makes some")
    return rows


def successes_of(path: Path, tasks: Iterable[TaskSource]) -> list[Success]:
    """Read the timed rows of the given tasks, for the exemplar database.

    Raises:
        DataError: see `read_rows`.
    """
    digests = {task.sha256 for task in tasks}
    return [
        Success(row.reference.sha256, row.machine, row.candidate, row.speedup)
        for row in read_rows(path)
        if row.speedup is not None and row.machine and row.reference.sha256 in digests
    ]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a file of rows atomically.

    Raises:
        CheckpointError: it cannot be written; the previous file is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            for row in rows:
                # ASCII escapes keep lone surrogates and line breaks of untrusted text out of the file.
                file.write(json.dumps(row.model_dump(exclude_defaults=True), ensure_ascii=True) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}; make room and do it again"
        ) from None


def task_text(row: Row) -> TaskText:
    """The prompt's description of the row's task."""
    return text_of_task(row.source, row.dims, row.shapes, row.device)


def text_of_task(source: str, dims: str, shapes: str, device: str) -> TaskText:
    """The prompt's description of a task; if its space is unknown, it refers to the file."""
    return TaskText(source, dims or "- as the file says", shapes or "- as the file says", device)


def messages_of(row: Row, special_tokens: Iterable[str] = ()) -> list[Message]:
    """The prompt that the row's candidate answers.

    Raises:
        ValueError: the task contains markers of the model's chat format.
    """
    shown = [
        Exemplar(str(number), one.source, one.speedup)
        for number, one in enumerate(sorted(row.shown, key=lambda one: one.speedup))
    ]
    return contrastive_prompt(task_text(row), Draw(tuple(shown), 0), special_tokens)


def prompt_of(row: Row, special_tokens: Iterable[str] = ()) -> str:
    """The prompt as text, for a model without a chat format."""
    return as_text(messages_of(row, special_tokens))


def answer_of(row: Row) -> str:
    """The answer that the model learns: analysis, design and code, in the form that `rl.prompts.read_answer` parses."""
    analysis = row.analysis.strip() or "Time goes into passes over memory."
    design = row.design.strip() or "One pass over memory as far as the operation allows."
    return f"### Analysis\n\n{analysis}\n\n### Design\n\n{design}\n\n### Code\n\n```python\n{row.candidate.strip(chr(10))}\n```\n"


def teachable(row: Row, special_tokens: Iterable[str] = ()) -> bool:
    """Whether the row may be taught: false if it contains markers of the model's chat format."""
    tokens = tuple(special_tokens)
    texts = (row.source, row.dims, row.shapes, row.candidate, row.analysis, row.design)
    return not any(holds_markers(text, tokens) for text in texts)


def modules(rows: Sequence[Row]) -> Mapping[str, str]:
    """The distinct modules of the rows, keyed by the id of their first row, for `rl.decontamination`."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.source, row.id)
    return {name: source for source, name in first.items()}


def _lines(path: Path, file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file, 1):
        if len(line) > _MOST_BYTES:
            raise DataError(f"{path}, line {number}: longer than {_MOST_BYTES} bytes, which no row is")
        if line.strip():
            yield number, line


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{path}, line {number}: is no JSON") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}, line {number}: is no JSON object")
    speedup = found.get("speedup")
    if isinstance(speedup, bool) or (isinstance(speedup, float) and not math.isfinite(speedup)):
        raise DataError(f"{path}, line {number}: `speedup` is no number")
    try:
        return Row.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise DataError(f"{path}, line {number}: `{place}`: {str(first['msg'])[:200]}") from None
