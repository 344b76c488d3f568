"""What a contrastive stage begins its exemplars with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator.sources import TaskSource
from rl.config import parse
from rl.rows import Row, write_rows

TASK = TaskSource("t", "class Model: ...\n")


@pytest.mark.parametrize(("machine", "found"), [("H200", ["H200"]), (None, ["H200", "A100"])])
def test_rows_begin_the_database_of_a_service_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, machine: str | None, found: list[str]
) -> None:
    """Its type of machine is known with its first verdict alone, and the database keeps types apart in any case."""
    pytest.importorskip("trl")
    from rl.stages import contrastive

    rows = [
        Row(id=name, task="t", source=TASK.source, device="cuda", candidate=name, machine=name, speedup=2.0)
        for name in ("H200", "A100")
    ]
    untimed = Row(id="untimed", task="t", source=TASK.source, device="cuda", candidate="x")
    write_rows(tmp_path / "rows.jsonl", [*rows, untimed])
    stage: Any = parse(
        {
            "stage": "contrastive", "name": "x", "output": str(tmp_path), "steps": 1,
            "exemplars": {"begin_with": str(tmp_path / "rows.jsonl")},
        },
        "x",
    )  # fmt: skip
    assert [one.machine for one in contrastive._beginning(stage, {"t": TASK}, machine)] == found
    # What is left out is told, and nothing else.
    left_out = "1 of 2 exemplars to begin with are of another type of machine (A100) than rewards are (H200), and are left out"
    assert caplog.messages == ([left_out] if machine else [])
