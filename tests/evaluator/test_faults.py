"""No traceback reaches a user: an error of ours becomes one sentence that says where the details are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evaluator import cli, daemon, faults
from evaluator.errors import EvaluatorError, RoleFailure
from evaluator.referee.judging import core as core_module
from evaluator.referee.judging.core import RefereeCore
from tests.evaluator.judging import task

_FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation for Memory Management"


def _fails(*given: Any, **named: Any) -> Any:
    raise torch.OutOfMemoryError(_FULL)


def _file_named_in(sentence: str) -> str:
    return Path(sentence.rpartition("please report it with ")[2].strip()).read_text()


def test_a_bug_in_the_referee_reaches_its_caller_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "_handle", _fails)
    answer = daemon._answered(None, {}, None, tmp_path)  # type: ignore[arg-type]
    assert list(answer) == ["error"] and "\n" not in answer["error"]
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.)" in answer["error"]
    assert "Traceback" in _file_named_in(answer["error"]) and "in _fails" in _file_named_in(answer["error"])
    assert capfd.readouterr() == ("", "")


def test_a_refusal_of_the_referee_comes_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: Any) -> Any:
        raise EvaluatorError("there is no such device: name another")

    monkeypatch.setattr(daemon, "_handle", refuses)
    assert daemon._answered(None, {}, None, tmp_path) == {"error": "there is no such device: name another"}  # type: ignore[arg-type]
    assert not (tmp_path / faults.FOLDER).exists()


@pytest.mark.parametrize("stage", ["TaskSession", "describe", "lint"])
def test_a_card_that_others_have_filled_is_no_bug(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    source = task("""
        class Model(nn.Module):
            def forward(self, x):
                return x * 3

        def get_inputs():
            return [torch.randn(4, 8)]

        def get_init_inputs():
            return []
        """)
    monkeypatch.setattr(core_module, stage, _fails)
    if stage == "lint":
        report = core.lint(source, fresh=True)
        found = report.verdict, report.findings[0].sentence
    else:
        description = core._describe(source, 60.0, None)
        found = description.verdict, description.reason
    assert found[0] == "not_judged"
    assert "other programs took the GPU's memory: CUDA out of memory." in found[1]
    core._drop(source)


@pytest.mark.parametrize("command", [["evaluate", "task.py", "fast.py"], ["lint", "task.py"], ["evaluate-batch", "all.jsonl", "--out", "out.jsonl"]])  # fmt: skip
def test_a_command_ends_with_a_sentence_and_status_2(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evaluator import client
    from evaluator.commands import evaluate_batch as batch

    for name in ("task.py", "fast.py", "all.jsonl"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(client.Referee, "__init__", _fails)
    monkeypatch.setattr(batch, "read_manifest", _fails)
    with pytest.raises(SystemExit) as ended:
        faults.guarded(lambda: cli.app(command))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    told = err.strip().splitlines()[-1]
    assert "Traceback" not in err + out and told.startswith(
        "an internal error of Kernelwright (OutOfMemoryError"
    )
    assert "in _fails" in _file_named_in(told)


def test_where_nothing_can_be_written_the_place_is_told(tmp_path: Path) -> None:
    (tmp_path / faults.FOLDER).write_text("in the way")
    try:
        _fails()
    except torch.OutOfMemoryError as error:
        sentence = faults.told(error, tmp_path)
    assert "test_faults.py:" in sentence and "could not be written" in sentence


def test_old_tracebacks_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_MOST_FILES", 3)
    for number in range(7):
        faults.told(RoleFailure("not_judged", str(number)), tmp_path)
    kept = sorted((tmp_path / faults.FOLDER).iterdir())
    assert len(kept) == 3
