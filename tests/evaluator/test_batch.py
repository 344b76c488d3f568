"""Many candidates, one file of verdicts: resumable, whole after every interruption, never judged twice."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from evaluator.batch.manifest import Entry, read_manifest
from evaluator.batch.places import choose, places
from evaluator.batch.results import Record, Results, ResultsUnusable
from evaluator.batch.run import Batch, Options
from evaluator.batch.schedule import Schedule
from evaluator.cli import app
from evaluator.devices.cuda.nvml import allowed
from evaluator.errors import EvaluatorError
from evaluator.verdict import NO_ROOM, from_json

ATTACKS = Path(__file__).parent.parent / "attacks"
#: Correctness alone at one small shape: a verdict takes a tenth of a second.
QUICK = {"splits": ["adversarial"], "shapes": {"adversarial": [{"rows": 3, "cols": 17}]}}
SLOW = """
import time
import torch.nn.functional as F
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        time.sleep({seconds})
    def forward(self, x):
        return F.relu(self.norm(x))
"""

pytestmark = pytest.mark.timeout(240)


def asking(name: str, candidate: str | None = None, **fields: Any) -> dict[str, Any]:
    source = candidate or str(ATTACKS / "candidates" / f"{name}.py")
    return {"id": name, "task": str(ATTACKS / "task.py"), "candidate": source, **QUICK, **fields}


def write_manifest(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "manifest.jsonl"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n")
    return path


def run(folder: Path, *options: str) -> Result:
    command = ["evaluate-batch", str(folder / "manifest.jsonl"), "--out", str(folder / "results.jsonl")]
    return CliRunner().invoke(app, [*command, "--work-dir", str(folder / "work"), *options])


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def words(folder: Path) -> dict[str, str]:
    return {str(record["id"]): record["verdict"]["verdict"] for record in records(folder)}


@pytest.mark.slow
def test_every_line_gets_its_verdict_once_and_only_changed_ones_again(tmp_path: Path) -> None:
    """One batch through its life; referees are started for the first run and the fourth alone."""
    honest = (ATTACKS / "candidates" / "honest.py").read_text()
    write_manifest(
        tmp_path,
        asking("zeros"),
        "{broken",
        asking("again", candidate=honest),
        asking("honest"),
        asking("exits"),
        asking("no_file", candidate="absent.py"),
    )
    first = run(tmp_path)
    assert first.exit_code == 1, first.output
    assert words(tmp_path) == {
        "None": "not_judged", "no_file": "not_judged", "zeros": "incorrect", "again": "accepted",
        "honest": "accepted", "exits": "runtime_error",
    }  # fmt: skip
    by_name = {str(record["id"]): record for record in records(tmp_path)}
    assert by_name["honest"]["same_as"] == "again"
    assert by_name["honest"]["verdict"]["candidate"]["label"] == "honest.py"
    assert by_name["None"]["line"] == 2
    assert "line 2 of the manifest: not valid JSON" in by_name["None"]["verdict"]["reason"]
    assert "6 lines: 2 not_judged, 2 accepted" in " ".join(first.output.split())

    before = (tmp_path / "results.jsonl").read_bytes()
    started = time.monotonic()
    assert run(tmp_path).exit_code == 1
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert time.monotonic() - started < 2, "nothing was left to judge, and yet something was started"

    # Another file of results: the verdicts of sources that were judged here are known.
    (tmp_path / "results.jsonl").rename(tmp_path / "kept.jsonl")
    started = time.monotonic()
    again = run(tmp_path)
    assert time.monotonic() - started < 2
    assert "known from before" in again.output
    reused = {str(record["id"]): record["verdict"] for record in records(tmp_path)}
    assert reused["exits"]["reused"] is True
    assert reused["exits"]["measured_at"] == by_name["exits"]["verdict"]["measured_at"]
    assert by_name["exits"]["verdict"]["reused"] is False

    # A source is changed and the last line is torn, as if the machine had lost its power.
    (tmp_path / "kept.jsonl").rename(tmp_path / "results.jsonl")
    lines = before.splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:-20])
    torn = json.loads(lines[-1])["id"]
    write_manifest(
        tmp_path,
        asking("zeros", candidate=str(ATTACKS / "candidates" / "partial_rows.py")),
        asking("again", candidate=honest),
        asking("honest"),
        asking("exits"),
    )
    assert run(tmp_path).exit_code == 0
    last = {str(record["id"]): record for record in records(tmp_path)}
    assert "partial_rows" in last["zeros"]["verdict"]["candidate"]["label"]
    assert last["zeros"]["verdict"]["reused"] is False
    named = Counter(str(record["id"]) for record in records(tmp_path))
    assert named["zeros"] == 2
    assert named[str(torn)] == 1


def started_batch(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "evaluator", "evaluate-batch", str(folder / "manifest.jsonl")]
    command += ["--out", str(folder / "results.jsonl"), "--work-dir", str(folder / "work")]
    # Who runs the tests in the background of a shell has Ctrl-C ignored, and so would the batch.
    heard = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heard)


def referee_of(batch: subprocess.Popen[str], other_than: int = 0) -> int:
    """Process id of the batch's referee once it has started to judge (it then has a fork server)."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        for thread in Path(f"/proc/{batch.pid}/task").iterdir():
            for child in children_of(batch.pid, int(thread.name)):
                if child != other_than and children_of(child, child):
                    return child
        time.sleep(0.05)
    raise AssertionError("the batch started no referee")


def children_of(pid: int, thread: int) -> list[int]:
    """Processes that one thread started; none for a thread that ended since it was listed."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def wait_until_judging(folder: Path) -> None:
    """Until a referee has given the task its folder, for the first time since the last call."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        found = list(folder.glob("work/batch/*/store/task-*"))
        if found:
            shutil.rmtree(found[0], ignore_errors=True)
            return
        time.sleep(0.05)
    raise AssertionError("nothing was judged")


def wait_for_verdicts(folder: Path, count: int) -> None:
    limit = time.monotonic() + 90
    path = folder / "results.jsonl"
    while time.monotonic() < limit:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {count} verdicts in time")


@pytest.mark.slow
def test_a_lost_referee_is_replaced_and_an_interruption_leaves_a_whole_file(tmp_path: Path) -> None:
    write_manifest(
        tmp_path,
        asking("zeros"),
        asking("slow", candidate=SLOW.format(seconds=2)),
        asking("long", candidate=SLOW.format(seconds=30)),
        asking("never", candidate=SLOW.format(seconds=1)),
    )
    batch = started_batch(tmp_path)
    try:
        wait_for_verdicts(tmp_path, 1)
        lost = referee_of(batch)
        os.kill(lost, signal.SIGKILL)  # while it judges the slow one
        assert referee_of(batch, other_than=lost) != lost
        wait_for_verdicts(tmp_path, 2)
        assert words(tmp_path) == {"zeros": "incorrect", "slow": "accepted"}
        time.sleep(1)
        batch.send_signal(signal.SIGINT)
        _, said = batch.communicate(timeout=120)
    finally:
        batch.kill()
        batch.communicate(timeout=60)  # closes its pipe, too, whatever failed above
    assert batch.returncode == 130
    assert "stopped: 2 of 4 lines" in said
    assert "the same command goes on" in " ".join(said.split())
    assert words(tmp_path) == {"zeros": "incorrect", "slow": "accepted"}
    assert not Path(f"/proc/{lost}").exists()


@pytest.mark.slow
def test_a_referee_that_is_lost_twice_is_reported_and_not_tried_for_ever(tmp_path: Path) -> None:
    write_manifest(tmp_path, asking("long", candidate=SLOW.format(seconds=30)))
    batch = started_batch(tmp_path)
    try:
        # Only a referee that judges can be lost; one that ends while it starts is one that cannot be had.
        wait_until_judging(tmp_path)
        first = referee_of(batch)
        os.kill(first, signal.SIGKILL)
        wait_until_judging(tmp_path)
        os.kill(referee_of(batch, other_than=first), signal.SIGKILL)
        batch.communicate(timeout=60)
    finally:
        batch.kill()
        batch.communicate(timeout=60)  # closes its pipe, too, whatever failed above
    assert batch.returncode == 1
    (record,) = records(tmp_path)
    assert record["verdict"]["verdict"] == "not_judged"
    assert "the referee was lost 2 times" in record["verdict"]["reason"]


def test_two_batches_do_not_write_one_file(tmp_path: Path) -> None:
    write_manifest(tmp_path, asking("honest"))
    with Results(tmp_path / "results.jsonl"):
        second = run(tmp_path)
    assert second.exit_code == 2
    assert "another evaluate-batch is writing" in second.output
    with open(tmp_path / "results.jsonl") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock has gone with its holder


@pytest.mark.parametrize(
    ("out", "words_of_refusal"),
    [
        ("folder", "Is a directory"),
        ("absent/results.jsonl", "No such file"),
        ("pipe", "not a regular file"),
        ("manifest.jsonl", "is not a file of results (see line 1); nothing was changed in it"),
        ("notes.txt", "is not a file of results (see line 2); nothing was changed in it"),
    ],
)
def test_results_that_cannot_be_written_are_one_sentence(
    tmp_path: Path, out: str, words_of_refusal: str
) -> None:
    manifest = write_manifest(tmp_path, asking("honest"))
    # Without a last line break it must not pass for a result that was torn, either.
    manifest.write_text(manifest.read_text().rstrip())
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    record = {"id": "a", "line": 1, "digest": "0", "verdict": {"verdict": "accepted"}}
    (tmp_path / "notes.txt").write_text(json.dumps(record) + "\ndo not lose me")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    result = CliRunner().invoke(app, ["evaluate-batch", str(manifest), "--out", str(tmp_path / out)])
    assert result.exit_code == 2
    assert words_of_refusal in " ".join(result.output.split())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_manifest_that_is_missing_ends_with_two(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "cannot read the manifest" in result.output
    assert not (tmp_path / "results.jsonl").exists()


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    """/dev/full answers as a full disk does; the file behind the lock is replaced by it after the start."""
    with Results(tmp_path / "results.jsonl") as results:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, results._descriptor)
        os.close(full)
        with pytest.raises(ResultsUnusable, match="No space left"):
            results.add(Record("a", 1, "0", from_json({"verdict": "accepted"})))


def test_an_unknown_gpu_and_a_missing_one_are_refused_in_words(tmp_path: Path) -> None:
    write_manifest(tmp_path, asking("honest", device="cuda"))
    result = run(tmp_path, "--gpus", "none")
    assert result.exit_code == 2
    assert "no NVIDIA GPU is visible here" in result.output or "is not one of the" in result.output


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        (None, ["GPU-a", "GPU-b", "GPU-c"]), ("2, 0", ["GPU-c", "GPU-a"]), ("GPU-b", ["GPU-b"]), ("", []),
        ("1,7,0", ["GPU-b"]), ("-1", []), ("MIG-x", ["MIG-x"]),
    ],
)  # fmt: skip
def test_gpus_that_are_hidden_are_not_used(setting: str | None, left: list[str]) -> None:
    assert allowed(["GPU-a", "GPU-b", "GPU-c"], setting) == left


def test_gpus_are_chosen_by_position_among_the_visible_ones() -> None:
    visible = ["GPU-b", "GPU-a", "GPU-c"]
    assert choose("all", visible) == visible
    assert choose("2, 0,2", visible) == ["GPU-c", "GPU-b"]
    for wrong in ("3", "x", "", "0,-1"):
        with pytest.raises(EvaluatorError, match="not one of the 3 visible GPUs"):
            choose(wrong, visible)


def test_every_referee_has_a_folder_of_its_own(tmp_path: Path) -> None:
    found = places({"cpu"}, "all", 3, tmp_path)
    assert len({place.work_dir for place in found}) == 3
    assert {(place.device, place.visible_gpu) for place in found} == {("cpu", None)}
    assert len(places({"cpu"}, "all", None, tmp_path)) >= 1


def entries(folder: Path, tasks: dict[str, int]) -> list[Entry]:
    lines = [
        {"id": f"{task}{number}", "task": f"task {task}\n", "candidate": f"candidate {number}\n"}
        for task, count in tasks.items()
        for number in range(count)
    ]
    found = read_manifest(write_manifest(folder, *lines), "cpu")
    return [entry for entry in found if isinstance(entry, Entry)]


def test_a_referee_begins_with_the_task_whose_baselines_it_has(tmp_path: Path) -> None:
    schedule = Schedule(entries(tmp_path, {"x": 2, "y": 2, "z": 2}))
    first = schedule.take("one", "cpu", lambda entry: entry.id.startswith("z"))
    assert first is not None
    assert first.id == "z0"
    second = schedule.take("other", "cpu", lambda entry: entry.id.startswith("z"))
    assert second is not None
    assert second.id == "x0", "somebody has that task already"


def test_what_found_no_room_on_a_gpu_is_judged_once_more_after_the_rest(tmp_path: Path) -> None:
    todo = entries(tmp_path, {"x": 2})
    schedule = Schedule(todo)
    batch = Batch([], Results(tmp_path / "results.jsonl"), lambda devices: [], Options(tmp_path))
    full = from_json({"verdict": "not_judged", "findings": [{"rule": NO_ROOM}]})
    order = []
    while (entry := schedule.take("one", "cpu")) is not None:
        order.append(entry.id)
        if entry.id == "x0" and batch._had_no_room(entry, full):
            schedule.put_last(entry)
    assert order == ["x0", "x1", "x0"]
    # For another reason it is not worth a second look.
    assert not batch._had_no_room(todo[1], from_json({"verdict": "not_judged"}))


def test_a_task_stays_with_one_referee_until_nothing_else_is_left(tmp_path: Path) -> None:
    schedule = Schedule(entries(tmp_path, {"x": 3, "y": 9}))
    one = [schedule.take("one", "cpu") for _ in range(3)]
    other = schedule.take("other", "cpu")
    assert [entry.id for entry in one if entry] == ["x0", "x1", "x2"]
    assert other is not None
    assert other.id == "y0"
    # Its own task is done: half of what the other one still has is taken over, from the end and in order.
    shared = [schedule.take("one", "cpu") for _ in range(4)]
    assert [entry.id for entry in shared if entry] == ["y5", "y6", "y7", "y8"]
    assert schedule.take("one", "cuda") is None
    rest = [schedule.take("other", "cpu") for _ in range(4)]
    assert [entry.id for entry in rest if entry] == ["y1", "y2", "y3", "y4"]
    assert schedule.take("one", "cpu") is None


def test_on_a_gpu_only_a_long_queue_is_shared(tmp_path: Path) -> None:
    todo = [replace(entry, device="cuda") for entry in entries(tmp_path, {"x": 12})]
    schedule = Schedule(todo)
    assert schedule.take("one", "cuda") is not None
    assert schedule.take("other", "cuda") is None, (
        "eleven are done before another referee has opened their task"
    )
    longer = Schedule([replace(entry, device="cuda") for entry in entries(tmp_path, {"x": 13})])
    assert longer.take("one", "cuda") is not None
    assert longer.take("other", "cuda") is not None


def test_what_a_lost_referee_had_taken_goes_to_others(tmp_path: Path) -> None:
    schedule = Schedule(entries(tmp_path, {"x": 3}))
    begun = schedule.take("one", "cpu")
    assert begun is not None
    schedule.give_back("one", begun)
    taken = [schedule.take("other", "cpu") for _ in range(3)]
    assert [entry.id for entry in taken if entry] == ["x0", "x1", "x2"]
