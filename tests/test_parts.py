"""`make test` runs every test once, what times something by itself, and one exit code speaks for both parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import run_tests
from tests.scheduling import KINDS, ByKind

REPOSITORY = Path(__file__).resolve().parent.parent
_CONFTEST = """
import pytest
from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_ignore_collect

def pytest_runtest_call(item):
    with open("ran", "a") as log:
        log.write(f"{item.name} {'PYTEST_XDIST_WORKER' in __import__('os').environ}\\n")
"""
_TESTS = """
import pytest

def test_that_shares():
    pass

@pytest.mark.alone
def test_that_times():
    pass

def test_that_fails():
    assert False

@pytest.mark.slow
def test_that_is_slow():
    pass
"""


_SHARED = """
def test_that_shares_too():
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_some.py").write_text(_TESTS)
    (tmp_path / "test_others.py").write_text(_SHARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone: a\n    slow: b\n")
    return tmp_path


def _run(suite: Path, *arguments: str) -> tuple[int, dict[str, str], str]:
    """Exit code, which tests ran and whether in several processes, and what was printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    # without the plugins that nothing here needs: importing them takes longer than all the rest
    environment |= {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "scripts.run_tests", "-p", "xdist.plugin", *arguments]
    done = subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    log = suite / "ran"
    lines = log.read_text().split("\n") if log.exists() else []
    ran = dict(line.split() for line in lines if line)
    assert len(ran) == len([line for line in lines if line]), "a test ran twice"
    return done.returncode, ran, done.stdout


def test_each_test_runs_in_its_part_and_a_failure_is_told_at_the_end(suite: Path) -> None:
    code, ran, printed = _run(suite)
    assert code == 1
    assert ran == {
        "test_that_shares": "True",
        "test_that_shares_too": "True",
        "test_that_fails": "True",
        "test_that_times": "False",
    }
    assert "1 failed, 2 passed" in printed


def test_a_test_that_no_part_would_run_is_an_error(suite: Path) -> None:
    """It is alone by a marker that its file does not name."""
    (suite / "marks.py").write_text("import pytest\nby_itself = pytest.mark.alone\n")
    others = suite / "test_others.py"
    others.write_text(f"from marks import by_itself\npytestmark = by_itself\n{_SHARED}")
    code, ran, _ = _run(suite, "-n", "0")
    assert (code, ran) == (4, {})


def test_the_first_failure_may_be_the_last(suite: Path) -> None:
    code, ran, _ = _run(suite, "-x", "-n", "0")
    assert (code, "test_that_times" in ran) == (1, False)


@pytest.mark.parametrize(("name", "expected"), [("times", 0), ("nothing", 5)])
def test_a_part_without_tests_is_no_failure(suite: Path, name: str, expected: int) -> None:
    code, ran, _ = _run(suite, "-k", name, "-n", "0")
    assert (code, len(ran)) == (expected, expected == 0)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([0, 1], 1), ([5, 3], 3), ([2], 2)],
)
def test_one_code_for_both_parts(codes: list[int], expected: int) -> None:
    assert run_tests.exit_code(codes) == expected


def test_an_interrupted_part_is_the_last() -> None:
    assert run_tests.goes_on(0, []) and run_tests.goes_on(5, []) and run_tests.goes_on(1, ["-k", "x"])
    assert not any(run_tests.goes_on(code, []) for code in (2, 3, 4))
    assert not run_tests.goes_on(1, ["--maxfail=3"])


class _Process:
    """Of a process of the tests what a scheduler asks."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.given: list[int] = []
        self.ran: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_process_keeps_to_its_kind_of_files_until_those_are_gone() -> None:
    folders = ("agent", "cases", "evaluator", "rl", "services", "services", "services")
    files = [f"tests/{folder}/test_{number}.py" for number, folder in enumerate(folders)]
    tests = [f"{file}::test_{number}" for file in files for number in range(3)]
    option = SimpleNamespace(loadscopereorder=False, debug=False)
    config: Any = SimpleNamespace(option=option, getvalue={"tx": ["popen"] * 3, "rsyncdir": []}.get)
    scheduler = ByKind(config)
    processes: list[Any] = [_Process(number) for number in range(3)]
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    while scheduler.has_pending:
        for process in processes:
            if process.given:
                process.ran.append(process.given.pop(0))
                scheduler.mark_test_complete(process, process.ran[-1])
    ran = [[tests[number].split("/")[1] for number in process.ran[::3]] for process in processes]
    assert ran[0][:2] == ["agent", "services"], "where most is left"
    assert ran[1][:2] == ["cases", "evaluator"] and {*ran[2]} == {"rl", "services"}
    assert sorted(number for process in processes for number in process.ran) == [*range(len(tests))]


def test_each_folder_of_a_kind_exists() -> None:
    assert all((REPOSITORY / "tests" / folder).is_dir() for folders in KINDS for folder in folders)
