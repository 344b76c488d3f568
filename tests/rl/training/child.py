"""What a process of a run begins with: TRL is loaded by the fork server alone, not by the process of the tests."""

from __future__ import annotations

from typing import Any


def train(stages: Any, answers: Any, **options: Any) -> None:
    """See `tests.rl.training.planted.train`."""
    from tests.rl.training import planted

    planted.train(stages, answers, **options)


def answer(checkpoint: str, prompt: str, answers: Any) -> None:
    """Tell how a checkpoint, as the agent's policy, answers."""
    from agent.messages import Message
    from agent.providers.policy import LocalPolicy
    from agent.spec import ModelChoice

    policy = LocalPolicy(ModelChoice(checkpoint, provider="policy", origin="policy"))
    reply = policy.complete([Message("user", prompt)], max_tokens=60)
    answers.put((reply.text, reply.finish))
