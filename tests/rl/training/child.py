"""What a process of a run begins with: TRL is loaded by the fork server alone, not by the process of the tests."""

from __future__ import annotations

from typing import Any


def train(stages: Any, answers: Any, **options: Any) -> None:
    """See `tests.rl.training.planted.train`."""
    from tests.rl.training import planted

    planted.train(stages, answers, **options)
