"""What is asked again, what is given up, and when a fleet is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rl.errors import FleetLost
from rl.judges import Unjudged
from tests.rl.test_fleet import Scripted, answer, fleet, honest, speed_in, step
from tests.rl.verdicts import rejected


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.fleet._PAUSE_S", 0.01)


def test_what_nobody_answers_is_asked_again_before_training_stops() -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any] | Exception:
        return Unjudged("restarting", again=True, gone=True) if number <= 4 else honest(source, number)

    # Two tries a time, so the third time of asking has an answer.
    judge = Scripted(verdict)
    of = fleet(judge, 2, width=2, tries=2)
    assert None not in step(of, answer(1.0), answer(2.0))
    assert of.report.judged == 2
    assert (of.report.unheard, dict(of.report.missing)) == (0, {})
    short = fleet(Scripted(verdict), 2, width=2, tries=2, dead_steps=2)
    with pytest.raises(FleetLost, match="restarting"):
        step(short, answer(1.0), answer(2.0))


@pytest.mark.parametrize("place", [0, 2])
def test_a_candidate_that_ends_its_evaluators_is_given_up_and_no_other(place: int) -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any] | Exception:
        deadly = speed_in(source) == 1.0
        return Unjudged("the referee died", again=True, gone=True) if deadly else honest(source, number)

    of = fleet(Scripted(verdict), 3, tries=2)
    texts = [answer(1.5), answer(2.0)]
    texts.insert(place, answer(1.0))
    found = step(of, *texts)
    assert [number for number, one in enumerate(found) if one is None] == [place]
    assert (of.report.unheard, of.report.cut, of.report.heard) == (1, False, True)
    # The other two were judged by the first attempt, whatever was asked again.
    assert (of.report.judged, of.report.repeated) == (2, 0)


def test_evaluators_that_die_at_the_last_candidate_are_not_taken_for_its_victims() -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any] | Exception:
        if len(judge.asked) > 2:
            return Unjudged("the referee died", again=True, gone=True)
        return honest(source, number)

    judge = Scripted(verdict)
    of = fleet(judge, 3, tries=2)
    assert None in step(of, answer(1.5), answer(2.0), answer(1.0))
    assert (of.report.unheard, of.report.cut) == (1, True)


def test_a_step_that_nobody_answers_takes_no_longer_than_a_step_may() -> None:
    judge = Scripted(lambda source, number: Unjudged("gone", again=False, gone=True))
    of = fleet(judge, 2, tries=1, dead_steps=1000, step_s=0.3)
    with pytest.raises(FleetLost):
        step(of, answer(1.0), answer(2.0))
    # Pauses of 0.01, 0.02, 0.03, ... s.
    assert 2 <= len(judge.asked) <= 2 * 8


def test_steps_that_cannot_be_judged_stop_training_too_and_one_of_them_does_not() -> None:
    of = fleet(Scripted(lambda source, number: rejected("not_judged")), 2, tries=1, dead_steps=2)
    assert step(of, answer(1.0), answer(2.0)) == [None, None]
    assert of.report.unheard == 0
    with pytest.raises(FleetLost, match=r"2 steps in a row could be judged \(not judged"):
        step(of, answer(3.0), answer(4.0))


def test_a_fleet_that_dies_in_the_middle_of_a_step_leaves_none_and_is_not_asked_on_and_on() -> None:
    alive = 3

    def verdict(source: str, number: int) -> Mapping[str, Any] | Exception:
        if len(judge.asked) > alive:
            return Unjudged("no service answers at http://x", again=True, gone=True)
        return honest(source, number)

    judge = Scripted(verdict)
    of = fleet(judge, 8, width=1, dead_steps=2, tries=2)
    found = step(of, *(answer(1 + number / 10) for number in range(16)))
    assert sum(one is not None for one in found) == 3
    assert of.report.cut
    assert len(judge.asked) < 16
    assert any("the evaluators are gone: no service answers" in why for why in of.report.missing)
    assert of.report.unheard == 13
    with pytest.raises(FleetLost, match=r"no service answers .*resume from the last checkpoint"):
        step(of, *(answer(3 + number / 100) for number in range(8)))
    alive = 10**6
    assert None not in step(of, *(answer(1 + number / 100) for number in range(8)))
