"""What a row says: shapes and times, earlier files with their speedups, and an analysis and a design that state only known facts.

No teacher model writes the texts. The analysis lists the module's operations, from its graph or its source; the design names what the
file's kernels compute. They teach a model the form of an answer and to start from the module's operations.

A model learns here to read speedups before it is rewarded for it, and to work without what the later stages leave out: their prompts
give neither space nor times, and a small model that always saw both writes no program for such a prompt. The files shown are a
function of the rows and a seed: two files of the same task and machine that were slower than the row's own and differ from each
other. A quarter of the rows show none.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Sequence

from agent.portfolio.clusters import visible_rows
from agent.prompts.sizes import listed, shape_words
from evaluator.verdict import Verdict
from rl.rows import Row, ShownRow

#: Inductor's kernel names.
_KERNEL = re.compile(r"^(?:cpp|triton_[a-z]+)_fused_(\w{1,300}?)_\d+ = async_compile", re.MULTILINE)
_MOST_SHAPES = 12
_SHOWN = 2
#: Share of timed rows that show no files, which teaches the model to work without them.
_WITHOUT = 0.25
#: Log speedups closer than this are equal within timing noise.
_APART = 0.05
#: Share of rows whose prompt describes the task only by its file, like the prompts of the other stages.
_FILE_ALONE = 0.5


def shapes_text(verdict: Verdict) -> str:
    """List the visible shapes of a verdict, one per line, with the best baseline's time."""
    lines = []
    for row in visible_rows(verdict)[:_MOST_SHAPES]:
        time = f": {row.baseline_us:.1f} us ({row.best_baseline})" if row.baseline_us else ""
        lines.append(shape_words(row.dims) + time)
    return listed(lines)


def analysis_text(operations: Sequence[str]) -> str:
    """Describe the cost of a module that runs these operations in this order."""
    if not operations:
        return ""
    words = ", ".join(name.replace("_", " ") for name in operations)
    if len(operations) == 1:
        return f"The module is {words}. What counts is how often its data passes through memory."
    return (
        f"The module does {len(operations)} operations: {words}. Run one by one, each reads its operands from memory and writes its "
        "result back."
    )


def design_text(candidate: str) -> str:
    """Describe an Inductor file's kernels by their names; "" for other files."""
    kernels = list(dict.fromkeys(match[1].replace("_", " ") for match in _KERNEL.finditer(candidate)))
    if not kernels:
        return ""
    listed = "; ".join(kernels)
    if len(kernels) == 1:
        return f"One kernel computes: {listed}. No intermediate result becomes a tensor. Where it does not apply, the reference runs."
    return f"{len(kernels)} kernels compute, in this order: {listed}. Where they do not apply, the reference runs."


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
