"""The folder store keeps the promises of `agent.store.JobStore`, also across SIGKILL and between processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.candidates import Candidate
from agent.errors import StoreCorrupt
from agent.stores.folder import FolderStore
from evaluator.verdict import from_json


def candidate(text: str) -> Candidate:
    return Candidate(text, "llm", f"label of {text}", note="a note")


def test_candidates_come_back_in_order_and_once(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    added = [store.add_candidate(candidate(text)) for text in ("b", "a", "b", "c")]
    assert added == [True, True, False, True]
    assert [one.source for one in FolderStore(tmp_path).candidates()] == ["b", "a", "c"]
    assert FolderStore(tmp_path).candidates()[0] == candidate("b")


def test_a_verdict_is_never_stored_twice(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert store.verdict("ab", "screen") is None
    assert store.add_verdict("ab", "screen", from_json({"verdict": "accepted"}))
    assert not store.add_verdict("ab", "screen", from_json({"verdict": "incorrect"}))
    assert store.verdict("ab", "screen") == from_json({"verdict": "accepted"})
    assert store.verdict("ab", "validation") is None
    with pytest.raises(ValueError, match="phase"):
        store.add_verdict("ab", "holdout", from_json({"verdict": "accepted"}))


def test_the_first_value_of_a_step_stays(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.finish_step("llm/1/../2", ["first"])
    store.finish_step("llm/1/../2", ["second"])
    assert store.step("llm/1/../2") == ["first"]
    assert store.step("llm/1") is None
    assert {path.parent.name for path in tmp_path.rglob("*.json")} == {"steps"}


def test_events_are_numbered_and_survive_half_a_line(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.event("job.started", {"x": 1})
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"id": 2, "na')
    store.event("job.finished", {})
    assert [(event["id"], event["name"]) for event in store.events()] == [
        (1, "job.started"),
        (2, "job.finished"),
    ]


def test_a_stop_is_seen_by_everyone(tmp_path: Path) -> None:
    assert FolderStore(tmp_path).stop_requested() is None
    FolderStore(tmp_path).request_stop("cancelled")
    assert FolderStore(tmp_path).stop_requested() == "cancelled"


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.add_candidate(candidate("a"))
    next((tmp_path / "candidates").glob("*.json")).write_text("{}")
    with pytest.raises(StoreCorrupt, match="candidates"):
        store.candidates()


_WRITER = """
import sys
from pathlib import Path
from agent.candidates import Candidate
from agent.stores.folder import FolderStore
from evaluator.verdict import from_json
store = FolderStore(Path(sys.argv[1]))
for number in range(10_000):
    candidate = Candidate(f"{sys.argv[2]}-{number}" + "x" * 5000, "llm", str(number))
    store.add_candidate(candidate)
    store.add_verdict(candidate.sha256, "screen", from_json({"verdict": "accepted", "detail": "y" * 5000}))
    store.event("candidate.judged", {"number": number})
    print(number, flush=True)
"""


def test_killed_writers_leave_only_whole_files(tmp_path: Path) -> None:
    for attempt in range(6):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(tmp_path), f"{attempt}-{number}"], stdout=subprocess.PIPE
            )
            for number in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(random.uniform(0.0, 0.15))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.communicate()
    store = FolderStore(tmp_path)
    candidates = store.candidates()
    assert len(candidates) >= 12
    numbers = [int(path.name[:5]) for path in (tmp_path / "candidates").glob("0*.json")]
    assert sorted(numbers) == list(range(1, len(candidates) + 1))
    judged = [store.verdict(one.sha256, "screen") for one in candidates]
    assert sum(verdict is None for verdict in judged) <= 12
    identifiers = [event["id"] for event in store.events()]
    assert identifiers == list(range(1, len(identifiers) + 1))
