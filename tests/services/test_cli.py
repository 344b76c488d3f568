"""The command line as a person and as a program meet it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from services import cli
from services.cli import app
from services.worker import referee_queue
from tests.services import forked
from tests.services.scripted_service import ScriptedReferee
from tests.services.service import OFTEN_TASK, ONCE, ROOT, TINY_TASK, WRONG, Service


def kernelwright(
    tmp_path: Path, *words: str, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with a data folder of its own."""
    known = Service(tmp_path / "data", environment=environment).environment
    return forked.run("services.cli", words, known, timeout=timeout)


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program itself says; commands are then asked in this process, which spares twenty starts."""
    return kernelwright(tmp_path_factory.mktemp("overview"), "--help").stdout


@pytest.mark.parametrize(
    "command",
    [
        "optimize",
        "resume",
        "replay",
        "batch",
        "evaluate",
        "evaluate-batch",
        "lint",
        "shapes",
        "serve",
        "cost",
        "keys",
        "tasks",
        "doctor",
        "submit",
        "jobs",
        "mcp",
        "watch",
        "fetch",
        "verify",
        "apply",
    ],
)
def test_help_teaches(overview: str, command: str) -> None:
    assert command in overview
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert len(shown.stdout.split()) > 15


def test_tasks_list_names_what_optimize_takes(tmp_path: Path) -> None:
    names = [task["name"] for task in json.loads(kernelwright(tmp_path, "tasks", "list", "--json").stdout)]
    assert "layernorm_relu_add" in names


@pytest.mark.slow
def test_optimize_says_when_nothing_was_good_enough(tmp_path: Path) -> None:
    task, start = tmp_path / "tiny.py", tmp_path / "start.py"
    task.write_text(TINY_TASK)
    start.write_text(WRONG)
    done = kernelwright(
        tmp_path, *("optimize", str(task), "--origin", "human", "--from", str(start), "--json"), timeout=180
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert set(told) == {"job", "winner", "summary", "bundle"}
    assert told["job"]["state"] == "failed"
    assert told["job"]["name"] == "tiny"
    assert told["bundle"] is None
    assert "incorrect" in done.stderr


@pytest.mark.slow
def test_optimize_runs_a_whole_job_without_a_server(tmp_path: Path) -> None:
    task, start, out = tmp_path / "twice.py", tmp_path / "start.py", tmp_path / "bundle.zip"
    task.write_text(OFTEN_TASK)
    start.write_text(ONCE)
    done = kernelwright(
        tmp_path,
        *("optimize", str(task), "--origin", "human", "--from", str(start), "--json", "--out", str(out)),
        timeout=280,
    )
    if "noisy" in done.stderr:
        pytest.skip("nothing can be timed here now")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["job"]["state"] == "succeeded"
    assert told["bundle"] == str(out)
    assert any(name.endswith("optimized.py") for name in zipfile.ZipFile(out).namelist())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("optimize", "no_such_task"), "no task is called"),
        (("optimize", "missing.py"), "cannot read"),
        (("optimize", "layernorm_relu_add", "--budget-seconds", "-1"), "budget.seconds"),
        (("optimize", "layernorm_relu_add", "--device", "cuda"), "no worker here offers"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(referee_queue, "Referee", ScriptedReferee)  # nothing is judged
    done = CliRunner().invoke(app, list(words), env=Service(tmp_path / "data").environment)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert isinstance(done.exception, SystemExit)


def test_jobs_are_submitted_watched_and_fetched_over_http(recorded: Service, tmp_path: Path) -> None:
    task = tmp_path / "broken.py"
    task.write_text("x = 1\n")
    submitted = kernelwright(tmp_path, "submit", str(task), "--url", recorded.url)
    job_id = submitted.stdout.strip()
    assert submitted.returncode == 0, submitted.stderr
    watched = kernelwright(tmp_path, "watch", job_id, "--url", recorded.url)
    assert watched.returncode == 1
    assert "failed" in watched.stdout
    assert job_id in kernelwright(tmp_path, "jobs", "--json", "--url", recorded.url).stdout
    fetched = kernelwright(tmp_path, "fetch", job_id, "--url", recorded.url)
    assert fetched.returncode == 1
    assert "made no bundle" in " ".join(fetched.stderr.split())


def test_a_service_that_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    done = kernelwright(tmp_path, "jobs", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "kernelwright serve" in " ".join(done.stderr.split())


def test_the_service_side_never_imports_torch(tmp_path: Path) -> None:
    program = (
        "import sys, services.cli, services.application, services.worker.app, services.worker.context\n"
        "import services.commands.keys, services.users.keys, services.users.quotas\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=Service(tmp_path).environment,
    )
    assert done.returncode == 0, done.stderr


def test_a_database_that_does_not_answer_is_named_in_a_sentence(tmp_path: Path) -> None:
    closed = "postgresql+psycopg://127.0.0.1:1/none"
    found = kernelwright(tmp_path, "serve", "--port", "0", KERNELWRIGHT_DATABASE_URL=closed)
    assert found.returncode == 1
    assert "the database does not answer" in found.stderr and "KERNELWRIGHT_DATABASE_URL" in found.stderr
    assert "Traceback" not in found.stderr


def test_commands_stand_under_headings_and_the_first_three_are_what_a_newcomer_needs() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "100"}).output
    listed = [
        line.split()[0] for line in shown.partition("\nBegin:\n")[2].splitlines() if line.startswith("  ")
    ]
    assert listed[:3] == ["doctor", "optimize", "serve"]
    headings = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert len(headings) == len(cli._GROUPS) + 1  # and the options
    assert sorted(listed) == sorted(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
