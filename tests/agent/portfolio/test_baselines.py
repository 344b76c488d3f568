"""The ways to run the reference as entries, from the times that verdicts give of baselines."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from agent.candidates import Candidate
from agent.portfolio.baselines import baseline_entries
from agent.portfolio.entries import Entry
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from tests.agent import small_job

TASK = TaskSource("sort", small_job.TASK)


def judged(*rows: dict[str, float]) -> Entry:
    """A candidate that was timed at n=0, 1, ... against baselines of these times, of which the least is the best."""
    shapes = [
        {
            "dims": {"n": place},
            "split": "validation",
            "timed": True,
            "speedup": 1.1,
            "ci95": [1.09, 1.11],
            "baseline_us": min(times.values()),
            "best_baseline": min(times, key=times.__getitem__),
            "baselines": {name: {"median_us": us} for name, us in times.items()},
        }
        for place, times in enumerate(rows)
    ]
    verdict = {"verdict": "accepted", "shapes": shapes, "summary": {}, "environment": {"threads": 4}}
    return Entry(Candidate("class ModelNew: pass", "llm", "kernel"), 3, from_json(verdict))


def test_each_mode_has_the_speed_of_its_baseline_where_that_was_timed() -> None:
    entry = judged(
        {"eager/4t": 80.0, "compile_default/4t": 40.0, "compile_default/1t": 50.0},
        {"eager/4t": 10.0, "compile_default/4t": 20.0},
        {"eager/4t": 10.0, "compile_default/4t": 8.0, "compile_default/1t": 4.0},
    )
    found = baseline_entries(TASK, "cpu", [entry])
    zero, first, second = (f'{{"n": {place}}}' for place in range(3))
    assert {one.baseline: one.speedups() for one in found} == {
        "compile_default/4t": pytest.approx({zero: 1.0, first: 0.5, second: 0.5}),
        "compile_default/1t": pytest.approx({zero: 0.8, second: 1.0}),
    }
    assert all(one.candidate.origin == "compiler" and one.order > entry.order for one in found)
    assert found[0].geomean == pytest.approx(0.25 ** (1 / 3))
    for one in found:
        ast.parse(one.candidate.source)


def test_a_way_that_is_nowhere_clearly_faster_than_cheaper_ones_is_left_out() -> None:
    times = {"eager": 50.0, "cuda_graph": 40.0, "compile_default": 20.0, "compile_max_autotune": 19.8}
    entry = judged(times, times | {"eager": 15.0})
    assert [one.baseline for one in baseline_entries(TASK, "cuda", [entry])] == [
        "cuda_graph",
        "compile_default",
    ]
    assert baseline_entries(TASK, "cuda", [judged({"eager": 10.0, "compile_default": 9.9})]) == []
    faster = judged(times | {"compile_max_autotune": 15.0})
    assert baseline_entries(TASK, "cuda", [faster])[-1].candidate.label == "compile max-autotune"


def test_what_was_judged_itself_is_left_out() -> None:
    entry = judged({"eager": 50.0, "compile_default": 20.0, "compile_reduce_overhead": 20.0})
    (default,) = baseline_entries(TASK, "cuda", [entry])
    itself = replace(default, baseline="")
    assert baseline_entries(TASK, "cuda", [entry, itself], {default.candidate.sha256}) == []
    (other,) = baseline_entries(TASK, "cuda", [entry], {default.candidate.sha256})
    assert other.baseline == "compile_reduce_overhead", "the default mode was rejected"
    assert baseline_entries(TASK, "cuda", []) == []


def test_a_forward_that_cannot_be_wrapped_leaves_the_plain_reference() -> None:
    source = small_job.TASK.replace("forward(self, x: torch.Tensor)", "forward(self, *x)")
    assert baseline_entries(TaskSource("sort", source), "cuda", [judged({"compile_default": 10.0})]) == []


def test_the_order_in_which_candidates_were_judged_changes_nothing() -> None:
    """Answers of models arrive in any order, and a job that was killed must deliver the same file."""
    first = judged({"eager": 50.0, "compile_default": 20.0, "cuda_graph": 19.0})
    other = replace(
        judged({"eager": 20.5, "compile_default": 20.0, "cuda_graph": 21.0}),
        candidate=Candidate("class ModelNew: ...", "llm", "other"),
    )
    assert baseline_entries(TASK, "cuda", [first, other]) == baseline_entries(TASK, "cuda", [other, first])
