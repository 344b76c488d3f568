"""Prompts of the demonstration, in words that are tokens: the task, programs seen with their scores, then the answer.

A prompt shows the family and the size, never the shape, see :mod:`experiments.dialect.tasks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.dialect.tasks import FAMILIES, Task

SCORE_BUCKETS = 24
_LOWEST, _HIGHEST = 0.1, 8.0
_SIZES = range(10, 31)

SEEN, ANSWER, FAILED = "<seen>", "<answer>", "<score:failed>"
PROMPT_WORDS = (
    *(f"<device:{device}>" for device in ("cpu", "cuda")),
    *(f"<family:{family}>" for family in FAMILIES),
    *(f"<elements:{size}>" for size in _SIZES),
    SEEN,
    ANSWER,
    FAILED,
    *(f"<score:{bucket}>" for bucket in range(SCORE_BUCKETS)),
)


def score_bucket(speedup: float) -> int:
    """Which of 24 steps, equal in the logarithm from 0.1 to 8, a positive speedup is in; ends take what lies beyond."""
    share = math.log(speedup / _LOWEST) / math.log(_HIGHEST / _LOWEST)
    return min(max(int(share * SCORE_BUCKETS), 0), SCORE_BUCKETS - 1)


def score_word(speedup: float) -> str:
    """The word for a score; 0 is a failure."""
    return f"<score:{score_bucket(speedup)}>" if speedup > 0 else FAILED


def prompt(task: Task, exemplars: Sequence[tuple[str, float]] = (), *, sized: bool = True) -> str:
    """What the model is given: the task, then exemplars (source, speedup), then the word for the answer.

    Args:
        task: to write a program for.
        exemplars: programs that were measured at the task.
        sized: whether the size is named; else exemplars alone tell anything of it.
    """
    seen = "".join(f"{SEEN}{score_word(speedup)}{source}" for source, speedup in exemplars)
    size = f"<elements:{task.log2_elements}>" if sized else ""
    return f"<device:{task.device}><family:{task.family}>{size}{seen}{ANSWER}"
