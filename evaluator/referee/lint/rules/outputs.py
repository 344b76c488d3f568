"""Results in which most elements carry no information: constant along an axis, saturated, not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.description import LintFinding
from evaluator.oracle.arrays import Array
from evaluator.referee.lint.probe import Probe

#: A floating output is saturated if this share of its elements has one or two values.
_SATURATED, _FEWEST = 0.99, 64


def check_finite(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Outputs without a single number."""
    if all(values.size == 0 for probe in probes for result in probe.results for values in result):
        yield LintFinding(
            "empty_output",
            "error",
            f"its output has no elements ({_shape(probes[0], 0)} at {probes[0].where}), so there is nothing to compute",
            "look for a slice that keeps nothing ([:, :0]), or a size that is computed as 0, and return something with elements",
        )
        return
    for output, name, severity in _results(probes):
        if all(_never_finite(values) for values in _all(probes, output)):
            yield LintFinding(
                "not_finite",
                severity,
                f"{name} is NaN or infinite everywhere, and nothing can be compared with that",
                "keep values in range: smaller inputs, an eps under a root or in a quotient",
            )


def check_shapes(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Outputs whose shape depends on values: neither blocks of timed calls nor a dispatcher can know it in
    advance.
    """
    for probe in probes:
        shapes = [tuple(meta.shape for meta in one.metas) for one in probe.drawn]
        for other in shapes[1:]:
            if other == shapes[0]:
                continue
            number = next((i for i, (a, b) in enumerate(zip(shapes[0], other, strict=False), 1) if a != b), 1)
            yield LintFinding(
                "shape_by_values",
                "error",
                f"the shape of output {number} depends on values of the inputs (at {probe.where} it differs from content to content), so it "
                "cannot be judged",
                "return a mask, or results of a fixed size with their number, instead of torch.nonzero or a selection by a mask",
            )
            return


def check_state(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Weights and buffers that a call changes although its results do not depend on them."""
    names = [str(name)[:60] for name in probes[0].seen.get("changed_state", ())]
    if names:
        yield LintFinding(
            "changes_state",
            "error",
            f"forward() updates {', '.join(map(repr, names))}, which a candidate would not reproduce",
            "declare TRAINING = True (buffer values after a call are then compared like an output), or move the update out of forward()",
        )


def check(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Outputs that are constant along a dimension, or saturated."""
    for output, name, severity in _results(probes):
        axes = _constant_axes(probes, output)
        if axes:
            yield LintFinding(
                "constant_along_axis",
                severity,
                f"{name} is the same all along dimension {axes[0]} ({_shape(probes[0], output)} at {probes[0].where})",
                "let it depend on the values along that dimension, or return one slice: a dimension that was reduced and "
                "spread again, or a batch that is read as a sequence, looks like this",
            )
        elif all(_saturated(values) for values in _all(probes, output)):
            yield LintFinding(
                "saturated",
                "warning",
                f"over {_SATURATED:.0%} of {name} is one or two values: a clamp or a saturated function hides the work",
                "draw inputs for which the function is not saturated, or scale them down before it",
            )


def _results(probes: Sequence[Probe]) -> list[tuple[int, str, str]]:
    """The module's own results: index, name and severity if one is degenerate."""
    count = len(probes[0].results[0])
    results = [output for output in range(count) if all(probe.is_result(output) for probe in probes)]
    if len(results) == 1:
        return [(results[0], "the output", "error")]
    # A task with several results may well return one that is the same for all rows.
    return [(output, f"output {output + 1}", "warning") for output in results]


def _all(probes: Sequence[Probe], output: int) -> list[Array]:
    return [result[output] for probe in probes for result in probe.results]


def _never_finite(values: Array) -> bool:
    return values.dtype.kind in "fc" and values.size > 0 and not np.isfinite(values).any()


def _constant_axes(probes: Sequence[Probe], output: int) -> list[int]:
    """Dimensions, longer than one in every probe, along which every result is constant up to the tolerance."""
    dimensions = {values.ndim for values in _all(probes, output)}
    if len(dimensions) != 1:
        return []
    return [
        axis
        for axis in range(dimensions.pop())
        if all(_constant_along(probe, output, axis) for probe in probes)
    ]


def _constant_along(probe: Probe, output: int, axis: int) -> bool:
    for content, result in enumerate(probe.results):
        values = result[output]
        if values.size == 0 or values.shape[axis] < 2:
            return False
        first = np.broadcast_to(np.take(values, [0], axis=axis), values.shape)
        if not probe.accepts(probe.expected(content)[output], first):
            return False
    return True


def _saturated(values: Array) -> bool:
    if values.dtype.kind != "f" or values.size < _FEWEST:
        return False
    _, counts = np.unique(values, return_counts=True)
    return bool(np.sort(counts)[-2:].sum() >= _SATURATED * values.size)


def _shape(probe: Probe, output: int) -> str:
    return f"shape {list(probe.results[0][output].shape)}"
