"""Whole jobs with the real referee: what comes out, what is refused, what is stopped, and what survives SIGKILL."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent import judging
from agent.candidates import Candidate
from agent.job import judge_candidate, run_job
from agent.judging import judge_energy, relative_joules
from agent.spec import Budget, JobSpec, Strategy
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.sources import TaskSource
from evaluator.verdict import UNSTEADY, Finding, Verdict
from tests.agent import small_job
from tests.agent.chat_server import Answer, chat_server

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]
KILLS = 5  # the service's own test kills twenty times


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this module's own: referees of other tests and jobs keep out of it."""
    return tmp_path_factory.mktemp("referee")


@pytest.fixture(scope="module")
def referee(work_dir: Path) -> Iterator[Referee]:
    with Referee("cpu", work_dir=work_dir) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def names(store: FolderStore) -> list[str]:
    return [event["name"] for event in store.events()]


def test_a_job_from_proposals_to_a_bundle_and_again_for_nothing(
    referee: Referee, store: FolderStore, tmp_path: Path
) -> None:
    cheat = small_job.GOOD.replace("return torch.sort", "return torch.zeros_like(x) if False else torch.sort")
    waiting = Candidate(cheat, "external", "handed in")
    store.add_candidate(waiting)
    with chat_server(chosen=small_job.scripted) as server:
        outcome = run_job(small_job.spec(server.base_url), store, referee, tmp_path / "out")
        asked = len(server.requests)
        before = small_job.judged(store)
        again = run_job(small_job.spec(server.base_url), store, referee, tmp_path / "out")
    assert outcome.state == "succeeded", outcome.reason
    assert outcome.summary is not None and (outcome.summary.geomean_speedup or 0.0) > 1.2
    assert again == outcome
    assert len(server.requests) == asked == 4
    assert small_job.judged(store) == before

    by_label = {candidate.label: candidate for candidate in store.candidates()}
    words = {label: store.verdict(one.sha256, "screen") for label, one in by_label.items()}
    assert {label: verdict and verdict.verdict for label, verdict in words.items()} == {
        "first #1": "incorrect",
        "first #1 repaired": "accepted",
        "second #1": "runtime_error",
        "second #1 repaired": "accepted",
        "handed in": "accepted",
        "optimized.py": "accepted",
    }
    assert [phase for _, phase, _ in before].count("held_out") == 1
    assert store.verdict(by_label["optimized.py"].sha256, "held_out") is not None
    assert outcome.winner_sha256 == by_label["optimized.py"].parent_sha256
    assert outcome.winner_sha256 in {by_label["first #1 repaired"].sha256, by_label["handed in"].sha256}

    told = names(store)
    for name in (
        "job.started",
        "candidate.proposed",
        "candidate.judged",
        "portfolio.changed",
        "budget.spent",
    ):
        assert name in told
    assert told.count("job.finished") == 2
    assert outcome.bundle_path is not None
    with zipfile.ZipFile(outcome.bundle_path) as archive:
        inside = {name.partition("/")[2] for name in archive.namelist()}
        evidence = json.loads(archive.read("sort-twice-kernelwright/evidence.json"))
    assert {"optimized.py", "evidence.json", "report.html", "reproduce.py", "LICENSE"} <= inside
    held_out = next(verdict for verdict in evidence["verdicts"] if verdict["phase"] == "held_out")
    assert held_out["shapes"][0]["log_ratios"]
    assert len(evidence["leaderboard"]) == 5


def test_a_task_that_is_refused_ends_the_job_with_its_word(
    referee: Referee, store: FolderStore, tmp_path: Path
) -> None:
    broken = JobSpec("job", "broken", TaskSource("broken", "class Model(:\n"), origins=("llm",))
    outcome = run_job(broken, store, referee, tmp_path)
    assert (outcome.state, outcome.verdict_word) == ("failed", "task_rejected")
    assert outcome.reason
    assert names(store)[-1] == "job.failed"


def test_without_an_accepted_candidate_there_is_nothing_to_deliver(
    referee: Referee, store: FolderStore, tmp_path: Path
) -> None:
    with chat_server(Answer(status=401, message="who are you")) as server:
        outcome = run_job(small_job.spec(server.base_url), store, referee, tmp_path)
    assert outcome.state == "failed"
    assert "nothing to deliver" in outcome.reason
    failed = [event["data"]["reason"] for event in store.events() if event["name"] == "proposer.failed"]
    assert any("who are you" in reason for reason in failed)


def test_a_budget_of_one_candidate(referee: Referee, store: FolderStore, tmp_path: Path) -> None:
    with chat_server(chosen=small_job.scripted) as server:
        one = small_job.spec(server.base_url, budget=Budget(candidates=1), start_from=small_job.GOOD)
        outcome = run_job(one, store, referee, tmp_path)
    assert outcome.state == "succeeded", outcome.reason
    assert len(server.requests) == 2, "models are asked before anything is judged"
    assert [candidate.label for candidate in store.candidates()] == ["starting point", "optimized.py"]
    assert "budget.spent" in names(store)


def test_a_cancelled_job_stops_and_delivers_nothing(
    referee: Referee, store: FolderStore, tmp_path: Path
) -> None:
    store.request_stop("cancelled")
    with chat_server(chosen=small_job.scripted) as server:
        outcome = run_job(small_job.spec(server.base_url), store, referee, tmp_path)
    assert (outcome.state, outcome.bundle_path) == ("cancelled", None)
    assert store.candidates() == []
    assert names(store)[-1] == "job.cancelled"


@pytest.mark.parametrize("cancel", [False, True])
def test_a_referee_that_is_killed_is_replaced_unless_the_job_was_cancelled(
    referee: Referee, store: FolderStore, tmp_path: Path, cancel: bool
) -> None:
    def kill_soon() -> None:
        while "candidate.progress" not in names(store):
            time.sleep(0.05)
        if cancel:
            store.request_stop("cancelled")
        referee.kill()

    killer = threading.Thread(target=kill_soon, daemon=True)
    killer.start()
    spec = small_job.spec(start_from=small_job.GOOD, origins=())
    try:
        outcome = run_job(spec, store, referee, tmp_path)
    finally:
        killer.join(timeout=10)
        if not referee.alive:
            referee.restart()
    if cancel:
        assert outcome.state == "cancelled"
        assert small_job.judged(store) == set()
    else:
        assert outcome.state == "succeeded", outcome.reason
        assert "candidate.retried" in names(store)


class Noisy:
    """The referee on a machine whose first `left` timings vary too much, or fail for another reason."""

    def __init__(self, referee: Referee, left: int, rule: str) -> None:
        self._referee, self._left, self._rule = referee, left, rule

    def evaluate(self, *given: Any, **more: Any) -> Verdict:
        verdict = self._referee.evaluate(*given, **more)
        if self._left == 0:
            return verdict
        self._left -= 1
        return replace(verdict, verdict="not_judged", findings=(Finding(self._rule, "info", "said"),))

    def restart(self) -> None:
        """A fresh referee would see the same noise."""


@pytest.mark.parametrize(
    ("times", "rule", "word"),
    [
        (2, UNSTEADY, "accepted"),
        (4, UNSTEADY, "not_judged"),
        (1, "lost", "accepted"),
        (2, "lost", "not_judged"),
    ],
)
def test_a_judging_on_a_noisy_machine_is_tried_again_after_pauses(
    referee: Referee, store: FolderStore, monkeypatch: pytest.MonkeyPatch, times: int, rule: str, word: str
) -> None:
    monkeypatch.setattr(judging, "_PAUSES_S", (0.0, 0.3, 0.6))
    good = Candidate(small_job.GOOD, "external", "good")
    store.add_candidate(good)
    noisy = cast("Referee", Noisy(referee, times, rule))
    began = time.monotonic()
    verdict = judging.judge_phase(small_job.spec(), store, noisy, good, "screen", ("adversarial",))
    assert verdict.verdict == word
    assert names(store).count("candidate.retried") == min(times, 3 if rule == UNSTEADY else 1)
    if rule == UNSTEADY:
        assert time.monotonic() - began > 0.3


def test_one_candidate_for_a_job_that_has_ended(referee: Referee, store: FolderStore) -> None:
    wrong = Candidate(small_job.WRONG, "external", "wrong")
    store.add_candidate(wrong)
    assert judge_candidate(small_job.spec(), store, referee, wrong).verdict == "incorrect"
    assert store.verdict(wrong.sha256, "validation") is None


NARROW = small_job.TASK.replace("Dim(1, 4096, default=64)", "Dim(1, 512, default=160)").replace(
    "Dim(8, 1024, default=256)", "Dim(8, 128, default=64)"
)
#: One sort up to 120 rows (this task's own size is 160, sizes near it are 20 to 320) and five above, and the other way round.
SPECIALIST = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        values = torch.sort(x, dim=1).values
        if x.shape[0] BEYOND 120:
            for _ in range(4):
                values = torch.sort(values.flip(1), dim=1).values
        return values * self.weight
"""


def test_specialists_are_timed_further_and_share_the_shapes(
    referee: Referee, store: FolderStore, tmp_path: Path
) -> None:
    for label, beyond in (("few rows", ">"), ("many rows", "<=")):
        store.add_candidate(Candidate(SPECIALIST.replace("BEYOND", beyond), "external", label))
    shapes = {name: small_job.SHAPES[name] for name in ("visible", "held_out", "adversarial")}
    shapes = {name: [{"rows": one["rows"], "cols": 64} for one in some] for name, some in shapes.items()}
    spec = small_job.spec(
        origins=(),
        shapes=shapes,
        strategy=Strategy(timings=12),
        task=TaskSource("narrow", NARROW),
    )
    outcome = run_job(spec, store, referee, tmp_path / "out")
    assert outcome.state == "succeeded", outcome.reason
    timed = store.steps("timed/")
    assert 8 <= sum(len(value["asked"]) for value in timed.values()) <= 12  # type: ignore[index]
    assert outcome.bundle_path is not None
    with zipfile.ZipFile(outcome.bundle_path) as archive:
        evidence = json.loads(archive.read("sort-twice-kernelwright/evidence.json"))
        text = archive.read("sort-twice-kernelwright/optimized.py").decode()
    assert {member["label"] for member in evidence["members"]} == {"few rows", "many rows"}
    assert any(rule["where"].startswith("rows <=") for rule in evidence["dispatch"]["rules"])
    assert "    if rows <= " in text
    further = [verdict for verdict in evidence["verdicts"] if verdict["phase"] == "further"]
    assert len(further) == len(timed)
    assert run_job(spec, store, referee, tmp_path / "out") == outcome, "run again, nothing is timed again"
    assert store.steps("timed/") == timed


def start(folder: Path, base_url: str, work_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.agent.small_job", str(folder), base_url, str(work_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.timeout(1800)
def test_killed_at_random_instants_a_job_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    referees = tmp_path / "referees"
    with chat_server(chosen=small_job.scripted) as server:
        whole = start(tmp_path / "whole", server.base_url, referees)
        began = time.monotonic()
        assert '"succeeded"' in whole.communicate()[0]
        lasts_s = time.monotonic() - began
        expected = small_job.judged(FolderStore(tmp_path / "whole" / "store"))

        kills = 0
        attempt = 0
        while kills < KILLS:
            attempt += 1
            folder = tmp_path / f"killed{attempt}"
            while kills < KILLS:
                process = start(folder, server.base_url, referees)
                try:
                    output, _ = process.communicate(timeout=random.uniform(0.0, 0.5 * lasts_s))
                    break  # it ended by itself: kill another job
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, signal.SIGKILL)
                    process.communicate()
                    kills += 1
            else:
                output = start(folder, server.base_url, referees).communicate()[0]
            assert '"succeeded"' in output
            store = FolderStore(folder / "store")
            assert small_job.judged(store) == expected
            told = [
                (event["data"]["sha256"], event["data"]["phase"])
                for event in store.events()
                if event["name"] == "candidate.judged"
            ]
            assert len(told) == len(set(told)), "no verdict is stored or told twice"


def test_joules_are_measured_once_or_it_is_said_why_not(referee: Referee, store: FolderStore) -> None:
    candidate = Candidate(small_job.GOOD, "external", "one sort")
    spec = small_job.spec("http://127.0.0.1:9")
    judge_energy(spec, store, referee, candidate)
    (told,) = [event["data"] for event in store.events() if event["name"] == "candidate.energy"]
    known = relative_joules(store).get(candidate.sha256)
    if known is None:
        assert told["relative_joules"] is None and "joules were not measured" in told["text"]
    else:
        assert 0.1 < known < 1.0, "half the work needs more than half of the energy, with what idles"
    judge_energy(spec, store, referee, candidate)
    assert names(store).count("candidate.energy") == 1
