"""A budget in seconds is for the whole job: what runs at its end is cut off and told, and what is there is delivered."""

from __future__ import annotations

import json
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agent.clock
from agent.clock import Clock
from agent.job import run_job
from agent.spec import Budget, JobOutcome, Strategy
from agent.store import worked_s
from agent.stores.folder import FolderStore
from evaluator.description import Description
from evaluator.errors import RefereeLost
from evaluator.verdict import Verdict, from_json
from tests.agent import small_job
from tests.agent.scripted_referee import ScriptedReferee, refused, timed
from tests.agent.test_scheduling import SPEC, Lines, labels, run

SPEC_60 = replace(SPEC, budget=Budget(seconds=60), strategy=Strategy(timings=0))


class Hanging(ScriptedReferee):
    """A referee whose hands one can move: a verdict takes some seconds, and one phase of one candidate never ends."""

    def __init__(self, hands: list[float], hangs: tuple[str, str], speedup: float = 2.0) -> None:
        super().__init__(self._takes)
        self.hands, self.hangs, self.speedup = hands, hangs, speedup
        self.killed = threading.Event()

    def _takes(self, label: str, phase: str) -> dict[str, Any]:
        if (label, phase) == self.hangs:
            self.hands[0] = 1e6
            assert self.killed.wait(60), "nothing cut it off"
            raise RefereeLost("the referee was killed while a call was running")
        self.hands[0] += 5.0
        return timed(self.speedup, phase) | {"elapsed_s": 5.0}

    def kill(self) -> None:
        """See `Referee.kill`."""
        self.killed.set()


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the job sees; a timer rings at once, for only what hangs is still there then."""
    now = [0.0]
    monkeypatch.setattr(agent.clock.time, "monotonic", lambda: now[0])

    class Bell(threading.Timer):
        def __init__(self, interval: float, function: Any) -> None:
            super().__init__(0.3, lambda: function() if now[0] > 1e5 else None)

    monkeypatch.setattr(agent.clock.threading, "Timer", Bell)
    return now


def told(store: FolderStore) -> list[str]:
    return [one["data"]["text"] for one in store.events() if one["name"] == "budget.spent"]


def test_a_candidate_that_hangs_is_cut_off_with_the_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands: list[float]
) -> None:
    store, referee = FolderStore(tmp_path), Hanging(hands, ("human 0", "validation"))
    outcome = run(SPEC_60, store, referee, monkeypatch, Lines("human", 3))
    assert outcome.state == "failed" and outcome.bundle_path is None
    said = "the budget is spent: 60 s; cut off: judging human 0 at validation shapes"
    assert told(store)[0] == said and outcome.reason.endswith(said)
    assert referee.judged == [("human 0", "screen"), ("human 0", "validation")]
    assert store.verdict(store.candidates()[0].sha256, "validation") is None, "that is no verdict on it"


def test_where_no_time_is_left_for_held_out_shapes_the_bundle_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands: list[float]
) -> None:
    store, referee = FolderStore(tmp_path), Hanging(hands, ("optimized.py", "held_out"))
    outcome = run(SPEC_60, store, referee, monkeypatch, Lines("human", 9))
    assert (outcome.state, outcome.verdict_word, outcome.summary) == ("succeeded", "accepted", None)
    assert "2.00x [1.98, 2.02] against the best baseline over 6 validation shapes" in outcome.reason
    assert "not measured at held-out shapes: the budget is spent: 60 s; cut off: judging" in outcome.reason
    assert labels(referee) == ["human 0", "human 1"], (
        "30 s are kept for what is delivered, 5 s for the bundle"
    )
    assert told(store)[0].startswith("the budget is spent: 60 s (the last ")
    assert told(store)[-1].endswith("cut off: judging optimized.py at held_out shapes")
    assert outcome.bundle_path is not None
    with zipfile.ZipFile(outcome.bundle_path) as archive:
        (evidence,) = [name for name in archive.namelist() if name.endswith("evidence.json")]
        found = json.loads(archive.read(evidence))
    assert found["reason"] == outcome.reason and found["summary"] == {}


def test_what_the_choice_did_not_find_faster_is_not_delivered_without_held_out_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands: list[float]
) -> None:
    store, referee = FolderStore(tmp_path), Hanging(hands, ("optimized.py", "held_out"), 1.0)
    outcome = run(SPEC_60, store, referee, monkeypatch, Lines("human", 1))
    assert (outcome.state, outcome.bundle_path) == ("failed", None)
    assert outcome.reason.startswith("no improvement: ")


def test_a_candidate_that_would_use_the_time_of_the_delivery_is_stopped_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands: list[float]
) -> None:
    allowed: list[float] = []

    class Slow(Hanging):
        def evaluate(self, task: Any, candidate: Any, **options: Any) -> Verdict:
            if candidate.label == "human 1":
                allowed.append(options["deadline_s"])
                hands[0] += options["deadline_s"]
                return from_json(refused("timeout", "it did not finish"))
            return super().evaluate(task, candidate, **options)

    store, referee = FolderStore(tmp_path), Slow(hands, ("", ""))
    outcome = run(SPEC_60, store, referee, monkeypatch, Lines("human", 3))
    assert allowed == [pytest.approx(60 - 5 - 10 - 30)]
    assert store.verdict(store.candidates()[1].sha256, "screen") is None, "that is no verdict on it"
    said = "the budget is spent: 60 s, of which 30 s are kept for judging what is delivered"
    assert told(store) == [f"{said}; cut off: judging human 1 at visible and adversarial shapes"]
    assert outcome.state == "succeeded" and "held-out shape" in outcome.reason


def test_attempts_count_with_all_of_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands: list[float]
) -> None:
    """An attempt that described for 80 s and judged nothing leaves 40 of 120 s to the next."""
    store = FolderStore(tmp_path)
    for name, data in (("job.started", {}), ("job.progress", {})):
        store.event(name, data)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    for line, second in zip(lines, (0, 20), strict=True):
        line["time"] = f"2026-01-01T00:01:{second:02d}+00:00"
    lines[1]["time"] = "2026-01-01T00:02:20+00:00"
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert store.seconds_before() == 80.0
    spec = replace(SPEC_60, budget=Budget(seconds=120))
    referee = Hanging(hands, ("", ""))
    run(spec, store, referee, monkeypatch, Lines("human", 9))
    assert labels(referee) == ["human 0"], "without the 80 s there would be seven"


def test_seconds_between_attempts_do_not_count() -> None:
    events = [("job.queued", 0.0), ("job.started", 10.0), ("candidate.judged", 40.0), ("job.started", 500.0)]
    assert worked_s(events) == 30.0
    assert worked_s([*events, ("job.waiting", 510.0), ("candidate.proposed", 900.0)]) == 40.0
    assert worked_s([]) == 0.0


def test_a_task_that_is_described_too_long_is_told_of(tmp_path: Path) -> None:
    class Describing(Hanging):
        def describe(self, *_: Any, **__: Any) -> Description:
            assert self.killed.wait(60)
            raise RefereeLost("killed")

    store = FolderStore(tmp_path)
    outcome: JobOutcome = run_job(
        replace(small_job.spec(), budget=Budget(seconds=0.5)),
        store,
        Describing([0.0], ("", "")),  # type: ignore[arg-type]
        tmp_path / "out",
    )
    assert outcome.state == "failed"
    assert outcome.reason == "nothing is delivered: the budget is spent: 0.5 s; cut off: describing the task"


def test_the_reserve_is_part_of_the_budget() -> None:
    assert Clock(None).left_s() is None
    left = Clock(60, began_s=agent.clock.time.monotonic() - 30).left_s()
    assert left == pytest.approx(25, abs=0.5)
    assert Clock(10, spent_s=9.5).left_s() == 0.0
