"""Best-of-k rewards: what a sample adds if the policy is asked for k candidates and only the best one counts.

GRPO rewards each sample as if it were the only one, which favors answers that are good on average. Here the reward is what a sample
adds to k - 1 others of its group, averaged over all choices of the others: the more of the group is as good, the less a sample adds.
Unnormalized, these gains are an unbiased estimate of the gradient of the expected best of k (Walder and Karkhanis, arXiv 2505.15201,
with continuous rewards). With the mean of a group of n subtracted, as in GRPO, they follow (n / k - 1) times the gradient of the best
of k plus the gradient of the best of k - 1: k should be well below n, and k = n = 2 changes nothing. Divided by the group's standard
deviation they follow neither, and a lead of 0.01 counts as much as a lead of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def gains_on_best(scores: Sequence[float | None], k: int) -> list[float | None]:
    """The amount by which each score raises the best of k - 1 others, averaged over all choices of the others.

    Args:
        scores: scores of one group, in any unit; None for samples without a verdict, which are ignored and stay None.
        k: number of candidates that will be requested; 1 leaves scores unchanged. A group with fewer than k scores is used whole.

    Returns:
        Gains of at least 0, in the unit of the scores; the scores themselves if k or the number of known scores is 1.

    Raises:
        ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError(f"the best of {k} is nothing")
    known = [score for score in scores if score is not None]
    count = min(k, len(known)) - 1
    if count < 1:
        return list(scores)
    # For each position in the sorted others: the number of choices in which that one is the highest.
    ways = [comb(place, count - 1) for place in range(len(known) - 1)]
    every = comb(len(known) - 1, count)
    ordered = sorted(known)

    def gain(score: float) -> float:
        place = ordered.index(score)
        others = ordered[:place] + ordered[place + 1 :]
        return sum(way * max(0.0, score - other) for way, other in zip(ways, others, strict=True)) / every

    return [None if score is None else gain(score) for score in scores]
