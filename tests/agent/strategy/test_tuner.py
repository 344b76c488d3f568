"""Tuning a real candidate on a CPU in the sandbox, and what a lying tool output is worth."""

from __future__ import annotations

import fcntl
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.candidates import Candidate
from agent.proposing import ProposalContext
from agent.spec import Strategy
from agent.stores.folder import FolderStore
from agent.strategy.tuner import read, tuned
from evaluator.client import Referee
from evaluator.description import Description
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from tests.agent import small_job
from tests.agent.strategy.judging import accepted, rejected, row

pytestmark = pytest.mark.alone

CHUNKED = """
import torch
import torch.nn as nn

TUNABLES = {"CHUNK": [1, 2, 4, 64], "WRONG": [0.0, 1.0], "BROKEN": [1, 0]}
CHUNK = 1
WRONG = 0.0
BROKEN = 1


class ModelNew(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        parts = [torch.sort(part, dim=1).values for part in x.split(CHUNK // BROKEN)]
        return torch.cat(parts) * self.weight + WRONG
"""
TASK = TaskSource("sort_twice", small_job.TASK)


def context(store: FolderStore, referee: Referee | None = None) -> ProposalContext:
    return ProposalContext(TASK, Description(), "cpu", referee, store)  # type: ignore[arg-type]


def stored(store: FolderStore) -> Candidate:
    parent = Candidate(CHUNKED, "llm", "chunked")
    store.add_candidate(parent)
    shapes = [row({"rows": 64, "cols": 64}, 1.0), row({"rows": 96, "cols": 32}, 1.0)]
    store.add_verdict(parent.sha256, "screen", from_json(accepted() | {"shapes": shapes}))
    return parent


@pytest.fixture
def locks() -> Iterator[Path]:
    """A folder with a short name: sockets lie in it, too."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def somebody_times(folder: Path) -> bool:
    """Whether the CPU's clock is held by one alone."""
    with open(folder / "kernelwright-cpu.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.slow
def test_a_real_candidate_is_tuned_in_the_sandbox(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(locks))  # of this test alone
    store = FolderStore(tmp_path / "job")
    parent = stored(store)
    with Referee("cpu", work_dir=tmp_path / "referee") as referee, ThreadPoolExecutor(1) as pool:
        referee.run_tool("", {})
        assert not somebody_times(locks)
        tuning = pool.submit(lambda: list(tuned(context(store, referee), parent, Strategy(seed=1))))
        seen = False
        while not tuning.done():
            seen = seen or somebody_times(locks)
            time.sleep(0.02)
        found = tuning.result()
        assert seen, "others would time while it does"
        assert not somebody_times(locks)
        judged = referee.evaluate(
            TASK, small_job_source(found[0]), effort="screen", splits=("visible",), shapes=small_job.SHAPES
        )
    assert judged.verdict == "accepted", judged.reason
    made = store.step(f"tuned/{parent.sha256}")
    assert isinstance(made, dict)
    settings = [setting for setting, _ in made["ranked"]]
    assert settings[0]["CHUNK"] == 64, "the fewest launches"
    assert all(one["WRONG"] == 0.0 and one["BROKEN"] == 1 for one in settings)
    assert found[0].source == CHUNKED.replace("CHUNK = 1\n", "CHUNK = 64\n")
    assert found[0].parent_sha256 == parent.sha256
    again = list(tuned(context(store), parent, Strategy(seed=1)))
    assert again[0] == found[0], "a resumed job does not tune twice: here it has no referee to do it with"
    store.add_candidate(found[0])
    assert list(tuned(context(store), found[0], Strategy(seed=1))) == [], "what was tuned is not tuned again"


def small_job_source(candidate: Candidate) -> object:
    from evaluator.sources import CandidateSource

    return CandidateSource(candidate.source, origin=candidate.origin, label=candidate.label)


def test_the_next_setting_is_tried_when_the_referee_rejects_the_first(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    parent = stored(store)
    own = {"CHUNK": 1, "WRONG": 0.0, "BROKEN": 1}
    ranked = [
        [own | {"CHUNK": 4}, 10.0],
        [own | {"CHUNK": 2}, 11.0],
        [own | {"CHUNK": 64}, 12.0],
        [own, 20.0],
    ]
    store.finish_step(f"tuned/{parent.sha256}", {"ranked": ranked, "reason": ""})
    found = []
    for candidate in tuned(context(store), parent, Strategy(seed=1)):
        store.add_verdict(candidate.sha256, "screen", from_json(rejected()))
        found.append(candidate.note)
    assert found == [
        "tuned by machine: CHUNK=4, WRONG=0.0, BROKEN=1",
        "tuned by machine: CHUNK=2, WRONG=0.0, BROKEN=1",
    ]


def test_a_candidate_whose_own_numbers_are_best_and_one_without_any_give_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    parent = stored(store)
    own = {"CHUNK": 1, "WRONG": 0.0, "BROKEN": 1}
    ranked = [[own | {"CHUNK": 4}, 9.9], [own, 10.0]]
    store.finish_step(f"tuned/{parent.sha256}", {"ranked": ranked, "reason": ""})
    assert list(tuned(context(store), parent, Strategy())) == []
    assert list(tuned(context(store), Candidate(small_job.GOOD, "llm", "plain"), Strategy())) == []
    unusable = Candidate("TUNABLES = {'A': [1]}\n" + small_job.GOOD, "llm", "no such constant")
    assert list(tuned(context(store), unusable, Strategy())) == []
    assert "no literal constant" in store.events()[-1]["data"]["text"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"ranked": 5}',
        b'{"ranked": [{"setting": {"A": 9}, "elapsed_us": 1}]}',
        b'{"ranked": [{"setting": {"A": 1}, "elapsed_us": -1}]}',
        b'{"ranked": [{"setting": {"A": 1}, "elapsed_us": NaN}]}',
        b'{"ranked": [{"setting": {"A": 1}, "elapsed_us": "x"}]}',
        b'{"ranked": [{"setting": {"A": {"B": 1}}, "elapsed_us": 1}]}',
        b"\xff\xfe",
    ],
)
def test_an_answer_that_names_nothing_that_was_asked_for_is_worth_nothing(answer: bytes) -> None:
    found = read(answer, [{"A": 1}])
    assert found.ranked == ()
    assert found.reason


def test_an_answer_counts_each_setting_once() -> None:
    entry = {"setting": {"A": 1}, "elapsed_us": 2.0}
    assert read(json.dumps({"ranked": [entry, entry]}).encode(), [{"A": 1}, {"A": 2}]).ranked == (
        ({"A": 1}, 2.0),
    )
