"""One row from end to end: a module's graph, the compiler in the sandbox, the referee, the file that training reads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kernelbench_tasks import catalog
from kernelbench_tasks.dims import Dim
from rl.config import FleetPart
from rl.data.build import Builder
from rl.data.lowering import Workshop
from rl.data.modules import Module, Node, task_of
from rl.data.proposals import Proposal
from rl.judges import LocalJudge
from rl.rows import prompt_of, read_rows, teachable

pytestmark = pytest.mark.slow
#: Half of the rows are asked without space and times; by this seed the row here is of the other half.
ASKED_WITH_SHAPES = 2
#: One shape, since each costs a compilation.
SPACE = (("rows", Dim(64, 64)), ("cols", Dim(128, 128)))
CHAIN = Module(2, (Node("gain", (0,)), Node("add", (2, 1)), Node("gelu", (3,))), ("rows",), SPACE)
#: What a kernel of the catalogue computes, in other words.
NORM = Module(1, (Node("rms_norm", (0,)), Node("gain", (1,))), ("rows",), SPACE)


def dims_of(module: Module) -> dict[str, dict[str, object]]:
    return {name: dim.as_dict() for name, dim in module.dims}


def test_a_generated_module_becomes_a_row_and_an_evaluation_task_does_not(tmp_path: Path) -> None:
    settings = FleetPart(device="cpu", deadline_s=240, patience_s=240)
    out = tmp_path / "rows.jsonl"
    with ThreadPoolExecutor(1) as making:
        workshop = making.submit(Workshop, "cpu", tmp_path / "work").result()
        judge = LocalJudge(settings, tmp_path / "work")
        try:
            evaluated = {"rmsnorm": catalog.load("rmsnorm").source}
            with Builder(out, evaluated, judge, making, workshop) as builder:
                proposals = [
                    Proposal(
                        name,
                        task_of(one),
                        "cpu",
                        partial(workshop.lower, task_of(one), dims_of(one)),
                        "compiler",
                        "compiled",
                        {},
                        dims_of(one),
                        one.operations,
                    )
                    for name, one in (("chain", CHAIN), ("norm", NORM))
                ]
                tally = asyncio.run(builder.run(proposals, 1))
                if any("noisy" in why or "quiet" in why for why in tally.missing):
                    pytest.skip(f"nothing can be timed here now: {tally.missing}")
                assert tally.outcomes == {"overlap": 1, "accepted": 1}, (tally, builder.decisions())
                assert builder.export(ASKED_WITH_SHAPES) == 1
        finally:
            judge.close()
            making.submit(workshop.__exit__).result()
    (row,) = read_rows(out)
    assert "async_compile.cpp_pybinding(" in row.candidate
    assert row.speedup is not None
    assert row.design.startswith("One kernel computes:")
    assert teachable(row)
    assert "rows=64, cols=128: " in prompt_of(row)
