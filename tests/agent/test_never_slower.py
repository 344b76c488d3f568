"""Never slower than the best baseline, whoever proposed: what a module falls back to, and when nothing is delivered."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.candidates import Candidate
from agent.delivery import NO_IMPROVEMENT, is_improvement
from agent.job import run_job
from agent.portfolio.ranking import RANKING_STEPS, last_ranking
from agent.spec import JobOutcome
from agent.stores.folder import FolderStore
from evaluator.verdict import Summary, from_json
from tests.agent import small_job
from tests.agent.bundle.building import imported
from tests.agent.scripted_referee import Says, ScriptedReferee, timed

KERNEL = Candidate(small_job.GOOD, "llm", "a kernel")
#: Slower than the compiled reference at few rows, faster at many.
MIXED = {16: 0.4, 32: 0.45, 64: 0.5, 1024: 1.9, 2048: 2.0, 4096: 2.1}


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """As many as the scripted referee judges with: a module tells its user of any other number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run(folder: Path, says: Says) -> tuple[JobOutcome, FolderStore, ScriptedReferee]:
    """A job of one origin with one candidate."""
    store, referee = FolderStore(folder / "store"), ScriptedReferee(says)
    store.add_candidate(KERNEL)
    spec = small_job.spec(origins=("llm",), shapes=None)
    return run_job(spec, store, referee, folder / "out"), store, referee  # type: ignore[arg-type]


def says(validation: dict[int, float] | float, held_out: float, **more: Any) -> Says:
    def verdict(label: str, phase: str) -> dict[str, Any]:
        if phase == "held_out":
            return timed(held_out, phase, geomean=held_out, width=0.5, **more)
        return timed(validation if phase == "validation" else 1.5, phase, **more)

    return verdict


def test_a_module_that_is_slower_on_held_out_shapes_is_no_success(tmp_path: Path) -> None:
    """Seen on an H100: "succeeded ... 0.46x [0.18, 0.92]", with a bundle."""
    outcome, store, _ = run(tmp_path, says(1.5, 0.46))
    assert (outcome.state, outcome.verdict_word, outcome.bundle_path) == ("failed", NO_IMPROVEMENT, None)
    assert outcome.reason.startswith("no improvement: ")
    assert "0.46x [0.23, 0.69] against the best baseline" in outcome.reason
    assert not list((tmp_path / "out").glob("**/*.zip"))
    assert store.events()[-1]["name"] == "job.failed"
    with pytest.raises(ValueError, match=r"0\.46x"):
        JobOutcome("succeeded", "accepted", "", summary=Summary(0.46))
    again, _, referee = run(tmp_path, says(1.5, 9.9))
    assert again == outcome and referee.judged == [], "held-out shapes are looked at once"


@pytest.mark.parametrize("width", [0.1, 0.5])
def test_what_is_said_of_a_module_is_of_the_held_out_shapes_alone(tmp_path: Path, width: float) -> None:
    """Seen: "1.59x [1.39, 1.81] ...; on validation shapes nothing was confidently faster", where only the first is reported."""

    def verdict(label: str, phase: str) -> dict[str, Any]:
        return timed(1.59, phase, width=width) if phase == "held_out" else timed(1.2, phase, width=0.5)

    outcome, store, _ = run(tmp_path, verdict)
    plan = store.step("optimized/1")
    assert isinstance(plan, dict) and plan["decision"] == "same"
    assert outcome.state == "succeeded" and "1.59x" in outcome.reason
    unsure = "; not confidently faster than the best baseline, since the interval holds 1.00x"
    assert (unsure in outcome.reason) == (width == 0.5)
    assert "validation" not in outcome.reason and "nothing was" not in outcome.reason


@pytest.mark.parametrize(
    ("labels", "state"),
    [(["library_call"], "failed"), (["own_kernel"], "succeeded"), (["compiler"], "succeeded")],
)
def test_a_module_that_runs_the_reference_everywhere_is_no_success(
    tmp_path: Path, labels: list[str], state: str
) -> None:
    """By chance it comes out at 1.02x."""
    fell_back = {"rule": "fallback_ran", "severity": "warning", "evidence": "none was seen to run"}

    def judged(label: str, phase: str) -> dict[str, Any]:
        verdict = says(1.5, 1.02)(label, phase)
        if phase != "held_out":
            return verdict
        rows = [{**row, "decision": "undecided"} for row in verdict["shapes"]]
        return {**verdict, "labels": labels, "findings": [fell_back], "shapes": rows}

    outcome, _, _ = run(tmp_path, judged)
    assert outcome.state == state, outcome.reason
    if state == "failed":
        assert outcome.verdict_word == NO_IMPROVEMENT and outcome.bundle_path is None
        assert outcome.reason.startswith(
            "no improvement: optimized.py ran the reference and none of its kernels"
        )


@pytest.mark.parametrize(
    ("summary", "delivered"),
    [
        ({"geomean_speedup": 1.0}, True),
        ({"geomean_speedup": 0.999}, False),
        ({}, False),
        ({"geomean_speedup": 1.4, "traffic": {"geomean_speedup": 0.9}}, False),
        ({"geomean_speedup": 1.4, "traffic": {"geomean_speedup": 1.1}}, True),
    ],
)
def test_what_held_out_figures_allow_to_deliver(summary: dict[str, Any], delivered: bool) -> None:
    assert is_improvement(from_json({"verdict": "accepted", "summary": summary}).summary) is delivered


def test_where_every_candidate_is_slower_no_module_is_made(tmp_path: Path) -> None:
    outcome, store, _ = run(tmp_path, says(0.59, 0.59))
    assert (outcome.state, outcome.verdict_word) == ("failed", NO_IMPROVEMENT)
    assert "a kernel (origin llm), reached 0.59x [0.58, 0.60]" in outcome.reason
    assert store.steps("optimized/") == {}


def test_one_origin_falls_back_to_the_compiled_reference_where_that_is_faster(tmp_path: Path) -> None:
    """No origin but the model's ran, and no candidate is the compiled reference; the baselines' times are known all the same."""
    outcome, store, referee = run(tmp_path, says(MIXED, 1.3, eager=0.1))
    assert outcome.state == "succeeded", outcome.reason
    assert outcome.winner_sha256 == KERNEL.sha256
    assert {label for label, _ in referee.judged} == {"a kernel", "optimized.py"}
    module = _delivered(store, tmp_path)
    model = module.ModelNew(248).eval()
    with torch.no_grad():
        few, many = (model.kernelwright_explain(torch.randn(rows, 248)) for rows in (32, 2048))
    assert "compile default (compiler)" in few
    assert "a kernel (llm)" in many


def test_it_falls_back_to_the_plain_reference_where_that_is_the_best_baseline(tmp_path: Path) -> None:
    outcome, store, _ = run(tmp_path, says(MIXED, 1.3, eager=1.0, compiled=0.7, best="eager/2t"))
    assert outcome.state == "succeeded", outcome.reason
    module = _delivered(store, tmp_path)
    assert [name for _, name, _ in module.MEMBERS] == ["a kernel (llm)"]
    model = module.ModelNew(248).eval()
    with torch.no_grad():
        assert model.kernelwright_explain(torch.randn(32, 248)).startswith("reference")


def _delivered(store: FolderStore, folder: Path) -> Any:
    (plan,) = store.steps("optimized/").values()
    assert isinstance(plan, dict)
    return imported(folder, plan["source"])


def test_the_order_of_the_choice_is_kept_for_leaderboards_and_told_in_the_bundle(tmp_path: Path) -> None:
    """Seen in the demo: a candidate at rank 1 by the first verdict's summary, and another one delivered."""
    other = Candidate(small_job.SLOWER, "human", "a library")

    def verdict(label: str, phase: str) -> dict[str, Any]:
        if phase == "validation" and label == other.label:
            return timed(1.2, phase, geomean=1.97)
        return timed(1.5, phase)

    store, referee = FolderStore(tmp_path / "store"), ScriptedReferee(verdict)
    for candidate in (other, KERNEL):
        store.add_candidate(candidate)
    spec = small_job.spec(origins=("llm",), shapes=None)
    outcome = run_job(spec, store, referee, tmp_path / "out")  # type: ignore[arg-type]
    assert outcome.winner_sha256 == KERNEL.sha256
    chosen = last_ranking(store.steps(RANKING_STEPS))
    assert [(sha256, row["place"]) for sha256, row in chosen.items()] == [
        (KERNEL.sha256, 1),
        (other.sha256, 2),
    ]
    assert outcome.bundle_path is not None
    with zipfile.ZipFile(outcome.bundle_path) as archive:
        evidence = json.loads(archive.read("sort-twice-kernelwright/evidence.json"))
    assert [row["label"] for row in evidence["leaderboard"]] == ["a kernel", "a library"]
    assert round(evidence["leaderboard"][1]["geomean_speedup"], 6) == 1.2
