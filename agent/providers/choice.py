"""Chooses which model to ask next: the one with the greatest expected improvement per US dollar in this job.

Each model is tried once, in the given order. After that, a model's score is its mean gain (natural logarithm of the best
accepted speedup of an attempt; 0 if the attempt was rejected or not faster) divided by its mean cost per attempt. Both
means include one imaginary attempt, with gain `PRIOR_GAIN` at the average cost of all attempts. It keeps a model in the
running after one bad attempt and prevents division by zero for a free model. Attempts in flight count as zero gain, which
spreads simultaneous requests. Ties go to the model with fewer attempts, then to the earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_GAIN = 0.05
LEAST_USD = 1e-4
"""Minimum cost assumed per attempt: a local model is cheap, not free."""


@dataclass
class Standing:
    """One model's statistics in this job.

    Attributes:
        attempts: attempts begun.
        limit: maximum number of attempts.
        gain: sum over finished attempts of the natural logarithm of the best speedup above 1.
        usd: total cost of its attempts.
        refused: whether retrying is pointless (a wrong key).
    """

    limit: int
    attempts: int = 0
    gain: float = 0.0
    usd: float = 0.0
    refused: bool = False

    @property
    def open(self) -> bool:
        """Whether the model may be asked again."""
        return not self.refused and self.attempts < self.limit

    def finished(self, speedup: float | None) -> None:
        """Record a finished attempt; `speedup` is that of its best accepted candidate, None if there is none."""
        if speedup is not None and speedup > 1.0:
            self.gain += math.log(speedup)


def choose(standings: Sequence[Standing]) -> int:
    """Index of the model to ask next; -1 if none may be asked."""
    candidates = [index for index, standing in enumerate(standings) if standing.open]
    if not candidates:
        return -1
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
