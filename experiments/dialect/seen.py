"""Programs measured so far at each task, and the two that a prompt shows of them.

Held in memory, unlike `rl.exemplars`: a replay is repeated from its seed rather than resumed. A draw is a function of its generator's
seed and of what has been added, nothing else.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

#: Width of a bucket of scores in the logarithm of the speedup, and temperature of the choice among buckets.
BUCKET_LOG = 0.15
TEMPERATURE = 0.3

Shown = list[tuple[str, float]]
#: From (source, speedup) pairs, in the order they were added, to what is shown.
Choice = Callable[[Sequence[tuple[str, float]], random.Random], Shown]


class Seen:
    """Accepted programs and their speedups, by task; each program once."""

    def __init__(self) -> None:
        self._by_task: dict[str, dict[str, float]] = defaultdict(dict)

    def add(self, task: str, source: str, speedup: float) -> None:
        """Remembers a program; failures, whose speedup is 0, are not shown to anybody."""
        if speedup > 0:
            self._by_task[task].setdefault(source, speedup)

    def of(self, task: str) -> list[tuple[str, float]]:
        """(source, speedup) in the order they were added."""
        return list(self._by_task[task].items())


def none(programs: Sequence[tuple[str, float]], generator: random.Random) -> Shown:
    """Shows nothing."""
    return []


def contrastive(programs: Sequence[tuple[str, float]], generator: random.Random) -> Shown:
    """Two programs from different buckets of scores, the better bucket more often, the worse program first.

    A bucket is drawn with probability proportional to exp(mean score / temperature), without replacement, then one
    of its programs uniformly (CUDA-L1, arXiv 2507.14111, section 1.4 of the notes; its temperature is not published). With fewer
    than two buckets nothing is shown, since nothing can be compared.
    """
    buckets: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for source, speedup in programs:
        buckets[math.floor(math.log(speedup) / BUCKET_LOG)].append((source, speedup))
    if len(buckets) < 2:
        return []
    left = list(buckets.values())
    shown = []
    for _ in range(2):
        means = [sum(speedup for _, speedup in bucket) / len(bucket) for bucket in left]
        weights = [math.exp((mean - max(means)) / TEMPERATURE) for mean in means]
        bucket = left.pop(generator.choices(range(len(left)), weights)[0])
        shown.append(generator.choice(bucket))
    return sorted(shown, key=lambda pair: pair[1])


def uniform(programs: Sequence[tuple[str, float]], generator: random.Random) -> Shown:
    """Any two programs, in any order."""
    return generator.sample(list(programs), 2) if len(programs) >= 2 else []


def shuffled(programs: Sequence[tuple[str, float]], generator: random.Random) -> Shown:
    """Two programs chosen as in :func:`contrastive`, with scores of the task's programs that are dealt out anew."""
    chosen = contrastive(programs, generator)
    scores = generator.sample([speedup for _, speedup in programs], len(chosen)) if chosen else []
    return [(source, score) for (source, _), score in zip(chosen, scores, strict=True)]
