"""TRL's trainers behind the same interface, where TRL is installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl.demo import seen
from rl.demo.arms import ReplaySettings, World, WorldPractice, run_arm
from rl.demo.learning import GrpoSettings, SftSettings
from rl.demo.model import ModelSize
from tests.rl.demo.planted import planted_table

pytest.importorskip("trl")

SETTINGS = ReplaySettings(
    model=ModelSize(layers=1, width=48, heads=4),
    sft=SftSettings(steps=60, batch=16, learning_rate=8e-3),
    grpo=GrpoSettings(steps=3, samples=4),
    tasks_per_step=3,
)


@pytest.mark.filterwarnings("ignore")
def test_trl_trains_the_same_arm(tmp_path: Path) -> None:
    from rl.demo.trl_learner import TrlLearner

    torch.set_num_threads(1)
    world = World(planted_table(("row_sum",)))
    supervised: dict[str, object] = {}
    outcome, policy = run_arm(world, "contrastive", TrlLearner(tmp_path), SETTINGS, 0, supervised)
    assert len(outcome.rewards) == SETTINGS.grpo.steps
    assert outcome.trained_on > 0
    weights = policy.model.state_dict()
    before = supervised[seen.contrastive.__name__]
    assert isinstance(before, dict)
    assert any(not torch.equal(weights[key].cpu(), before[key].cpu()) for key in weights)


@pytest.mark.filterwarnings("ignore")
def test_a_step_asks_for_its_own_tasks(tmp_path: Path) -> None:
    """A reward that was given for other tasks than the prompt's would teach nonsense."""
    from rl.demo.model import build_policy
    from rl.demo.trl_learner import TrlLearner

    world = World(planted_table(("row_sum", "softmax")))
    settings = replace(SETTINGS, tasks_per_step=2)
    rewarded: list[list[str]] = []

    class Watched(WorldPractice):
        def reward(self, tasks, completions):  # type: ignore[no-untyped-def]
            rewarded.append([task.name for task in tasks])
            return super().reward(tasks, completions)

    practice = Watched(world, seen.none, settings, 0)
    policy = build_policy(world.tokenizer, settings.model, world.longest, 0)
    TrlLearner(tmp_path).reinforce(policy, practice, settings.grpo, 0)
    expected = [
        [question.task.name for question in practice.questions(step) for _ in range(settings.grpo.samples)]
        for step in range(settings.grpo.steps)
    ]
    assert [sorted(names) for names in rewarded] == [sorted(names) for names in expected]
