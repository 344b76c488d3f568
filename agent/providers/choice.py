"""Which of several models is asked next: the one with the greatest expected improvement per US dollar in this job.

Each model is tried once first, in the given order. From then on a model's score is its mean improvement (natural logarithm
of the best accepted speedup of an attempt, nothing for an attempt that was rejected or not faster) over its mean price per
attempt. Both means begin with one imaginary attempt, worth `PRIOR_GAIN` at the average price of all attempts, so that a
model which was unlucky once is not out, and one that is free does not win by dividing by zero. Attempts under way count as
attempts without a gain, which spreads simultaneous requests. Ties go to the model that was asked less, then to the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_GAIN = 0.05
LEAST_USD = 1e-4
"""What an attempt is taken to cost at the least: a model on one's own machine is cheap, not free."""


@dataclass
class Standing:
    """What is known of one model in this job.

    Attributes:
        attempts: attempts that have begun.
        limit: attempts that it may have.
        gain: sum over finished attempts of the logarithm of the best speedup above 1.
        usd: what all its attempts have cost.
        refused: asking again is no use (a wrong key).
    """

    limit: int
    attempts: int = 0
    gain: float = 0.0
    usd: float = 0.0
    refused: bool = False

    @property
    def open(self) -> bool:
        """Whether it may be asked once more."""
        return not self.refused and self.attempts < self.limit

    def finished(self, speedup: float | None) -> None:
        """An attempt is over; `speedup` is that of its best accepted candidate, None without one."""
        if speedup is not None and speedup > 1.0:
            self.gain += math.log(speedup)


def choose(standings: Sequence[Standing]) -> int | None:
    """Index of the model to ask next, None when none may be asked."""
    candidates = [index for index, standing in enumerate(standings) if standing.open]
    if not candidates:
        return None
    untried = [index for index in candidates if standings[index].attempts == 0]
    if untried:
        return untried[0]
    attempts = sum(standing.attempts for standing in standings)
    average_usd = max(sum(standing.usd for standing in standings) / attempts, LEAST_USD)
    return max(
        candidates,
        key=lambda index: (_score(standings[index], average_usd), -standings[index].attempts, -index),
    )


def _score(standing: Standing, average_usd: float) -> float:
    count = standing.attempts + 1
    gain = (standing.gain + PRIOR_GAIN) / count
    usd = (max(standing.usd, standing.attempts * LEAST_USD) + average_usd) / count
    return gain / usd
