"""Chooses what a row's prompt shows besides the task: earlier files with their scores, the task's space, and times to beat.

A model learns here to read scores before it is rewarded for it, and to work without what the later stages leave out: their prompts
give neither space nor times, and a small model that always saw both writes no program for such a prompt.

The files shown are a function of the rows and a seed: two files of the same task and machine that were slower than the row's own and
differ from each other. A quarter of the rows show none (rl.md section 4.4 of the study: the middle ones of several measured programs,
the best as the answer).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence

from rl.rows import Row, ShownRow

_SHOWN = 2
#: Share of timed rows that show no files, which teaches the model to work without them.
_WITHOUT = 0.25
#: Log speedups closer than this are equal within timing noise.
_APART = 0.05
#: Share of rows whose prompt describes the task only by its file, like the prompts of the other stages.
_FILE_ALONE = 0.5


def as_asked(rows: Sequence[Row], seed: int) -> list[Row]:
    """The rows in order; a seeded draw removes space and times from half of them."""
    return [
        row.model_copy(update={"dims": "", "shapes": ""})
        if random.Random(f"kernelwright.asked/{seed}/{row.id}").random() < _FILE_ALONE  # noqa: S311
        else row
        for row in rows
    ]


def with_shown(rows: Sequence[Row], seed: int) -> list[Row]:
    """The rows in order, each with the files that its prompt shows."""
    alike: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.speedup is not None:
            alike[row.source, row.machine].append(row)
    return [_shown(row, alike.get((row.source, row.machine), []), seed) for row in rows]


def _shown(row: Row, others: Sequence[Row], seed: int) -> Row:
    if row.speedup is None:
        return row
    generator = random.Random(f"kernelwright.shown/{seed}/{row.id}")  # noqa: S311
    if generator.random() < _WITHOUT:
        return row
    own = math.log(row.speedup)
    slower = [one for one in others if one.speedup is not None and math.log(one.speedup) < own - _APART]
    generator.shuffle(slower)
    chosen: list[ShownRow] = []
    for one in slower:
        assert one.speedup is not None
        speedup = one.speedup
        if all(abs(math.log(speedup / known.speedup)) > _APART for known in chosen):
            chosen.append(ShownRow(source=one.candidate, speedup=speedup))
        if len(chosen) == _SHOWN:
            return row.model_copy(update={"shown": tuple(sorted(chosen, key=lambda each: each.speedup))})
    return row
