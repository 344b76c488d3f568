"""What a sample is worth to whoever will take the best of several: a way to pay a policy that is asked for k candidates of which one counts.

GRPO pays each sample as if it were the only one, which rewards writing whatever is good in the mean. Here it is paid for what it adds to k - 1
others of its own group, in the mean over all choices of these others: the more of the group is as good as a sample, the less it adds. As
they are, these gains follow the gradient of the expected best of k without bias (Walder and Karkhanis, arXiv 2505.15201, with continuous
rewards). Less the mean of a group of n, as GRPO compares them, they follow (n / k - 1) times the gradient of the best of k plus that of the
best of k - 1: so k should be well below n, and at k = n = 2 nothing is changed. Divided by a group's standard deviation they follow
neither, and a lead of a hundredth counts as much as one of 1.
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
