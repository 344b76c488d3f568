"""Search settings of a job, a field of its spec: plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strategy:
    """Settings of the search that follows the first attempts.

    Attributes:
        rounds: maximum number of rounds; 0 stops after the first attempts and their one follow-up.
        beam: number of parent candidates per round, 1 to 4.
        branches: number of different changes requested for each parent.
        critic: whether a separate short request names one bottleneck and one change before the code request.
        plan: whether a separate request writes the change down step by step before the code request.
        patience: the search ends after this many rounds without a gain of 2 %.
        tune: whether to autotune the `TUNABLES` of accepted candidates.
        tune_variants: maximum number of settings to try.
        ablate: whether to revert the winner's changes one at a time and judge each result as a candidate.
        ablate_changes: maximum number of changes to revert.
        timings: total number of extra timings of candidates at further validation shapes before the final choice.
        seed: seed of all random draws; None draws one and stores it.

    Raises:
        ValueError: if a number is out of range.
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
