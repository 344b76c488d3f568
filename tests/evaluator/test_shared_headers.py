"""What every process that compiles for a CPU needs is made once: by a thread of the referee, beside its first answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.folders import headers_folder
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.processes import fleet as fleet_module
from evaluator.referee.processes.fleet import process_headers
from evaluator.roles.tool_run import ToolResult, run_tool
from tests.evaluator.judging import task

pytestmark = pytest.mark.timeout(300)

#: Compiles one kernel and prints what Inductor asked of the C++ compiler: one line a library or header that was built.
COMPILES = """
import subprocess
import torch
from evaluator.roles import shared_headers

run = subprocess.run
def told(command, *arguments, **options):
    if "-o" in command:
        print("built", command[command.index("-o") + 1])
    return run(command, *arguments, **options)
subprocess.run = told
shared_headers.use(FOLDER)
torch.compile(lambda x: (x * 3).relu(), dynamic=False)(torch.ones(64))
"""


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefereeCore]:
    """A referee whose cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    core = RefereeCore("cpu", tmp_path / "referee", "landlock")
    yield core
    core.close()


def built(core: RefereeCore) -> list[str]:
    folder = process_headers(core.fleet.tier, core.fleet.headers)
    process = core.fleet.server("compile").fork(role="tool", limits=core.fleet.limits, may_compile=True)
    result = run_tool(process, COMPILES.replace("FOLDER", repr(folder)), {}, 120.0)
    assert result.status == "ok", (result.stdout, result.stderr)
    return [os.path.basename(line) for line in result.stdout.splitlines() if line.startswith("built ")]


@pytest.mark.slow
def test_a_process_that_compiles_builds_its_kernel_and_nothing_else(cold: RefereeCore) -> None:
    cold.fleet.warm_up()
    assert (headers_folder() / "isa").is_dir()
    assert [name.partition(".")[2] for name in built(cold)] == [
        "i",
        "main.so",
    ]  # the header's text, for its digest


@pytest.mark.slow
def test_where_the_best_instruction_set_does_not_work_each_process_tries_for_itself(
    cold: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = []

    def first_one_fails(process: Any, program: str, *arguments: Any) -> ToolResult:
        programs.append(program)
        if len(programs) == 1:
            process.close()
            return ToolResult("error", 1, "illegal instruction")
        return run_tool(process, program, *arguments)

    monkeypatch.setattr(fleet_module, "run_tool", first_one_fails)
    cold.fleet.warm_up()
    assert ["trusting=True" in program for program in programs] == [True, False]
    assert (headers_folder() / "complete").exists()
    assert not (headers_folder() / "isa").exists()


def test_only_a_task_that_compiles_itself_waits_for_headers(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []
    monkeypatch.setattr(core.fleet, "build_headers", lambda: waited.append("waited"))
    module = "class Model(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    inputs = "def get_inputs():\n    return [torch.ones(3)]\n\ndef get_init_inputs():\n    return []\n"
    core.session(task('"""A compiler fuses it; compiled code is faster."""\n' + module + inputs))
    assert not waited
    core.session(task("torch.compile\n" + module + inputs))
    assert waited


@pytest.mark.slow
def test_a_referee_answers_while_it_warms_its_compiler_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Referee("cpu", work_dir=tmp_path / "referee") as referee:
        assert referee.self_check()["tier"]
        assert not (headers_folder() / "complete").exists()
