"""What the live run says of itself: rates, ratios of tasks that both arms have, and only a replay of the same settings beside it."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from benchmarks.rl_live import Watched, beside_replay, figures_of
from benchmarks.rl_scaling import efficiency
from experiments.dialect.arms import Outcome
from experiments.dialect.live import Tally

TALLY = Tally(asked=110, judged=40, unjudged={"late": 10}, waited_s=60.0, first_verdict_s=40.0)
PARTS = {"imitate_s": 1.0, "reinforce_s": 80.0, "waited_s": 20.0}


def outcome(arm: str, scores: dict[str, list[float]]) -> Outcome:
    return Outcome(arm, 0, scores, 0.0)


def test_rates_and_ratio() -> None:
    outcomes = [
        outcome("sft", {"a": [0.0, 1.0], "b": [1.0], "c": []}),
        outcome("contrastive", {"a": [1.0], "b": [2.0], "c": [9.0]}),
    ]
    found = figures_of(outcomes, TALLY, PARTS, 100.0)
    assert (found["ratio"]["value"], found["tasks"]) == (2.0, 2)
    assert (found["distinct_a_second"], found["with_repeats_a_second"], found["idle_share"]) == (
        2.0,
        5.0,
        0.25,
    )


def test_a_ratio_to_nothing_is_none() -> None:
    outcomes = [outcome("sft", {"a": [0.0]}), outcome("contrastive", {"a": [1.0]})]
    assert figures_of(outcomes, TALLY, PARTS, 1.0)["ratio"] is None


def replayed(**settings: Any) -> dict[str, Any]:
    claims = [{"name": "P1", "value": 1.5, "low": 1.2, "high": 1.8}]
    return {"settings": {"steps": 5, **settings}, "table": {"families": ["softmax"]}, "claims": claims}


@pytest.mark.parametrize(("value", "inside"), [(1.2, True), (1.5, True), (1.9, False), (1.1, False)])
def test_inside_means_between_the_ends(value: float, inside: bool) -> None:
    compared = {"families": ["softmax"], "steps": 5}
    assert beside_replay(replayed(), compared, {"value": value})["inside"] is inside
    assert beside_replay(replayed(), compared, None)["inside"] is False


@pytest.mark.parametrize(
    "compared", [{"families": ["softmax"], "steps": 6}, {"families": ["row_sum"], "steps": 5}]
)
def test_a_replay_of_other_settings_is_refused(compared: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter, match="differs in"):
        beside_replay(replayed(), compared, {"value": 1.5})


def test_waiting_counts_only_within_the_parts() -> None:
    class Learns:
        def imitate(self, *_: Any) -> list[float]:
            waited[0] += 1.0
            return []

        def reinforce(self, *_: Any) -> list[Any]:
            waited[0] += 2.0
            return []

    waited = [5.0]
    watched = Watched(Learns(), lambda: waited[0])
    watched.imitate(None, lambda _: [], None)  # type: ignore[arg-type]
    waited[0] += 100.0
    watched.reinforce(None, None, None, 0)  # type: ignore[arg-type]
    assert watched.parts["waited_s"] == 3.0


def test_efficiency_is_one_step_over_several() -> None:
    value, low, high = efficiency([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert (value, low, high) == (0.5, 0.5, 0.5)
    value, low, high = efficiency([1.0, 1.1, 0.9], [1.2, 1.3, 1.1])
    assert low < value < high
