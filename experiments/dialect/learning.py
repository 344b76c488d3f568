"""What a learner is, so that trainers can be exchanged: it is given a policy and something to practice on.

A learner's part is sampling and gradients alone. Which prompts are asked and what a completion is worth is the practice's, the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.dialect.model import Policy
from experiments.dialect.tasks import Task
from rl.best_of import gains_on_best


@dataclass(frozen=True)
class Question:
    """A task and the prompt that asks for it."""

    task: Task
    prompt: str


class Practice(Protocol):
    """What is asked and paid."""

    def questions(self, step: int) -> list[Question]:
        """The prompts of a step. Has no effect, so that it may be asked twice: a function of the step and of what was rewarded before."""

    def reward(self, tasks: Sequence[Task], completions: Sequence[str]) -> list[float | None]:
        """What each completion is worth; None where our own machinery failed, which then counts for nothing."""


@dataclass(frozen=True)
class GrpoSettings:
    """Of reinforcement.

    Attributes:
        steps: of the optimizer; one batch of samples each.
        samples: completions per question, a group.
        learning_rate: of AdamW.
        entropy: weight of the mean entropy per token, without which a small model soon writes one program only.
        entropy_target: nats per token above which entropy is not paid: where all samples fail there is no other
            gradient, and it would take the policy to noise.
        clip: bound of a sample's advantage, in the unit that advantages have.
        scaled: whether advantages are in standard deviations of their group; else in units of the reward, so that a group
            whose rewards hardly differ, or differ by noise alone, moves little.
        best_of: candidates of which the best will count; each sample is paid what it adds to so many less one (`rl.best_of`).
    """

    steps: int = 100
    samples: int = 8
    learning_rate: float = 5e-4
    entropy: float = 0.03
    entropy_target: float = 0.2
    clip: float = 1.5
    scaled: bool = True
    best_of: int = 1


@dataclass(frozen=True)
class SftSettings:
    """Of supervised training."""

    steps: int = 400
    batch: int = 32
    learning_rate: float = 2e-3


@dataclass(frozen=True)
class StepRecord:
    """Mean reward and entropy (nats per token; None where the trainer does not say) of a step's samples."""

    step: int
    reward: float
    entropy: float | None


class Learner(Protocol):
    """Trains a policy in place."""

    def imitate(
        self, policy: Policy, rows: Callable[[int], list[tuple[str, str]]], settings: SftSettings
    ) -> list[float]:
        """Supervised: ``rows(step)`` are the (prompt, program) pairs of a step; only programs are learned. Losses by step."""

    def reinforce(
        self, policy: Policy, practice: Practice, settings: GrpoSettings, seed: int
    ) -> list[StepRecord]:
        """GRPO on what the practice pays."""


def advantages(rewards: Sequence[float | None], settings: GrpoSettings) -> list[float]:
    """(r - mean) / std within a group, or r - mean, clipped; 0 for None, which is no part of mean and std either.

    With ``best_of`` r is what a sample adds to others. All are 0 where the group's rewards are equal: nothing is to be learned from them.
    """
    rewards = gains_on_best(rewards, settings.best_of)
    clip = settings.clip
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [0.0] * len(rewards)
    mean = sum(known) / len(known)
    spread = (sum((reward - mean) ** 2 for reward in known) / len(known)) ** 0.5
    if spread < 1e-9:
        return [0.0] * len(rewards)
    unit = spread if settings.scaled else 1.0
    return [0.0 if reward is None else max(-clip, min(clip, (reward - mean) / unit)) for reward in rewards]
