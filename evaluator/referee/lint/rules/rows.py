"""Rows of a batch that influence each other.

Only the author knows whether they should: a batch norm or a contrastive loss mixes them on purpose. So this marks
a task only if one of two things makes it likely to be a mistake: an attention or recurrent module made without
``batch_first``, or a first dimension that DIMS calls a batch, in a module in eval mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.description import LintFinding
from evaluator.oracle.numbers import is_inexact
from evaluator.referee.lint.probe import Probe, first_row_changed

_BATCH = ("batch", "batch_size", "bs", "b")


def check(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Finds rows that influence each other, probably by mistake."""
    if probes[0].shape.inputs.call.backward:
        return
    suspects = [name for name in probes[0].seen.get("sequence_first", []) if isinstance(name, str)]
    named = not probes[0].session.training and _named_batch(probes)
    if not (suspects or named) or not all(_mixed(probe) for probe in probes):
        return
    if suspects:
        yield LintFinding(
            "batch_mixed",
            "warning",
            f"rows of the first dimension influence each other, and {suspects[0][:80]} uses that dimension as the sequence",
            "pass batch_first=True if the first dimension is the batch; otherwise put the sequence first on purpose and "
            "say so in the docstring",
        )
    else:
        yield LintFinding(
            "batch_mixed",
            "warning",
            "rows of the dimension that DIMS calls a batch influence each other",
            "check along which dimension the module normalizes, attends or scans; if rows are meant to meet, give the "
            "dimension another name",
        )


def _mixed(probe: Probe) -> bool:
    """Whether the first row of all inputs changes other rows of the result."""
    base = probe.contents(0)
    first = probe.results[0][0]
    tensors = probe.inputs
    if not tensors or not tensors[0].meta.shape:
        return False
    rows = tensors[0].meta.shape[0]
    if rows < 2 or first.ndim < 2 or first.shape[0] != rows:
        return False
    for other in range(1, len(probe.drawn)):
        contents = [
            first_row_changed(content, tensor, replacement)
            if is_inexact(tensor.meta.dtype)
            and len(tensor.meta.shape) > 1
            and tensor.meta.shape[0] == rows
            # All rows of an expanded mask are the same memory.
            and tensor.meta.strides[0]
            else content
            for content, replacement, tensor in zip(
                base, probe.contents(other), probe.shape.inputs.tensors, strict=True
            )
        ]
        # Of a few dozen elements, two contents may have the same first row.
        if not all(map(np.array_equal, contents, base)):
            break
    result = probe.call(contents)
    return result is not None and not probe.accepts(
        probe.expected(0)[0], np.concatenate([first[:1], result[0][1:]])
    )


def _named_batch(probes: Sequence[Probe]) -> bool:
    return any(
        name.lower() in _BATCH
        and all(probe.inputs[0].meta.shape[:1] == (probe.dims[name],) for probe in probes)
        for name in probes[0].dims
    )
