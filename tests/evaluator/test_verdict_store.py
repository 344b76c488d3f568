"""A verdict answers a question again only if everything it depends on is the same, and nothing untrusted can plant one."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluator.cli import app
from evaluator.client import Referee
from evaluator.devices import CpuDevice
from evaluator.environment import measured_on
from evaluator.folders import verdicts_folder
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict, without_measurement
from evaluator.verdict_store import Question, VerdictStore

ATTACKS = Path(__file__).parent.parent / "attacks"
QUESTION = Question("task", "candidate", "screen", ("adversarial", "visible"))


def environment(**changed: Any) -> dict[str, Any]:
    return {**measured_on(CpuDevice()), **changed}


def verdict(word: str = "accepted", tier: str = "namespaces", **changed: Any) -> Verdict:
    return without_measurement(
        word,
        "because",
        task={"name": "t", "sha256": "task"},
        candidate={"sha256": "candidate", "origin": "external", "label": "c"},
        effort="screen",
        splits=("visible",),
        environment=environment(sandbox_tier=tier, **changed),
    )


@pytest.fixture
def store(tmp_path: Path) -> VerdictStore:
    return VerdictStore(tmp_path / "verdicts")


def test_the_same_question_gets_the_same_verdict_and_says_so(store: VerdictStore) -> None:
    kept = verdict("incorrect")
    assert store.find(QUESTION, environment(), "landlock") is None
    store.keep(QUESTION, kept)
    found = store.find(QUESTION, environment(), "landlock")
    assert found == replace(kept, reused=True)
    assert kept.reused is False
    assert store.find(replace(QUESTION, splits=("adversarial", "visible")), environment(), "landlock")


@pytest.mark.parametrize(
    "other",
    [
        replace(QUESTION, task="another"),
        replace(QUESTION, candidate="another"),
        replace(QUESTION, effort="confirm"),
        replace(QUESTION, splits=("visible",)),
        replace(QUESTION, shapes='{"visible": [{"n": 3}]}'),
    ],
)
def test_another_question_gets_no_answer(store: VerdictStore, other: Question) -> None:
    store.keep(QUESTION, verdict())
    assert store.find(other, environment(), "landlock") is None


@pytest.mark.parametrize(
    "changed", ["gpu_uuid", "driver", "torch", "triton", "threads", "harness", "device_name"]
)
def test_another_environment_gets_no_answer(store: VerdictStore, changed: str) -> None:
    store.keep(QUESTION, verdict())
    assert store.find(QUESTION, environment(**{changed: "another"}), "landlock") is None


def test_confirm_answers_screen_and_not_the_other_way(store: VerdictStore) -> None:
    confirm = replace(QUESTION, effort="confirm")
    store.keep(QUESTION, verdict("incorrect"))
    assert store.find(confirm, environment(), "landlock") is None
    store.keep(confirm, verdict("accepted"))
    found = store.find(QUESTION, environment(), "landlock")
    assert found is not None
    assert found.verdict == "accepted"


def test_a_stronger_sandbox_serves_and_a_weaker_one_does_not(store: VerdictStore) -> None:
    store.keep(QUESTION, verdict(tier="landlock"))
    assert store.find(QUESTION, environment(), "landlock") is not None
    assert store.find(QUESTION, environment(), "namespaces") is None
    store.keep(QUESTION, verdict(tier="namespaces"))
    assert store.find(QUESTION, environment(), "namespaces") is not None


@pytest.mark.parametrize("word", ["not_judged", "timeout", "task_rejected"])
def test_what_is_no_fact_about_the_candidate_is_not_kept(store: VerdictStore, word: str) -> None:
    store.keep(QUESTION, verdict(word))
    assert store.find(QUESTION, environment(), "landlock") is None


def test_held_out_shapes_are_drawn_anew_each_time(store: VerdictStore, tmp_path: Path) -> None:
    held_out = replace(QUESTION, splits=("held_out", "visible"))
    store.keep(held_out, verdict())
    assert store.find(held_out, environment(), "landlock") is None
    assert not (tmp_path / "verdicts").exists()


def test_a_damaged_or_exchanged_file_is_no_answer(store: VerdictStore, tmp_path: Path) -> None:
    store.keep(QUESTION, verdict())
    store.keep(replace(QUESTION, candidate="another"), verdict())
    one, two = sorted((tmp_path / "verdicts").rglob("*.json"))
    text = one.read_text()
    one.write_text(two.read_text())
    two.write_text(text[:-10])
    assert store.find(QUESTION, environment(), "landlock") is None
    assert store.find(replace(QUESTION, candidate="another"), environment(), "landlock") is None
    for content in ("[]", "null", '{"identity": 1}', text.replace('"schema"', '"scheme"')):
        one.write_text(content)
        two.write_text(content)
        assert store.find(QUESTION, environment(), "landlock") is None


def test_a_folder_that_others_can_write_is_not_believed(store: VerdictStore, tmp_path: Path) -> None:
    store.keep(QUESTION, verdict())
    os.chmod(tmp_path / "verdicts", 0o777)
    assert store.find(QUESTION, environment(), "landlock") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the folder to somebody else")
def test_a_folder_of_somebody_else_is_not_believed(store: VerdictStore, tmp_path: Path) -> None:
    store.keep(QUESTION, verdict())
    os.chown(tmp_path / "verdicts", 12345, 12345)
    assert store.find(QUESTION, environment(), "landlock") is None


@pytest.mark.attacks
@pytest.mark.timeout(180)
def test_reuse_is_asked_for_and_no_candidate_reaches_the_store(referee: Referee) -> None:
    """A caller that does not ask gets a fresh verdict; a planted file can be neither read nor written from inside."""
    task = TaskSource("attacked", (ATTACKS / "task.py").read_text())
    zeros = (ATTACKS / "candidates" / "zeros.py").read_text() + "\n# that no other test sends\n"
    candidate = CandidateSource(zeros, "external", "zeros")
    folder = referee._verdicts_dir
    others = set(folder.rglob("*.json"))
    shapes = {"adversarial": [{"rows": 3, "cols": 17}]}

    def ask(**options: Any) -> Verdict:
        return referee.evaluate(task, candidate, splits=["adversarial"], shapes=shapes, **options)

    first = ask()
    assert (first.verdict, first.reused) == ("incorrect", False)
    assert ask().reused is False
    started = time.monotonic()
    again = ask(reuse=True)
    assert time.monotonic() - started < 1
    assert again.reused is True
    assert ask(reuse=True, deadline_s=5).reused is True
    (kept,) = set(folder.rglob("*.json")) - others
    before = kept.read_bytes()
    program = (
        "import os\n"
        f"for path, flags in (({str(kept)!r}, os.O_RDONLY), ({str(kept)!r}, os.O_WRONLY),\n"
        f"                    ({str(kept.parent / 'planted.json')!r}, os.O_WRONLY | os.O_CREAT)):\n"
        "    try:\n"
        "        os.write(os.open(path, flags, 0o600), b'planted')\n"
        "        print('it worked:', path, flags)\n"
        "    except OSError as error:\n"
        "        print('refused', error.errno)\n"
    )
    result = referee.run_tool(program, {})
    assert result.status == "ok", result
    assert result.stdout.count("refused") == 3
    assert "it worked" not in result.stdout
    assert kept.read_bytes() == before
    assert set(folder.rglob("*.json")) == others | {kept}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_second_submission_needs_no_referee_unless_it_is_to_be_fresh(tmp_path: Path) -> None:
    command = ["evaluate", str(ATTACKS / "task.py"), str(ATTACKS / "candidates" / "zeros.py")]
    command += ["--splits", "adversarial", "--work-dir", str(tmp_path), "--json"]

    def submit(*options: str) -> tuple[dict[str, Any], int, float]:
        started = time.monotonic()
        result = CliRunner().invoke(app, [*command, *options])
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer, result.exit_code, time.monotonic() - started

    # A kept verdict that is wrong, so that it can be told from one that is reached now.
    sources = [(ATTACKS / name).read_text() for name in ("task.py", "candidates/zeros.py")]
    request = Request(TaskSource("t", sources[0]), CandidateSource(sources[1]), splits=("adversarial",))
    VerdictStore(verdicts_folder(tmp_path)).keep(Question.of(request), verdict("accepted"))
    planted, status, elapsed_s = submit()
    assert (planted["verdict"], planted["reused"], status) == ("accepted", True, 0)
    assert planted["candidate"]["label"] == "zeros.py"
    assert elapsed_s < 1
    fresh, status, _ = submit("--fresh")
    assert (fresh["verdict"], fresh["reused"], status) == ("incorrect", False, 1)
    again, status, elapsed_s = submit()
    assert again == {**fresh, "reused": True}
    assert status == 1
    assert elapsed_s < 1
