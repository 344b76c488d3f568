"""Programs measured so far at each task, and the two that a prompt shows of them.

Held in memory, unlike `rl.exemplars`: a replay is repeated from its seed rather than resumed. A draw is a function of its generator's
seed and of what has been added, nothing else.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

from agent.strategy.exemplars import apart

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

    See `agent.strategy.exemplars`. With fewer than two buckets nothing is shown, since nothing can be compared.
    """
    places = apart([speedup for _, speedup in programs], generator)
    return sorted((programs[place] for place in places), key=lambda pair: pair[1]) if len(places) > 1 else []


def uniform(programs: Sequence[tuple[str, float]], generator: random.Random) -> Shown:
    """Any two programs, in any order."""
    return generator.sample(list(programs), 2) if len(programs) >= 2 else []


def shuffled(programs: Sequence[tuple[str, float]], generator: random.Random) -> Shown:
    """Two programs chosen as in :func:`contrastive`, with scores of the task's programs that are dealt out anew."""
    chosen = contrastive(programs, generator)
    scores = generator.sample([speedup for _, speedup in programs], len(chosen)) if chosen else []
    return [(source, score) for (source, _), score in zip(chosen, scores, strict=True)]
