"""Rewards from evaluators: groups, retries, fleets that die, verdicts that never come, speeds that are measured again."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json
from rl.config import FleetPart, RewardPart
from rl.errors import FleetLost, GroupError
from rl.fleet import Fleet, text_of
from rl.hacks import HackDatabase, Opinion
from rl.judges import ServiceJudge, Unjudged
from rl.reward import shaping
from rl.verdicts import Kept, VerdictJournal
from tests.rl.verdicts import accepted, rejected
from tests.services.client.network import answering

TASK = TaskSource("t", "class Model: ...\n")
H200 = "NVIDIA H200"
FLOOR = shaping(RewardPart()).floor


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.fleet._PAUSE_S", 0.01)


Verdicts = Callable[[str, int], Mapping[str, Any] | Exception]


class Scripted:
    """A judge whose verdicts are a function of the source and of how often that was judged; counts what is under way."""

    def __init__(self, verdict: Verdicts, seconds: float = 0.0) -> None:
        self._verdict = verdict
        self._seconds = seconds
        self.asked: list[str] = []
        self.now = self.most = 0

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        self.asked.append(source)
        number = self.asked.count(source)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.now -= 1
        found = self._verdict(source, number)
        if isinstance(found, Exception):
            raise found
        return from_json(found)

    def close(self) -> None:
        pass


def answer(speed: float) -> str:
    return f"```python\nclass ModelNew:\n    speed = {speed}\n```"


def speed_in(source: str) -> float:
    return float(source.rpartition("speed = ")[2])


def honest(source: str, _: int) -> Mapping[str, Any]:
    return accepted(speed_in(source))


def settings(**more: Any) -> FleetPart:
    """Short times, which a config may not have."""
    return FleetPart(device="cpu").model_copy(update=more)


def fleet(judge: Any, group: int = 4, verdicts: VerdictJournal | None = None, **more: Any) -> Fleet:
    """A fleet with a journal of its own unless one is given; `more` are its arguments, or its settings."""
    given = {name: more.pop(name) for name in ("machine", "record", "hacks", "reviewer") if name in more}
    with tempfile.TemporaryDirectory() as folder:  # an open file outlives its name
        verdicts = verdicts or VerdictJournal(Path(folder) / "verdicts")
    return Fleet(
        judge, {"t": TASK}, verdicts, group=group, settings=settings(**more), reward=RewardPart(), **given
    )


def step(of: Fleet, *completions: Any) -> list[float | None]:
    return asyncio.run(of.rewards(["p"] * len(completions), list(completions), task=["t"] * len(completions)))


def test_the_trainer_sees_an_asynchronous_function_with_a_name() -> None:
    function = fleet(Scripted(honest)).rewards
    assert asyncio.iscoroutinefunction(function)
    assert function.__name__ == "rewards"


def test_faster_is_better_wrong_is_worst_and_what_is_no_code_is_as_wrong() -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any]:
        return rejected("incorrect") if speed_in(source) == 9.0 else honest(source, number)

    judge = Scripted(verdict)
    of = fleet(judge, 4)
    fast, slow, wrong, none = step(
        of, answer(2.0), [{"role": "assistant", "content": answer(0.5)}], answer(9.0), "hm"
    )
    assert fast > slow > wrong == none  # type: ignore[operator]
    assert [one.score.value for one in of.report.samples[2:]] == [FLOOR, FLOOR]
    assert len(judge.asked) == 3
    assert [(one.task, one.machine, one.speedup) for one in of.successes()] == [
        (TASK.sha256, "NVIDIA H200", 2.0),
        (TASK.sha256, "NVIDIA H200", 0.5),
    ]


def test_the_same_program_is_judged_once_in_a_step_and_in_later_ones() -> None:
    judge = Scripted(honest)
    of = fleet(judge, 4)
    step(of, answer(1.1), answer(1.1), answer(1.1) + "\nand some words", answer(1.5))
    assert len(judge.asked) == 2
    assert of.report.repeated == 2
    step(of, answer(1.1), answer(1.5), answer(1.6), answer(1.1))
    assert len(judge.asked) == 3


def test_no_more_are_under_way_than_the_fleet_is_wide() -> None:
    judge = Scripted(honest, seconds=0.02)
    step(fleet(judge, 8, width=3), *(answer(1 + number / 10) for number in range(8)))
    assert judge.most == 3


def test_a_fault_is_tried_again_and_then_none() -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any] | Exception:
        if speed_in(source) == 1.0:
            return rejected("not_judged")
        if speed_in(source) == 1.5 and number < 3:
            return Unjudged("lost", again=True)
        return honest(source, number)

    judge = Scripted(verdict)
    of = fleet(judge, 4, width=4)
    found = step(of, answer(1.0), answer(1.5), answer(1.2), answer(2.0))
    assert [one is None for one in found] == [True, False, False, False]
    assert [len([one for one in judge.asked if speed_in(one) == speed]) for speed in (1.0, 1.5, 1.2)] == [
        3,
        3,
        1,
    ]
    assert dict(of.report.missing) == {"not judged: not_judged": 1}


def test_a_candidate_that_cannot_be_submitted_is_rejected_and_not_let_off() -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any] | Exception:
        if speed_in(source) == 1.0:
            return Unjudged("holds a NUL character", again=False, own_fault=True)
        return honest(source, number)

    of = fleet(Scripted(verdict), 2)
    step(of, answer(1.0), answer(2.0))
    assert of.report.samples[0].score.value == FLOOR


def test_a_reward_that_never_comes_is_none_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Scripted):
        async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
            if speed_in(source) == 1.0:
                await asyncio.sleep(60)
            return await super().judge(task, source)

    with caplog.at_level(logging.WARNING):
        assert step(fleet(Silent(honest), 2, width=2, patience_s=0.2), answer(1.0), answer(2.0)) == [
            None,
            0.0,
        ]
    assert "1 of 2 completions have no reward: 1x no verdict within 0.2 s" in caplog.text
    of = fleet(Silent(honest), 2, width=2, patience_s=60, step_s=0.2)
    assert step(of, answer(1.0), answer(2.0)) == [None, 0.0]
    assert "within the step's 0.2 s" in next(iter(of.report.missing))


@pytest.mark.slow
def test_a_service_that_is_not_there_is_a_fleet_that_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    with answering((503, {}, b"")) as (url, _):
        gone_url = url
    judge = ServiceJudge(gone_url, settings(width=2))
    of = fleet(judge, 2, width=2, tries=1)
    with caplog.at_level(logging.WARNING), pytest.raises(FleetLost, match="no service answers at"):
        step(of, answer(1.0), answer(2.0))
    judge.close()
    assert "what is missing is asked again" in caplog.text


@pytest.mark.parametrize("status", [401, 403, 422, 500])
def test_a_service_that_refuses_is_lost_and_its_words_are_told(status: int) -> None:
    body = b'{"title": "no", "detail": "not with this key"}'
    with answering((status, {"Content-Type": "application/problem+json"}, body)) as (url, got):
        judge = ServiceJudge(url, settings())
        of = fleet(judge, 2, tries=1, dead_steps=1)
        with pytest.raises(FleetLost, match="not with this key"):
            step(of, answer(1.0), answer(2.0))
        judge.close()
    assert len(got) <= 2


def test_what_a_service_cannot_take_is_the_candidates_own_fault() -> None:
    with answering((413, {}, b"")) as (url, got):
        judge = ServiceJudge(url, settings())
        for text in ("a\x00", "\ud800", " "):
            with pytest.raises(Unjudged) as told:
                asyncio.run(judge.judge(TASK, text))
            assert told.value.own_fault
        with pytest.raises(Unjudged) as told:
            asyncio.run(judge.judge(TaskSource("t", "\x00"), "class ModelNew: ..."))
        assert not told.value.own_fault
        assert not got
        of = fleet(judge, 2, tries=1)
        assert step(of, answer(1.0), "too large as well") == [0.0, 0.0]
        assert of.report.samples[0].score.value == FLOOR
        judge.close()


def test_a_jump_is_measured_again_and_the_lower_of_two_that_agree_counts() -> None:
    def verdict(source: str, number: int) -> Mapping[str, Any]:
        return (
            accepted(
                {4.0: (4.0, 3.8), 5.0: (5.0, 1.2), 6.0: (6.0, 0.0)}.get(speed_in(source), (1.0, 1.0))[
                    number - 1
                ]
            )
            if (speed_in(source) != 6.0 or number == 1)
            else rejected("cheating")
        )

    judge = Scripted(verdict)
    of = fleet(judge, 4)
    agreed, apart, caught, plain = step(of, answer(4.0), answer(5.0), answer(6.0), answer(1.0))
    assert (apart, of.report.samples[2].score.value) == (None, FLOOR)
    assert agreed > plain > caught  # type: ignore[operator]
    assert of.report.samples[0].score.speedup == 3.8
    assert [one.speedup for one in of.successes()] == [3.8, 1.0]
    asked = len(judge.asked)
    assert asked == 7
    step(of, answer(4.0), answer(4.0), answer(1.0), answer(1.0))
    assert len(judge.asked) == asked  # confirmed once


def test_a_first_look_is_compared_at_its_shapes_and_the_whole_counts() -> None:
    """The second measurement has a third shape, whose speed is no disagreement; one that differs at the first two is."""

    def verdict(source: str, number: int) -> Mapping[str, Any]:
        speed = speed_in(source)
        first, second = {4.0: (4.0, 4.1), 5.0: (5.0, 1.2)}.get(speed, (1.0, 1.0))
        return accepted(first, first) if number == 1 else accepted(second, second, 1.0)

    of = fleet(Scripted(verdict), 3)
    agreed, apart, _ = step(of, answer(4.0), answer(5.0), answer(1.0))
    assert apart is None
    assert agreed is not None
    assert of.report.samples[0].score.speedup == pytest.approx((4.1 * 4.1) ** (1 / 3), abs=0.01)
    found = of.report.samples[0].verdict
    assert found is not None
    assert len(found.shapes) == 3


def test_the_record_of_the_task_says_what_a_jump_is() -> None:
    judge = Scripted(honest)
    records = {TASK.sha256: 1.0}
    step(fleet(judge, 2, record=records.get), answer(2.5), answer(1.5))
    assert sorted(speed_in(one) for one in judge.asked) == [1.5, 2.5, 2.5]


def test_what_was_measured_on_another_type_of_machine_is_none() -> None:
    of = fleet(Scripted(honest), 2, machine="NVIDIA A100")
    assert step(of, answer(1.0), answer(2.0)) == [None, None]
    assert next(iter(of.report.missing)) == "measured on NVIDIA H200, not NVIDIA A100"
    assert of.successes() == []


def test_hacks_are_recognized_and_judges_are_asked_about_jumps(tmp_path: Path) -> None:
    cheat = {"rule": "stale_output", "severity": "cheat", "evidence": "old"}
    decoy = {"rule": "decoy_kernel", "severity": "warning", "evidence": "nothing computed"}

    def verdict(source: str, number: int) -> Mapping[str, Any]:
        if speed_in(source) == 7.0:
            return rejected("cheating", cheat)
        return {**honest(source, number), "findings": [decoy] if speed_in(source) == 2.0 else []}

    asked: list[float] = []

    def judge(task: TaskSource, source: str, speedup: float, hits: Any) -> Opinion:
        asked.append(speed_in(source))
        if speed_in(source) == 4.5:
            raise ConnectionError("no model")
        return Opinion("caught", "reads its own file")

    with HackDatabase(tmp_path / "hacks") as hacks:
        of = fleet(Scripted(verdict), 4, hacks=hacks, reviewer=judge)
        step(of, answer(7.0), answer(2.0), answer(4.0), answer(1.0))
        assert [one.score.value for one in of.report.samples[:3]] == [FLOOR] * 3
        assert asked == [4.0]
        assert [one.speedup for one in of.successes()] == [1.0]
        step(of, answer(4.5), answer(1.0), answer(1.0), answer(1.0))
        assert (
            of.report.samples[0].reward is None
        )  # a judge that fails is no fault of the candidate's, nor its gain
        assert sum(one.reward is None for one in of.report.samples) == 1


def test_groups_are_whole_on_every_rank() -> None:
    of = fleet(Scripted(honest), 2)
    with pytest.raises(GroupError, match="not whole groups of 2"):
        step(of, answer(1.0), answer(1.0), answer(1.0))
    with pytest.raises(GroupError, match="0 to 1 are one group and have different prompts"):
        asyncio.run(of.rewards(["p", "q"], [answer(1.0)] * 2, task=["t", "t"]))
    with pytest.raises(GroupError, match="no task is called 'u'"):
        asyncio.run(of.rewards(["p", "p"], [answer(1.0)] * 2, task=["u", "u"]))


@pytest.mark.parametrize("completion", [None, [], [{}], [{"content": None}], {"content": "x"}, 3])
def test_a_completion_that_is_no_text_is_empty(completion: Any) -> None:
    assert text_of(completion) == ""


def test_what_a_judge_said_of_a_candidate_holds_when_it_is_written_again() -> None:
    asked: list[float] = []

    def judge(task: TaskSource, source: str, speedup: float, hits: Any) -> Opinion:
        asked.append(speed_in(source))
        return Opinion("caught", "reads its own file")

    of = fleet(Scripted(honest), 2, reviewer=judge)
    for _ in range(2):
        step(of, answer(4.0), answer(1.0))
        assert of.report.samples[0].score.value == FLOOR
        assert [one.speedup for one in of.successes()] == [1.0]
    assert asked == [4.0]


@pytest.mark.parametrize("word", ["accepted", "compile_error", "runtime_error", "timeout", "incorrect"])
def test_what_another_type_of_machine_said_is_asked_again(tmp_path: Path, word: str) -> None:
    """A file may fit into one card's shared memory and not into another's."""

    def verdict(source: str, number: int) -> Mapping[str, Any]:
        elsewhere = {**accepted()["environment"], "device_name": "NVIDIA A100"}
        said = accepted(2.0) if word == "accepted" else rejected(word)
        return {**said, "environment": elsewhere} if number == 1 else honest(source, number)

    with VerdictJournal(tmp_path / "verdicts", H200) as kept:
        judge = Scripted(verdict)
        of = fleet(judge, 2, kept, machine=H200)
        assert step(of, answer(1.0), answer(2.0)) == [None, None]
        assert step(of, answer(1.0), answer(2.0)) == [-1.0, 1.0]
        assert len(judge.asked) == 4


def test_a_cheat_is_one_on_any_machine() -> None:
    of = fleet(Scripted(lambda source, _: rejected("cheating")), 2, machine="A100")
    step(of, answer(1.0), answer(2.0))
    assert [one.score.value for one in of.report.samples] == [FLOOR, FLOOR]


def test_verdicts_of_another_first_look_are_not_given(tmp_path: Path) -> None:
    """One that was confirmed is of all shapes."""
    verdict = from_json(accepted(1.0))
    with VerdictJournal(tmp_path / "verdicts", look="two") as kept:
        kept.put(("t", "first"), Kept(verdict, confirmed=False))
        kept.put(("t", "whole"), Kept(verdict, confirmed=True))
    for look, known in (("two", [True, True]), ("", [False, True]), ("three", [False, True])):
        with VerdictJournal(tmp_path / "verdicts", look=look) as kept:
            assert [kept.get(("t", name)) is not None for name in ("first", "whole")] == known


def test_verdicts_of_another_referee_are_not_given(tmp_path: Path) -> None:
    ours, others = ({**accepted(1.0), "environment": {"harness": harness}} for harness in ("2", "1"))
    with VerdictJournal(tmp_path / "verdicts") as kept:
        kept.put(("t", "ours"), Kept(from_json(ours), confirmed=False))
        kept.put(("t", "others"), Kept(from_json(others), confirmed=False))
        kept.put(("t", "cheats"), Kept(from_json({**others, "verdict": "cheating"}), confirmed=False))
    with VerdictJournal(tmp_path / "verdicts", harness="2") as kept:
        assert [kept.get(("t", name)) is not None for name in ("ours", "others", "cheats")] == [
            True,
            False,
            False,
        ]


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
