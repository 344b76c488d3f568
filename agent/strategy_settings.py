"""How a job searches, as a field of its spec: plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strategy:
    """Settings of the search that follows the first attempts.

    Attributes:
        rounds: at most so many rounds; 0 leaves it at the first attempts and their one follow-up.
        beam: how many candidates a round goes on from, 1 to 4.
        branches: how many different changes are asked for from each of them.
        critic: a separate short request names one bottleneck and one change before any code is asked for.
        plan: a separate request writes the change down step by step before any code is asked for.
        patience: rounds without a gain of 2 % after which the search ends.
        tune: whether `TUNABLES` of accepted candidates are tuned by machine.
        tune_variants: how many settings are tried at most.
        ablate: whether the changes of the winner are undone one at a time, each a candidate that is judged.
        ablate_changes: how many of them at most.
        timings: how often a candidate is timed at a further validation shape, all together, before the choice.
        seed: where random draws begin; None draws one and stores it.

    Raises:
        ValueError: if a number is out of its range.
    """

    rounds: int = 0
    beam: int = 2
    branches: int = 1
    critic: bool = True
    plan: bool = False
    patience: int = 2
    tune: bool = True
    tune_variants: int = 128
    ablate: bool = False
    ablate_changes: int = 4
    timings: int = 24
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "rounds": (0, 100),
            "beam": (1, 4),
            "branches": (1, 4),
            "patience": (1, 100),
            "tune_variants": (1, 1024),
            "ablate_changes": (1, 16),
            "timings": (0, 4096),
        }
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"strategy.{name} is {getattr(self, name)}; it goes from {least} to {most}")
