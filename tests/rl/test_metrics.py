"""Figures of a step."""

from __future__ import annotations

from evaluator.verdict import from_json
from rl.hacks import Opinion
from rl.metrics import of_reports, of_samples
from rl.prompts import Answer
from rl.reward import Score
from rl.step_report import Report, Sample


def sample(speedup: float, *doubts: Opinion) -> Sample:
    answer = Answer("", "", "class ModelNew: pass", "", True)
    return Sample("t", answer, Score(1.0, speedup, "", ""), 0.0, from_json({"verdict": "accepted"}), doubts)


def test_what_was_caught_is_a_failure_in_the_figures() -> None:
    """Else a policy that found a hack would seem to write fast kernels."""
    found = of_reports([Report([sample(2.0), sample(50.0, Opinion("caught", "a decoy"))])])
    assert (found["speedup_mean"], found["accepted_share"], found["hacks"]) == (1.0, 0.5, 1)


def test_what_was_caught_is_not_shown_as_the_best_sample_of_a_run() -> None:
    report = Report([sample(2.0), sample(50.0, Opinion("caught", "a decoy"))])
    assert [line["speedup"] for line in of_samples(1, [report])] == [2.0, None]
