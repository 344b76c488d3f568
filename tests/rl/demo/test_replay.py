"""The replay on a planted table: what exemplars show, that learning learns, and that claims can fail."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from rl.demo import arms, seen
from rl.demo.arms import (
    Examined,
    Outcome,
    ReplaySettings,
    World,
    WorldPractice,
    examine,
    mean_score,
    reference,
    run_arm,
    search_longer,
    supervised_rows,
)
from rl.demo.dialect.tasks import Task
from rl.demo.findings import claims
from rl.demo.intervals import ratio_of_means
from rl.demo.learning import GrpoSettings, SftSettings, advantages
from rl.demo.model import ModelSize, Policy, Samples, build_policy, sample
from rl.demo.own_learner import OwnLearner
from rl.demo.prompts import ANSWER, SEEN
from tests.rl.demo.planted import planted_table

SETTINGS = ReplaySettings(
    model=ModelSize(layers=1, width=48, heads=4),
    sft=SftSettings(steps=150, batch=16, learning_rate=4e-3),
    grpo=GrpoSettings(steps=25, learning_rate=2e-3),
    tasks_per_step=6,
)


@pytest.fixture(scope="module")
def world() -> World:
    return World(planted_table(("row_sum",)))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


PROGRAMS = [("a", 0.5), ("b", 0.51), ("c", 1.0), ("d", 2.0)]


def test_contrastive_exemplars_are_from_two_buckets_and_the_better_is_last() -> None:
    drawn = [seen.contrastive(PROGRAMS, random.Random(index)) for index in range(300)]
    assert all(len(shown) == 2 and shown[0][1] < shown[1][1] for shown in drawn)
    assert not any({source for source, _ in shown} == {"a", "b"} for shown in drawn)
    best = sum(shown[1][0] == "d" for shown in drawn)
    assert best > 240  # at a temperature of 0.3 the bucket of 2.0 is nearly always one of the two
    assert seen.contrastive(PROGRAMS[:2], random.Random(0)) == []


def test_shuffled_scores_are_scores_of_the_task_on_the_wrong_programs() -> None:
    own = dict(PROGRAMS)
    drawn = [pair for index in range(200) for pair in seen.shuffled(PROGRAMS, random.Random(index))]
    assert {score for _, score in drawn} == set(own.values())
    assert 0.1 < sum(own[source] == score for source, score in drawn) / len(drawn) < 0.5


def test_failures_are_shown_to_nobody() -> None:
    memory = seen.Seen()
    memory.add("t", "wrong", 0.0)
    memory.add("t", "right", 1.5)
    assert memory.of("t") == [("right", 1.5)]


def test_advantages_are_clipped_and_a_lost_reward_counts_for_nothing() -> None:
    found = advantages([0.0] * 7 + [8.0], GrpoSettings())
    assert max(found) == 1.5
    assert advantages([1.0, None, 3.0], GrpoSettings()) == [-1.0, 0.0, 1.0]
    assert advantages([2.0, 2.0], GrpoSettings()) == advantages([None, None], GrpoSettings()) == [0.0, 0.0]


def test_arms_learn_from_the_same_rows(world: World) -> None:
    bare = supervised_rows(world, seen.none, SETTINGS, 0, 3)
    shown = supervised_rows(world, seen.contrastive, SETTINGS, 0, 3)
    dealt = supervised_rows(world, seen.shuffled, SETTINGS, 0, 3)
    assert (
        [program for _, program in bare]
        == [program for _, program in shown]
        == [program for _, program in dealt]
    )
    assert not any(SEEN in prompt for prompt, _ in bare)
    with_exemplars = [prompt.count(SEEN) for prompt, _ in shown]
    assert set(with_exemplars) == {0, 2}
    held_out = {task.name for task in world.held_out}
    assert not held_out & {task.name for task in world.train}


def test_asking_twice_asks_the_same_and_leaves_nothing_behind(world: World) -> None:
    practice = WorldPractice(world, seen.contrastive, SETTINGS, 0)
    asked = practice.questions(0)
    sources = [source for source, _ in world.accepted(asked[0].task)]
    for question in asked:
        practice.reward([question.task] * len(sources), sources)
    later = practice.questions(1)
    assert later == practice.questions(1)
    assert any(SEEN in question.prompt for question in later)
    assert not any(SEEN in question.prompt for question in asked)


def test_samples_end_and_stay_within_their_bound(world: World) -> None:
    policy = build_policy(world.tokenizer, SETTINGS.model, 7, 0)
    samples = sample(policy, [ANSWER, ANSWER + ANSWER], 0)
    assert samples.ids.shape[1] <= samples.start + 7
    again = sample(policy, [ANSWER, ANSWER + ANSWER], 0)
    assert samples.texts == again.texts
    with torch.no_grad():  # a head that wants nothing but the end
        policy.model.lm_head.weight.zero_()
    ended = sample(policy, [ANSWER] * 400, 0)
    assert "" in ended.texts  # chance of the end: one in the vocabulary, at the first token already
    assert (ended.mask[:, ended.start :].sum(1) <= 7).all()


class Perverse(WorldPractice):
    """Pays for slowness: what a sign error in the reward would do."""

    def reward(self, tasks: Sequence[Task], completions: Sequence[str]) -> list[float | None]:
        return [None if reward is None else -reward for reward in super().reward(tasks, completions)]


def test_reinforcement_finds_what_is_fast_and_a_planted_sign_error_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised: dict[str, object] = {}
    before, policy = run_arm(world, "sft", OwnLearner(), SETTINGS, 0, supervised)
    after, _ = run_arm(world, "plain", OwnLearner(), SETTINGS, 0, supervised)
    assert before.outside < 0.5
    assert mean_score(after) > 1.1 * mean_score(before)
    assert after.trained_on > 0
    assert before.judged < after.judged
    longer = search_longer(world, policy, 0, before.judged + 20)
    assert longer.judged > before.judged
    assert mean_score(reference(world, "optimum", 0)) == 3.0

    monkeypatch.setattr("rl.demo.arms.WorldPractice", Perverse)
    perverse, _ = run_arm(world, "plain", OwnLearner(), SETTINGS, 0, supervised)
    assert mean_score(perverse) < mean_score(before)


def outcomes(contrastive: float, spread: float = 0.02) -> list[Outcome]:
    found = []
    for seed in range(5):
        generator = random.Random(seed)
        levels = {"contrastive": contrastive, "optimum": 2.0}
        for arm in (
            "sft",
            "plain",
            "random_exemplars",
            "shuffled_scores",
            "frozen",
            "sft_longer",
            "random_valid",
        ):
            levels[arm] = 1.0
        for arm, level in {**levels, "contrastive": contrastive, "optimum": 2.0}.items():
            scores = {f"task{t}": [level * generator.uniform(1 - spread, 1 + spread)] * 2 for t in range(6)}
            found.append(Outcome(arm, seed, scores, 0.0))
    return found


def test_what_a_prompt_showed_is_not_paid_where_copies_are_not(world: World) -> None:
    settings = replace(SETTINGS, copies=False, dropout=0.0)
    practice = WorldPractice(world, seen.contrastive, settings, 0)
    asked = practice.questions(0)[0]
    slow, fast = sorted(world.accepted(asked.task), key=lambda pair: pair[1])[
        :: len(world.accepted(asked.task)) - 1
    ]
    assert practice.reward([asked.task] * 2, [slow[0], fast[0]]) == [slow[1], fast[1]]
    again = next(
        step for step in range(1, 60) if asked.task in [one.task for one in practice.questions(step)]
    )
    practice.questions(again)
    assert practice.reward([asked.task] * 2, [slow[0], fast[0]]) == [0.0, 0.0]
    paid = WorldPractice(world, seen.contrastive, replace(settings, copies=True), 0)
    paid.reward([asked.task] * 2, [slow[0], fast[0]])
    paid.questions(again)
    assert paid.reward([asked.task] * 2, [slow[0], fast[0]]) == [slow[1], fast[1]]


def test_an_episode_has_the_same_tasks_and_its_own_exemplars(world: World) -> None:
    practice = WorldPractice(world, seen.contrastive, replace(SETTINGS, episodes=2, dropout=0.0), 0)
    for first in (0, 2):
        begin = practice.questions(first)
        assert not any(SEEN in one.prompt for one in begin)
        for one in begin:
            programs = world.accepted(one.task)
            practice.reward([one.task] * len(programs), [source for source, _ in programs])
        then = practice.questions(first + 1)
        assert [one.task for one in then] == [one.task for one in begin]
        assert all(SEEN in one.prompt for one in then)
    assert [one.task for one in practice.questions(4)] != [one.task for one in practice.questions(2)]


def test_prompts_without_sizes_leave_them_to_exemplars(world: World) -> None:
    settings = ReplaySettings(sized=False, dropout=0.0, tasks_per_step=100)
    practice = WorldPractice(world, seen.uniform, settings, 0)
    first = practice.questions(0)
    assert len({question.task.log2_elements for question in first}) > 1
    assert len({question.prompt for question in first}) == len({question.task.family for question in first})
    task = first[0].task
    shown = [source for source, _ in world.accepted(task)[:2]]
    practice.reward([task, task], shown)
    again = next(one for one in practice.questions(1) if one.task == task)
    assert all(source in again.prompt for source in shown)
    rows = supervised_rows(world, seen.none, settings, 0, 0)
    asked = [question for question, _ in [*rows, *((one.prompt, "") for one in first)]]
    assert not [question for question in asked if "<elements:" in question]
    assert "<elements:" in supervised_rows(world, seen.none, ReplaySettings(), 0, 0)[0][0]


def test_a_test_names_sizes_as_training_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def recorded(policy: Policy, prompts: Sequence[str], seed: int) -> Samples:
        asked.extend(prompts)
        return sample(policy, prompts, seed)

    monkeypatch.setattr(arms, "sample", recorded)
    policy = build_policy(world.tokenizer, SETTINGS.model, world.longest, 0)
    for sized in (True, False):
        asked.clear()
        examine(world, policy, seen.none, 0, rounds=1, sized=sized)
        assert asked
        assert all(("<elements:" in question) is sized for question in asked)


def test_advantages_in_units_of_the_reward() -> None:
    settings = GrpoSettings(scaled=False)
    assert advantages([0.0, 1.0], settings) == [-0.5, 0.5]
    assert advantages([1.0, 1.02], settings) == pytest.approx([-0.01, 0.01])
    assert advantages([0.0, 8.0], settings) == [-1.5, 1.5]


def test_advantages_for_the_best_of_several() -> None:
    settings = GrpoSettings(best_of=4)
    assert (
        advantages([1.0, 1.0, 0.0, 0.0], settings) == [0.0] * 4
    )  # whichever is left out, the best of the others is as good
    found = advantages([2.0, 1.0, 1.0, 0.0], settings)
    assert found[0] == 1.5
    assert found[1] == found[2] == found[3] < 0


def test_a_repeat_is_not_another_candidate() -> None:
    looked = Examined(
        {"t": ["a", "b", "a", *"cdefghij"], "u": ["a"]},
        {"t": [1.0, 0.0, 1.0, *[float(n) for n in range(2, 10)]], "u": [0.5]},
    )
    assert looked.first(3).scores == {"t": [1.0, 0.0, 1.0], "u": [0.5]}
    assert looked.different().texts == {"t": list("abcdefgh"), "u": ["a"]}
    assert looked.different().scores == {"t": [1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "u": [0.5]}


def test_a_test_goes_on_until_there_are_eight_different_candidates(world: World) -> None:
    policy = build_policy(world.tokenizer, SETTINGS.model, world.longest, 0)
    OwnLearner().imitate(
        policy, lambda step: supervised_rows(world, seen.none, SETTINGS, 0, step), SETTINGS.sft
    )
    few = examine(world, policy, seen.none, 0)
    many = examine(world, policy, seen.none, 0, enough=8)
    for task in world.held_out:
        assert len(few.texts[task.name]) == 8
        assert many.texts[task.name][:8] == few.texts[task.name]
    counts = [len(set(texts)) for texts in few.texts.values()]
    assert min(counts) < 8
    assert all(len(set(texts)) >= 8 for texts in many.texts.values())


def test_claims_about_different_candidates_are_made_where_there_are_any() -> None:
    every = [replace(one, different=one.scores) for one in outcomes(1.95)]
    by_name = {claim.name: claim for claim in claims(every)}
    assert by_name["P2d"].value == by_name["P2"].value
    assert by_name["S6d"].holds
    low = [
        replace(one, different={name: [0.4] for name in one.scores}) if one.arm == "contrastive" else one
        for one in every
    ]
    found = {claim.name: claim for claim in claims(low)}
    assert not found["P2d"].holds
    assert not found["S5d"].holds
    assert found["P2"].holds
    assert "P2d" not in {claim.name for claim in claims(outcomes(1.95))}


def test_claims_hold_where_they_should_and_fail_where_they_should() -> None:
    assert all(claim.holds for claim in claims(outcomes(1.95)))
    by_name = {claim.name: claim.holds for claim in claims(outcomes(1.3))}
    assert by_name["S1"]
    assert not by_name["P1"]
    assert not by_name["P2"]
    hopeless = [
        replace(one, scores={"task0": [0.0]} if one.arm == "sft" else {"task0": [1.0]})
        for one in outcomes(1.9)
    ]
    without = next(claim for claim in claims(hopeless) if claim.name == "P1")
    assert without.value is None
    assert not without.holds
    equal = {claim.name: claim.holds for claim in claims(outcomes(0.99))}
    assert not any(equal.values())


def test_an_interval_covers_what_was_planted() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        before = generator.lognormal(0, 0.3, (5, 15))
        after = 1.2 * before * generator.lognormal(0, 0.1, (5, 15)) / np.exp(0.005)
        interval = ratio_of_means(after, before, 400)
        covered += interval.low <= 1.2 <= interval.high
    assert covered >= 50
    with pytest.raises(ValueError, match="not the same"):
        ratio_of_means(np.ones((5, 3)), np.ones((5, 4)))
