"""Answers that need no computation: zeros, one constant, or the first output again, if the tolerance accepts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.description import LintFinding
from evaluator.oracle.arrays import Array
from evaluator.referee.lint.probe import Probe

#: If outputs of one shape differ by less than this share of their size, a tolerance of RL projects (1e-2) is too
#: wide.
HARDLY = 1e-3


def check(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Finds answers without computation that would be accepted."""
    if all(not any(_varies(probe)) for probe in probes):
        yield LintFinding(
            "inputs_never_vary",
            "error",
            "get_inputs() gives the same tensors each time, so an answer can be kept from the first call",
            "draw the inputs at random, without a seed of the task's own",
        )
        return
    if all(_zeros_pass(probe) for probe in probes):
        yield LintFinding(
            "zeros_pass",
            "error",
            f"an output of zeros is right within the tolerance (at {probes[0].where})",
            "look for what cancels or clips everything (a difference from its own mean, a clamp, a ReLU after a large "
            "subtraction) and remove it, or draw inputs for which it does not",
        )
    elif all(_constant_passes(probe) for probe in probes):
        yield LintFinding(
            "constant_passes",
            "error",
            f"one constant is right for every element and every input (at {probes[0].where})",
            "look for a normalization over a single element or a reduction of a normalized value, and let the output "
            "depend on the inputs",
        )
    elif all(_replay_passes(probe) for probe in probes):
        yield LintFinding(
            "replay_passes",
            "error",
            f"the output for one input is also right for others (at {probes[0].where})",
            "let the output depend on the inputs by more than the tolerance: weights of larger spread (`def redraw(model, generator)` in the "
            "file), fewer reductions in a row, inputs of larger spread",
        )
    elif all(variation(probe) < HARDLY for probe in probes):
        yield LintFinding(
            "hardly_varies",
            "warning",
            f"outputs for different inputs differ by only {max(map(variation, probes)):.1g} of their size",
            "draw inputs of larger spread, or return the result before it is averaged",
        )
    yield from _single_outputs(probes)


def _varies(probe: Probe) -> list[bool]:
    """For each input tensor, whether its contents differ between draws."""
    contents = [probe.contents(number) for number in range(len(probe.drawn))]
    return [
        any(not np.array_equal(_bits(row[position]), _bits(contents[0][position])) for row in contents[1:])
        for position in range(len(probe.inputs))
    ]


def _bits(values: Array) -> Array:
    return values.view(np.uint8)


def _zeros_pass(probe: Probe) -> bool:
    """Whether zeros are accepted for every content."""
    return all(
        probe.accepts_all(content, [np.zeros_like(values) for values in result])
        for content, result in enumerate(probe.results)
    )


def _constant_passes(probe: Probe) -> bool:
    return all(
        any(size > 1 for size in values.shape) and _one_constant(probe, output)
        for output, values in enumerate(probe.results[0])
    )


def _one_constant(probe: Probe, output: int) -> bool:
    value = _usual(probe.results[0][output])
    return all(
        probe.accepts(probe.expected(content)[output], np.full_like(result[output], value))
        for content, result in enumerate(probe.results)
    )


def _usual(values: Array) -> object:
    """The median of floating values, the most frequent of others."""
    if values.size == 0:
        return 0
    if values.dtype.kind in "fc":
        middle = np.sort(values.reshape(-1))[values.size // 2]
        return middle if np.isfinite(middle) else 0.0
    found, counts = np.unique(values, return_counts=True)
    return found[counts.argmax()]


def _replay_passes(probe: Probe) -> bool:
    return all(probe.accepts_all(content, probe.results[-1]) for content in range(len(probe.results) - 1))


def _single_outputs(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """One of several results may be trivial while others are not. That marks the task."""
    count = len(probes[0].results[0])
    for output in range(count):
        if count > 1 and all(probe.is_result(output) and _is_zero(probe, output) for probe in probes):
            yield LintFinding(
                "zeros_pass",
                "warning",
                f"output {output + 1} may be zeros within the tolerance",
                "return only what has to be computed",
            )


def _is_zero(probe: Probe, output: int) -> bool:
    return not _zeros_pass(probe) and all(
        probe.accepts(probe.expected(content)[output], np.zeros_like(result[output]))
        for content, result in enumerate(probe.results)
    )


def variation(probe: Probe) -> float:
    """How much floating outputs differ between contents, relative to their root mean square; 1 if there are none."""
    largest, found = 0.0, False
    for output, first in enumerate(probe.results[0]):
        if first.dtype.kind not in "fc" or not first.size or not probe.is_result(output):
            return 1.0
        for result in probe.results[1:]:
            other = result[output]
            finite = np.isfinite(first) & np.isfinite(other)
            size = float(np.sqrt(np.mean(np.abs(np.where(finite, first, 0.0)) ** 2)))
            moved = float(np.sqrt(np.mean(np.abs(np.where(finite, other - first, 0.0)) ** 2)))
            largest, found = max(largest, moved / size if size else 1.0), True
    return largest if found else 1.0
