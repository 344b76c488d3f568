"""Successive halving on an objective that is known, noise included."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from agent.strategy.tuning import halve, words

SETTINGS = [{"BLOCK": block, "UNROLL": unroll} for block in range(16) for unroll in range(8)]


def true_us(setting: Mapping[str, Any]) -> float:
    return 100.0 + 7.0 * (setting["BLOCK"] - 11) ** 2 + 13.0 * abs(setting["UNROLL"] - 3)


@pytest.mark.parametrize("seed", range(20))
def test_128_settings_cost_at_most_a_quarter_and_end_within_one_percent_of_the_best(seed: int) -> None:
    generator = random.Random(seed)

    def objective(setting: Mapping[str, Any], share: float) -> float:
        noise = 0.003 / share**0.5  # a short timing is a noisy one: 1.7 % at 1/32
        return true_us(setting) * (1 + generator.gauss(0, noise))

    found = halve(SETTINGS, objective)
    assert found.setting is not None
    assert found.cost <= len(SETTINGS) / 4
    assert true_us(found.setting) <= 1.01 * min(map(true_us, SETTINGS))


def test_ties_cannot_make_it_dearer_than_a_quarter() -> None:
    found = halve(SETTINGS, lambda setting, share: 100.0)
    assert found.cost <= len(SETTINGS) / 4
    assert found.setting == SETTINGS[0], "among equals the first, which is the candidate's own"


def test_settings_that_do_not_work_are_dropped_and_never_win() -> None:
    def objective(setting: Mapping[str, Any], share: float) -> float | None:
        if setting["BLOCK"] == 11:
            return None
        return float("nan") if setting["BLOCK"] == 10 else true_us(setting)

    found = halve(SETTINGS, objective)
    assert found.setting == {"BLOCK": 12, "UNROLL": 3}
    failed = [trial for trial in found.trials if trial.setting["BLOCK"] == 11]
    assert len(failed) == 8, "each is tried once"
    assert halve(SETTINGS, lambda setting, share: None).setting is None


def test_a_neighbor_who_comes_and_goes_decides_nothing() -> None:
    """Timed one after the other at full length, whoever had the quiet half would have won."""
    spent = 0.0

    def objective(setting: Mapping[str, Any], share: float) -> float:
        nonlocal spent
        spent += share
        return true_us(setting) * (1.5 if int(spent / 2) % 2 else 1.0)

    best = min(map(true_us, SETTINGS))
    near = sorted(SETTINGS, key=true_us)[:4]
    found = halve(near, objective)
    assert found.setting is not None and true_us(found.setting) == best
    assert found.cost == 4.0
    assert found.elapsed_us is not None and best <= found.elapsed_us <= 1.5 * best


def test_what_is_cut_in_the_middle_of_its_turns_compares_whole_turns() -> None:
    left = iter([True] * 11)
    found = halve(SETTINGS[90:94], lambda setting, share: true_us(setting), keep=lambda: next(left, False))
    assert found.setting == {"BLOCK": 11, "UNROLL": 3}
    assert sum(trial.share for trial in found.trials) == 11 / 8


def test_a_few_settings_are_timed_at_full_length_at_once() -> None:
    found = halve(SETTINGS[:4], lambda setting, share: true_us(setting))
    assert [trial.share for trial in found.trials] == [1.0] * 4
    assert halve([], lambda setting, share: 1.0).setting is None


def test_without_time_the_best_so_far_is_taken() -> None:
    left = iter([True] * 100)
    found = halve(SETTINGS, lambda setting, share: true_us(setting), keep=lambda: next(left, False))
    assert len(found.trials) == 100
    assert found.setting == {"BLOCK": 11, "UNROLL": 3}


def test_a_setting_in_words() -> None:
    assert words({"BLOCK": 64, "MODE": "fast"}) == "BLOCK=64, MODE=fast"
