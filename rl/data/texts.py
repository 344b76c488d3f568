"""Texts of a row: shapes and times for the prompt, and an analysis and a design that state only known facts.

No teacher model writes them. The analysis lists the module's operations, from its graph or its source; the design names what the
file's kernels compute. They teach a model the form of an answer and to start from the module's operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.portfolio.clusters import visible_rows
from agent.prompts.sizes import listed, shape_words
from evaluator.verdict import Verdict

#: Inductor's kernel names.
_KERNEL = re.compile(r"^(?:cpp|triton_[a-z]+)_fused_(\w{1,300}?)_\d+ = async_compile", re.MULTILINE)
_MOST_SHAPES = 12


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
