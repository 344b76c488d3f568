"""`kernelwright tasks import`: replicas of a checkout's layout, each of a kind that an import meets."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluator.client import Referee
from evaluator.description import LintReport
from evaluator.errors import RefereeLost, SandboxUnavailable
from evaluator.sources import TaskSource
from services.catalogue import checkout, importing, registry
from services.cli import app
from services.jobs.requests import OptimizeRequest
from services.jobs.submit import _task
from services.settings import Settings, get_settings

_HEAD = "import torch\nimport torch.nn as nn\n"
_SOUND = _HEAD + textwrap.dedent("""
    class Model(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.linear = nn.Linear(features, features)

        def forward(self, x):
            return self.linear(x).relu()

    rows = 24
    features = 40

    def get_inputs():
        return [torch.randn(rows, features)]

    def get_init_inputs():
        return [features]
""")
# Reaches for the network as a library's loader would, but once: transformers tries for 40 s and more.
_DOWNLOADS = _SOUND + textwrap.dedent("""
    import socket

    class AutoModel:
        @staticmethod
        def from_pretrained(name):
            return socket.create_connection(("192.0.2.1", 443))

    weights = AutoModel.from_pretrained("some/model")
""")
_FILES = {
    "level1/1_Sound_.py": _SOUND,
    "level1/2_Zero.py": _SOUND.replace(".relu()", ".relu() * 0"),
    "level1/10_Broken.py": _SOUND.replace("def forward(", "def forward(:"),
    "level1/1_Sound__OLD.py": "class Model: pass",
    "level2/notes.py": "Model = 1",
    "level4/3_Downloads.py": _DOWNLOADS,
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in _FILES.items():
        path = tmp_path / "repo" / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    other = tmp_path / "repo" / "a_results" / "level1" / "1_Model.py"
    other.parent.mkdir(parents=True)
    other.write_text("Model = 1", encoding="utf-8")
    return tmp_path / "repo"


def _quiet(done: int, total: int, name: str) -> None:
    return


@pytest.mark.parametrize("below", ["", "KernelBench"])
def test_a_checkout_is_read_whichever_folder_is_given(repository: Path, below: str) -> None:
    files = checkout.find(repository / below)
    names = [(file.level, file.name) for file in files]
    assert names == [(1, "kb1_1_Sound"), (1, "kb1_2_Zero"), (1, "kb1_10_Broken"), (4, "kb4_3_Downloads")]


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "other"])
def test_another_folder_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x")
    elif kind != "missing":
        (path / "level1").mkdir(parents=True)
        (path / "level1" / "1_game.py").write_text("print('a game')" if kind == "other" else "")
    result = CliRunner().invoke(app, ["tasks", "import", str(path)])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert ("no folder" if kind in ("missing", "file") else "no checkout of KernelBench") in result.stderr


def test_what_is_sound_is_registered_and_the_rest_is_reported(
    repository: Path, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    seen: list[str] = []
    imported = importing.run(
        checkout.find(repository), [lambda: referee], "cpu", data, lambda done, total, name: seen.append(name)
    )
    assert imported.counts["refused"] == 3 and imported.counts["unknown"] == 0
    assert seen[:4] == ["kb1_1_Sound", "kb1_2_Zero", "kb1_10_Broken", "kb4_3_Downloads"]
    assert [task.name for task in registry.list_tasks(data)] == ["kb1_1_Sound"]
    report = json.loads((imported.folder / "report.json").read_text(encoding="utf-8"))
    reasons = {row["name"]: row["reason"] for row in report["tasks"]}
    assert "zero" in reasons["kb1_2_Zero"]
    assert "not valid Python" in reasons["kb1_10_Broken"]
    assert "needs a download" in reasons["kb4_3_Downloads"]
    page = (imported.folder / "report.html").read_text(encoding="utf-8")
    assert "needs a download" in page and "rows is 1 to" in page
    # A job finds it by name, with the sizes that were found.
    task = _task(OptimizeRequest(task="kb1_1_Sound"), None, Settings(data_dir=data))
    described = referee.describe(task)
    assert described.ok and {"rows", "features"} == set(described.dims)
    monkeypatch.setenv("KERNELWRIGHT_DATA_DIR", str(data))
    get_settings.cache_clear()
    shown = CliRunner().invoke(app, ["tasks", "list", "--json"]).stdout
    get_settings.cache_clear()
    assert [task["name"] for task in json.loads(shown) if task["imported"]] == ["kb1_1_Sound"]


class _Imports:
    """A referee during whose work somebody else imports, too."""

    def __init__(self, again: Any) -> None:
        self._again = again

    def lint(self, task: TaskSource, **options: Any) -> LintReport:
        with pytest.raises(OSError, match="another import is running"):
            self._again()
        raise KeyboardInterrupt

    def restart(self) -> None:
        raise RefereeLost("it is gone")


def test_two_imports_do_not_mix(repository: Path, tmp_path: Path) -> None:
    def start(referee: Any) -> None:
        importing.run(checkout.find(repository), [lambda: referee], "cpu", tmp_path / "data", _quiet)

    with pytest.raises(KeyboardInterrupt):
        start(_Imports(lambda: start(_Imports(None))))


class _Dies:
    """A referee whose machine goes down at a task."""

    def __init__(self, referee: Referee, at: str) -> None:
        self._referee = referee
        self._at = at
        self.asked: list[str] = []

    def lint(self, task: TaskSource, **options: Any) -> LintReport:
        self.asked.append(task.name)
        if task.name == self._at:
            raise KeyboardInterrupt
        return self._referee.lint(task, **options)

    def restart(self) -> None:
        raise RefereeLost("it is gone")


def test_a_stopped_import_keeps_what_it_found_and_goes_on(
    repository: Path, referee: Referee, tmp_path: Path
) -> None:
    data, files = tmp_path / "data", checkout.find(repository)
    dying = _Dies(referee, "kb1_10_Broken")
    with pytest.raises(KeyboardInterrupt):
        importing.run(files, [lambda: dying], "cpu", data, _quiet)
    assert [task.name for task in registry.list_tasks(data)] == ["kb1_1_Sound"]
    rest = _Dies(referee, "")
    importing.run(files, [lambda: rest], "cpu", data, _quiet)
    assert rest.asked == ["kb1_10_Broken", "kb4_3_Downloads"]
    assert [task.name for task in registry.list_tasks(data)] == ["kb1_1_Sound"]


class _Meets:
    """A referee that begins a file when others do, and waits for something before it ends the last one."""

    def __init__(self, referee: Referee, together: threading.Barrier, last: Callable[[], None]) -> None:
        self._referee, self._together, self._last = referee, together, last

    def lint(self, task: TaskSource, **options: Any) -> LintReport:
        if task.name in ("kb1_1_Sound", "kb1_2_Zero"):
            self._together.wait(60)
        if task.name == "kb4_3_Downloads":
            self._last()
        return self._referee.lint(task, **options)

    def restart(self) -> None:
        raise RefereeLost("it is gone")


def test_files_are_looked_at_side_by_side_and_can_be_used_before_the_end(
    repository: Path, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_REGISTER_EVERY_S", 0.0)
    data, together, early = tmp_path / "data", threading.Barrier(2), list[str]()

    def used_meanwhile() -> None:
        until = time.monotonic() + 120
        while not early and time.monotonic() < until:
            early.extend(task.name for task in registry.list_tasks(data))
            time.sleep(0.05)

    one = _Meets(referee, together, used_meanwhile)
    seen: list[tuple[int, int]] = []
    imported = importing.run(
        checkout.find(repository),
        [lambda: one, lambda: one],
        "cpu",
        data,
        lambda done, total, name: seen.append((done, total)),
    )
    assert early == ["kb1_1_Sound"], "registered while another file was looked at"
    assert sum(imported.counts.values()) == 4
    assert seen[0] == (0, 4) and seen[-1] == (4, 4) and seen == sorted(seen)


def test_what_was_registered_stays_until_its_file_has_been_looked_at_again(
    repository: Path, referee: Referee, tmp_path: Path
) -> None:
    data, files = tmp_path / "data", checkout.find(repository)
    importing.run(files[:1], [lambda: referee], "cpu", data, _quiet)
    files[0].path.write_text(_SOUND.replace("rows = 24", "rows = 32"), encoding="utf-8")
    dying = _Dies(referee, "kb1_1_Sound")
    with pytest.raises(KeyboardInterrupt):
        importing.run([files[1], files[0]], [lambda: dying], "cpu", data, _quiet)
    task = registry.load(data, "kb1_1_Sound")
    assert task is not None and "rows = 24" in task.source
    report = json.loads((registry.folder(data) / "report.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in report["tasks"]] == ["kb1_2_Zero"]


def test_a_machine_without_a_sandbox_is_told_in_a_sentence(repository: Path, tmp_path: Path) -> None:
    def start() -> Referee:
        raise SandboxUnavailable("nothing here isolates a task")

    with pytest.raises(SandboxUnavailable, match="nothing here isolates"):
        importing.run(checkout.find(repository), [start, start], "cpu", tmp_path / "data", _quiet)


def test_an_import_takes_the_place_of_the_one_before(
    repository: Path, referee: Referee, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    sound = repository / "KernelBench" / "level1" / "1_Sound_.py"
    for name in ("2_Zero.py", "10_Broken.py"):
        (sound.parent / name).unlink()
    importing.run(checkout.find(repository)[:1], [lambda: referee], "cpu", data, _quiet)
    before = registry.list_tasks(data)[0].sha256
    sound.write_text(_SOUND.replace("rows = 24", "rows = 32"), encoding="utf-8")
    importing.run(checkout.find(repository)[:1], [lambda: referee], "cpu", data, _quiet)
    after = registry.list_tasks(data)
    assert len(after) == 1 and after[0].sha256 != before
    assert {path.name for path in registry.folder(data).parent.iterdir()} == {
        "kernelbench",
        "kernelbench.jsonl",
    }
