"""`python -m services.demo`: what `make demo` runs."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kernelbench_tasks import catalog
from services.commands import showing
from services.commands.showing import leaderboard
from services.demo.cheat import cheating_candidate
from tests.browser import stored
from tests.services.service import ROOT, TINY_TASK, UNPARSABLE, descendants, is_alive, wait_until

DECORATED = '''\
from __future__ import annotations
import functools
import torch
from kernelbench_tasks import Dim
DIMS: dict = {
    "rows": Dim(1, 8),
}
DIRECTION = "forward"


@functools.cache
def get_inputs(rows=4):
    return [torch.ones(rows)]


def scale(x):
    """Stays."""
    return x * 2


class Model(torch.nn.Module):
    def forward(self, x):
        return scale(x)
'''


def run_demo(folder: Path, *arguments: str, timeout_s: float = 800.0) -> subprocess.CompletedProcess[str]:
    """The demo as `make demo` runs it where the output is no terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    command = [sys.executable, "-m", "services.demo", "--data-dir", str(folder), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.parametrize("source", [TINY_TASK, DECORATED, *(task.source for task in catalog.list_tasks())])
def test_the_cheat_is_made_from_any_task_and_keeps_what_the_module_needs(source: str) -> None:
    made = cheating_candidate(source)
    compile(made, "cheat.py", "exec")
    assert "class Model(" in made
    assert "class ModelNew(Model)" in made
    assert "kernelbench_tasks" not in made
    assert "get_inputs" not in made
    assert "DIMS" not in made
    assert ("def scale" in made) == ("def scale" in source)


def test_the_board_ranks_says_origins_plainly_and_obeys_no_control_character() -> None:
    candidates = [
        stored.candidate("one pass", "human", validation=stored.verdict([1.5, 1.8])),
        stored.candidate("mode\x1b[2Jx", "compiler", validation=stored.verdict([1.1])),
        stored.candidate("only screened", "llm", screen=stored.verdict([9.0], split="visible")),
        stored.candidate("no", "external", screen=stored.verdict([], word="cheating", reason="Replayed.")),
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(leaderboard(candidates, candidates[0]["sha256"]))
    lines = [line.split("│")[1:-1] for line in console.export_text().splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0][:7] == [
        "1",
        "one pass  winner",
        "human: kernel library",
        "1.64×",
        "1.61 to 1.68",
        "",  # before the choice
        "1.50×",
    ]
    assert cells[1][:3] == ["2", "mode\N{REPLACEMENT CHARACTER}[2Jx", "compiler"]
    assert cells[2][:4] == ["3", "only screened", "LLM", "9.00× on visible shapes only"]
    assert [cells[3][0], cells[3][1], cells[3][2], cells[3][3]] == ["", "no", "external", "not measured"]
    assert cells[4][1] == "Replayed."


def test_what_is_done_now_is_told_where_nothing_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "_SAY_EVERY_S", -1.0)
    said = {"phase": "screen", "label": "one pass", "text": "checking rows=512"}
    progress = stored.event(1, "candidate.progress", 1, **said)
    for chatty, times in ((True, 1), (False, 0)):
        console = Console(width=120, record=True, file=io.StringIO())
        with showing.Following(console, chatty=chatty) as following:
            following.tell(progress)
        assert console.export_text().count("Screening one pass: checking rows=512") == times


@pytest.mark.timeout(300)
def test_a_module_that_does_not_parse_ends_the_demo_with_a_sentence(tmp_path: Path) -> None:
    task = tmp_path / "broken.py"
    task.write_text(UNPARSABLE)
    done = run_demo(tmp_path / "data", "--task", str(task))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The demo failed: " in done.stdout and "is no Python: line" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_task_that_does_not_exist_ends_the_demo_before_anything_starts(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "data", "--task", "no_such_task")
    assert done.returncode == 1
    assert "no task is called 'no_such_task'" in done.stdout
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_demo_that_is_terminated_stops_its_service(tmp_path: Path) -> None:
    log = tmp_path / "data" / "service.log"
    command = [sys.executable, "-m", "services.demo", "--data-dir", str(log.parent)]
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(
        lambda: log.exists() and "Kernelwright is at" in log.read_text(),
        120.0,
        lambda: "no address in the log",
    )
    started = descendants(demo.pid)
    assert started
    demo.terminate()
    assert demo.wait(timeout=60) == 128 + signal.SIGTERM
    wait_until(
        lambda: not any(is_alive(pid) for pid in started), 30.0, lambda: "a process of the service lives on"
    )


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_demo_goes_from_a_file_of_ones_own_to_a_caught_cheat(tmp_path: Path) -> None:
    task = tmp_path / "mine.py"
    task.write_text(
        catalog.load("bias_gelu").source
    )  # a module that the library makes twice as fast on any CPU
    done = run_demo(tmp_path / "data", "--task", str(task))
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "Dashboard: http://127.0.0.1:",
        "speedup on held-out shapes",
        "POST /optimize to the first accepted candidate",
        "verdict: cheating",
        "The service is stopped.",
    ):
        assert said in done.stdout, done.stdout
    bundle = next((tmp_path / "data").glob("mine-*.zip"))
    assert bundle.stat().st_size > 0
    assert str(bundle) in done.stdout
