"""What a sample adds to the others of its group, against every choice of others counted out."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.best_of import gains_on_best
from rl.config import RewardPart
from rl.reward import normalized

SCORES = st.lists(st.none() | st.integers(-3, 6).map(float) | st.floats(-3, 6), max_size=9)


@given(SCORES, st.integers(1, 10))
def test_a_gain_is_the_mean_over_all_choices_of_the_others(scores: list[float | None], k: int) -> None:
    known = [score for score in scores if score is not None]
    size = min(k, len(known)) - 1
    expected = []
    for place, score in enumerate(known):
        others = known[:place] + known[place + 1 :]
        choices = list(itertools.combinations(others, size)) if size > 0 else []
        expected.append(
            statistics.fmean(max(score, *chosen) - max(chosen) for chosen in choices) if choices else score
        )
    found = gains_on_best(scores, k)
    assert [one is None for one in found] == [score is None for score in scores]
    assert [one for one in found if one is not None] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("k", "group"), [(2, 2), (2, 3), (3, 3), (2, 4), (3, 4)])
def test_gains_follow_the_gradient_of_the_expected_best(k: int, group: int) -> None:
    # Four programs, drawn by a softmax: the mean over all groups of what the gains say, against the exact gradients.
    worth = [0.0, 1.0, 1.5, 4.0]
    logits = torch.tensor([0.3, -0.2, 0.5, -1.0], dtype=torch.float64, requires_grad=True)
    chances = torch.softmax(logits.detach(), 0)

    def exact(count: int) -> torch.Tensor:
        probabilities = torch.softmax(logits, 0)
        best = sum(
            probabilities[list(drawn)].prod() * max(worth[one] for one in drawn)
            for drawn in itertools.product(range(4), repeat=count)
        )
        (slope,) = torch.autograd.grad(best, logits)
        return slope

    alone, centered = (torch.zeros(4, dtype=torch.float64) for _ in range(2))
    for drawn in itertools.product(range(4), repeat=group):
        chance = float(chances[list(drawn)].prod())
        gains = [gain or 0.0 for gain in gains_on_best([worth[one] for one in drawn], k)]
        for program, gain in zip(drawn, gains, strict=True):
            slope = -chances.clone()  # of a program's log probability
            slope[program] += 1
            alone += chance * gain * slope
            centered += chance * (gain - statistics.fmean(gains)) * slope
    assert torch.allclose(alone, group / k * exact(k), atol=1e-12)
    assert torch.allclose(centered, (group / k - 1) * exact(k) + exact(k - 1), atol=1e-12)


def test_a_repeat_adds_little_and_failures_are_told_from_programs_where_few_are_asked_for() -> None:
    assert gains_on_best([2.0, 2.0, 1.0, 0.0], 4) == [0.0, 0.0, 0.0, 0.0]
    assert gains_on_best([2.0, 1.0, 1.0, 0.0], 4) == [1.0, 0.0, 0.0, 0.0]
    pairs = gains_on_best([2.0, 1.0, 1.0, 0.0], 2)
    assert pairs == pytest.approx([4 / 3, 1 / 3, 1 / 3, 0.0])
    with pytest.raises(ValueError, match="best of 0"):
        gains_on_best([1.0], 0)


def test_rewards_of_a_group_can_be_compared_by_what_they_add() -> None:
    scores = [0.7, 0.7, 0.2, -1.6]
    alone = normalized(scores, RewardPart())
    together = normalized(scores, RewardPart(best_of=2))
    assert alone[2] != pytest.approx(together[2])
    assert together[0] == together[1] > together[2] > together[3]  # type: ignore[operator]
    assert normalized(scores, RewardPart(best_of=4)) == [0.0] * 4
    # One that is ahead by less than the timer's noise is not the only one that adds.
    assert normalized([0.705, 0.7, 0.2, -1.6], RewardPart(best_of=4)) == [0.0] * 4
