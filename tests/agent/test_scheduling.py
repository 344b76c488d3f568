"""The order of a job: models first, the library and the compiler meanwhile, seconds shared out, and what is tried again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import agent.clock
import agent.job
import agent.scheduling
from agent.candidates import Candidate
from agent.job import run_job
from agent.proposers.llm import LLMProposer
from agent.proposing import ProposalContext, Proposer
from agent.replay import replay
from agent.spec import Budget, JobOutcome, JobSpec, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from agent.strategy import graph_variants
from agent.strategy.exemplars import judged_in
from agent.strategy.finishing import Finisher
from agent.strategy.graph_variants import is_graph_variant
from evaluator.verdict import NO_ROOM
from tests.agent import small_job
from tests.agent.scripted_referee import ScriptedReferee, refused, timed
from tests.agent.test_batch import answer_all, requests

SPEC = replace(small_job.spec(origins=("human", "compiler", "llm")), shapes=None)


@dataclass
class Lines:
    """Proposes files that differ in a line."""

    origin: str
    count: int
    before: Callable[[], None] = lambda: None

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        for number in range(self.count):
            self.before()
            yield Candidate(
                f"{small_job.GOOD}# {self.origin} {number}", self.origin, f"{self.origin} {number}"
            )


def model(folder: Path, samples: int = 1) -> ModelChoice:
    return ModelChoice("m-1", provider="batch", folder=str(folder), timeout_s=0.0, samples=samples)


def run(
    spec: JobSpec,
    store: FolderStore,
    referee: ScriptedReferee,
    monkeypatch: pytest.MonkeyPatch,
    *proposers: Proposer,
) -> JobOutcome:
    monkeypatch.setattr(agent.job, "proposers_for", lambda _: [*proposers, Finisher(spec.strategy)])
    return run_job(spec, store, referee, store.folder / "out")  # type: ignore[arg-type]


def accepted(label: str, phase: str) -> dict[str, Any]:
    return timed(1.5, phase)


def labels(referee: ScriptedReferee, phase: str = "screen") -> list[str]:
    return [label for label, one in referee.judged if one == phase and label != "optimized.py"]


def asking(folder: Path, samples: int = 1) -> LLMProposer:
    return LLMProposer([model(folder, samples)], Budget(), strategy=Strategy(rounds=0))


def test_requests_are_written_before_anything_is_judged_and_answers_are_taken_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "batch", FolderStore(tmp_path / "job")
    store.add_candidate(Candidate(small_job.GOOD, "external", "handed in"))
    spec = replace(SPEC, models=(model(folder, 3),))
    asked: list[int] = []

    def seen(label: str, phase: str) -> dict[str, Any]:
        asked.append(len(requests(folder)))
        return timed(1.1, phase)

    referee = ScriptedReferee(seen)
    first = run(spec, store, referee, monkeypatch, Lines("human", 1), Lines("compiler", 2), asking(folder, 3))
    assert first.state == "waiting"
    assert asked[0] == 3, "all three before the first verdict"
    assert labels(referee) == ["handed in", "human 0", "compiler 0", "compiler 1"], "judged all the same"
    answer_all(folder, f"```python\n{small_job.GOOD}# NUMBER\n```")
    again = ScriptedReferee(accepted)
    proposers = Lines("human", 1), Lines("compiler", 2), asking(folder, 3)
    assert run(spec, store, again, monkeypatch, *proposers).state == "waiting", "for the second round"
    assert sorted(labels(again)) == ["m-1 #1", "m-1 #2", "m-1 #3"]


class Killed(BaseException):
    """In place of SIGKILL."""


def test_a_job_killed_before_its_last_validation_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is then spent: no further candidate may be screened, but this one was paid for."""
    store = FolderStore(tmp_path / "job")
    spec = replace(SPEC, budget=Budget(candidates=1))

    def killed(label: str, phase: str) -> dict[str, Any]:
        if phase == "validation":
            raise Killed
        return timed(1.5, phase)

    with pytest.raises(Killed):
        run(spec, store, ScriptedReferee(killed), monkeypatch, Lines("human", 2))
    again = ScriptedReferee(accepted)
    assert run(spec, store, again, monkeypatch, Lines("human", 2)).state == "succeeded"
    assert labels(again) == []
    assert labels(again, "validation") == ["human 0"]


@pytest.mark.slow
def test_answers_that_are_there_are_judged_between_the_compilers_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "batch", FolderStore(tmp_path / "job")
    spec = replace(SPEC, models=(model(folder, 2),))

    def answered(label: str, phase: str) -> dict[str, Any]:
        if label == "human 0" and phase == "screen":
            answer_all(folder, f"```python\n{small_job.GOOD}# NUMBER\n```")
        return timed(1.1, phase)

    referee = ScriptedReferee(answered)
    proposer = LLMProposer([replace(model(folder, 2), timeout_s=30.0)], Budget(), strategy=Strategy())
    compiler = Lines("compiler", 3, before=lambda: _wait_for(store, 2))
    outcome = run(spec, store, referee, monkeypatch, Lines("human", 1), compiler, proposer)
    assert outcome.state == "waiting"
    assert set(labels(referee)[2:5]) == {"m-1 #1", "compiler 1", "m-1 #2"}


def _wait_for(store: FolderStore, count: int) -> None:
    """Until so many answers are stored, as if a candidate took long to make."""
    end_s = time.monotonic() + 30
    while len([name for name in store.steps("llm/") if name.count("/") == 3]) < count:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_seconds_are_shared_out_and_what_is_left_goes_to_who_had_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 s a candidate, 240 s in all, three proposers with more to offer than that: 80, 80 and 80 s, then the first goes on."""
    clock, store = [0.0], FolderStore(tmp_path)
    for module in (agent.scheduling, agent.clock):
        monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    def slow(label: str, phase: str) -> dict[str, Any]:
        clock[0] += 15.0
        return timed(1.1, phase)

    referee = ScriptedReferee(slow)
    spec = replace(SPEC, budget=Budget(seconds=240), strategy=Strategy(timings=0))
    run(spec, store, referee, monkeypatch, Lines("compiler", 9), Lines("human", 2), Lines("external", 1))
    made = labels(referee)
    assert made[:3] == ["compiler 0", "compiler 1", "compiler 2"], "a third of 240 s"
    assert made[3:6] == ["human 0", "human 1", "external 0"]
    assert made[6:] == ["compiler 3", "compiler 4"], "until the budget is spent"


def test_a_model_that_could_not_be_asked_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "batch"
    spec = replace(SPEC, models=(model(folder),), budget=Budget(seconds=0.0))
    outcome = run(spec, FolderStore(tmp_path / "a"), ScriptedReferee(accepted), monkeypatch, asking(folder))
    assert outcome.reason.endswith("; the model was not asked: the budget was spent before (0 s)")
    spec = replace(spec, budget=Budget(tokens=10))
    proposer = LLMProposer(spec.models, spec.budget)
    referee = ScriptedReferee(accepted)
    outcome = run(spec, FolderStore(tmp_path / "b"), referee, monkeypatch, Lines("human", 1), proposer)
    assert outcome.state == "succeeded", "and what the library has is delivered"
    assert outcome.reason.endswith("; the model was not asked: its budget has no room for a request")
    assert not (folder / "requests.jsonl").exists()


def test_want_of_memory_is_tried_again_at_the_end_and_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tries = FolderStore(tmp_path), []

    def full(label: str, phase: str) -> dict[str, Any]:
        tries.append((label, phase))
        if label == "human 0" and phase == "screen" and tries.count((label, phase)) == 1:
            return refused("not_judged", "the device is full", NO_ROOM)
        if label == "human 1" and phase == "validation" and tries.count((label, phase)) == 1:
            return refused("not_judged", "memory was taken by others")
        return timed(1.1, phase)

    referee = ScriptedReferee(full)
    outcome = run(SPEC, store, referee, monkeypatch, Lines("human", 3))
    assert outcome.state == "succeeded", outcome.reason
    assert labels(referee) == ["human 0", "human 1", "human 2", "human 0"]
    assert labels(referee, "validation") == ["human 1", "human 2", "human 0", "human 1"]
    for candidate in store.candidates()[:3]:
        for phase in ("screen", "validation"):
            found = store.verdict(candidate.sha256, phase)
            assert found is not None and found.verdict == "accepted"


def test_what_the_budget_does_not_allow_to_try_again_keeps_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(label: str, phase: str) -> dict[str, Any]:
        return timed(1.1, phase) if label == "human 1" else refused("not_judged", "no memory is left")

    store, referee = FolderStore(tmp_path), ScriptedReferee(full)
    run(replace(SPEC, budget=Budget(candidates=1)), store, referee, monkeypatch, Lines("human", 3))
    assert labels(referee) == ["human 0", "human 1"]
    found = store.verdict(store.candidates()[0].sha256, "screen")
    assert found is not None and found.verdict == "not_judged"


def test_memory_that_never_comes_free_ends_in_a_verdict_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    referee = ScriptedReferee(lambda *_: refused("not_judged", "the device is full", NO_ROOM))
    run(SPEC, store, referee, monkeypatch, Lines("human", 1))
    assert labels(referee) == ["human 0"] * 3, "once more at the end, and there as any fault of ours"
    (candidate,) = store.candidates()
    found = store.verdict(candidate.sha256, "screen")
    assert found is not None and found.verdict == "not_judged"


def test_the_first_accepted_candidate_is_told_of_before_it_is_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)

    def early(label: str, phase: str) -> dict[str, Any]:
        if phase == "validation" and label == "human 0":
            told = [event["data"] for event in store.events() if event["name"] == "portfolio.changed"]
            assert [(one["label"], one["provisional"]) for one in told] == [("human 0", True)]
            assert told[0]["seconds"] >= 0 and told[0]["geomean_speedup"] == pytest.approx(1.1)
        return timed(1.1, phase)

    run(SPEC, store, ScriptedReferee(early), monkeypatch, Lines("human", 2))
    told = [event["data"] for event in store.events() if event["name"] == "portfolio.changed"]
    assert [(one["label"], one["provisional"]) for one in told] == [("human 0", True), ("human 0", False)]


@pytest.mark.parametrize(
    ("device", "best", "call_us", "library", "twins"),
    [
        ("cuda", "cuda_graph", 450.0, False, True),
        ("cuda", "compile_max_autotune", 450.0, False, True),
        ("cuda", "compile_default", 20.0, False, True),
        ("cuda", "compile_default", 450.0, False, False),
        ("cuda", "compile_default", 450.0, True, True),
        ("cuda", "compile_default", 9000.0, True, False),
        ("cpu", "compile_default", 20.0, False, False),
    ],
)
def test_a_candidate_is_judged_as_a_graph_right_after_itself_where_launches_matter(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    best: str,
    call_us: float,
    library: bool,
    twins: bool,
) -> None:
    if library:  # its kernels choose otherwise where launches cost little
        monkeypatch.setattr(graph_variants, "as_replayed", lambda source: f"{source}\n# replayed\n")
        monkeypatch.setattr(graph_variants, "BEGIN", "")  # in each text

    def says(label: str, phase: str) -> dict[str, Any]:
        verdict = timed(1.1, phase, best=best)
        for shape in verdict["shapes"]:
            shape["candidate_us"] = call_us
        return refused("incorrect", "wrong") if label == "human 1" else verdict

    store, referee = FolderStore(tmp_path), ScriptedReferee(says)
    run(replace(SPEC, device=device), store, referee, monkeypatch, Lines("human", 3))
    expected = ["human 0", "human 0 in a CUDA graph", "human 1", "human 2", "human 2 in a CUDA graph"]
    assert labels(referee) == (expected if twins else ["human 0", "human 1", "human 2"])
    made = [one for one in store.candidates() if is_graph_variant(one)]
    parents = {one.sha256 for one in store.candidates()}
    assert all(one.parent_sha256 in parents and one.origin == "human" for one in made)
    before = json.dumps(referee.judged)
    run(replace(SPEC, device=device), store, referee, monkeypatch, Lines("human", 3))
    assert json.dumps(referee.judged) == before, "run again, nothing is judged again"


def test_a_job_with_graph_twins_replays_from_its_record_and_shows_no_model_a_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "batch", FolderStore(tmp_path / "job")
    spec = replace(SPEC, models=(model(folder),), device="cuda", strategy=Strategy())

    def says(label: str, phase: str) -> dict[str, Any]:
        return timed(1.2, phase, best="cuda_graph")

    for _ in range(4):
        proposer = LLMProposer(spec.models, Budget(), strategy=spec.strategy)
        if run(spec, store, ScriptedReferee(says), monkeypatch, proposer).state != "waiting":
            break
        answer_all(folder, f"```python\n{small_job.GOOD}# {time.monotonic()}\n```")
    made = [one.label for one in store.candidates() if one.label != "optimized.py"]
    assert made == ["m-1 #1", "m-1 #1 in a CUDA graph", "m-1 #1 repaired", "m-1 #1 repaired in a CUDA graph"]
    assert [one.candidate.label for one in judged_in(store, store.candidates())[:2]] == [made[0], made[2]]
    assert replay(spec, store).same


def test_models_of_two_origins_that_are_asked_at_once_share_the_caps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cap that has room for one request: the second origin is not asked, though the first has no answer yet."""
    folder, budget = tmp_path / "batch", Budget(tokens=9_500)
    both = [replace(model(folder), origin=origin) for origin in ("llm", "policy")]
    spec = replace(SPEC, models=tuple(both), budget=budget, origins=("llm", "policy"))
    proposers = [LLMProposer([one], budget, origin=one.origin) for one in both]
    outcome = run(spec, FolderStore(tmp_path / "job"), ScriptedReferee(accepted), monkeypatch, *proposers)
    assert outcome.state == "waiting"
    assert len(requests(folder)) == 1
