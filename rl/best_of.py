"""What a sample is worth to whoever will take the best of several: the reward of a policy that is asked for k candidates and judged by one.

GRPO pays each sample as if it were the only one, so a policy ends up writing the one program that is good in the mean. Paid for what it adds to
k - 1 others of its own group, a sample that repeats the group's best gains nothing, and one that is best at last gains all that it is ahead by. The
mean over all choices of the others is exact, and centered it follows the gradient of the expected best of k (Walder and Karkhanis,
arXiv 2505.15201, with continuous rewards).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def gains_on_best(scores: Sequence[float | None], k: int) -> list[float | None]:
    """By how much each score raises the best of k - 1 others, in the mean over all choices of these others.

    Args:
        scores: of one group, in any unit; None for what could not be judged, which is nobody's other and stays None.
        k: candidates that will be asked for; 1 leaves scores as they are. A group with fewer scores than k is compared whole.

    Returns:
        Gains of at least 0, in the unit of the scores; the scores themselves where k, or what is known of the group, is 1.

    Raises:
        ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError(f"the best of {k} is nothing")
    known = [score for score in scores if score is not None]
    count = min(k, len(known)) - 1
    if count < 1:
        return list(scores)
    # Ways to choose the others so that the one at a place of their order is the highest of them: those below it fill up.
    ways = [comb(place, count - 1) for place in range(len(known) - 1)]
    every = comb(len(known) - 1, count)
    ordered = sorted(known)

    def gain(score: float) -> float:
        place = ordered.index(score)
        others = ordered[:place] + ordered[place + 1 :]
        return sum(way * max(0.0, score - other) for way, other in zip(ways, others, strict=True)) / every

    return [None if score is None else gain(score) for score in scores]
