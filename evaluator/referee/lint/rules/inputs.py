"""Inputs that no result depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.content.pools import TensorInput
from evaluator.description import LintFinding
from evaluator.oracle.numbers import is_inexact
from evaluator.referee.lint.probe import Probe, disturbed, same

_UNKNOWN, _MATTERS, _HARDLY, _IDLE = "unknown", "matters", "within the tolerance", "not in a bit"


#: With more inputs than this (lists of gradients), only a few are tested.
_MOST = 12


def check(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """One finding per input tensor whose values do not matter."""
    count = min(len(probe.inputs) for probe in probes)
    for position in range(0, count, -(-count // _MOST) or 1):
        tensor = probes[0].inputs[position]
        found: list[str] = []
        for probe in probes:
            found.append(_effect(probe, position))
            if found[-1] in (_UNKNOWN, _MATTERS):
                break
        else:
            yield _finding(position, tensor, probes[0].where, found)


def remarks(probe: Probe) -> list[str]:
    """Notes on how contents are drawn, if not from all numbers: not a fault, but useful to know."""
    told = []
    for number, tensor in enumerate(probe.inputs, 1):
        if tensor.structure.words:
            told.append(f"input {number} ({tensor.structure.words}): every content keeps that")
        if tensor.may_be_negative:
            told.append(
                f"input {number} is never negative as get_inputs() draws it, but is tested with both signs anyway; if it never can be negative, "
                'say so with DOMAIN = {"its name in forward": "non_negative"}'
            )
    return told


def _finding(position: int, tensor: TensorInput, where: str, found: list[str]) -> LintFinding:
    amount = "by no more than the tolerance" if _HARDLY in found else "not in a single bit"
    return LintFinding(
        "input_unused",
        "error",
        f"input {position + 1} ({tensor.meta.dtype} of shape {list(tensor.meta.shape)} at {where}) does not matter: "
        f"other values change the output {amount}",
        "use it or remove it from get_inputs(); if a model should see it, look for a dimension that is read as another "
        "one (batch_first) and for a part of the result that is dropped",
    )


def _effect(probe: Probe, position: int) -> str:
    """The effect of other values of one input, with the others unchanged."""
    tensor = probe.inputs[position]
    first, base = probe.results[0], probe.contents(0)
    effects = []
    variants = [probe.contents(other)[position] for other in range(1, len(probe.drawn))]
    if is_inexact(tensor.meta.dtype) and not tensor.meta.dtype.startswith("complex"):
        variants.append(disturbed(base[position], tensor))
    for variant in variants:
        if np.array_equal(variant.view(np.uint8), base[position].view(np.uint8)):
            continue
        result = probe.call([variant if at == position else content for at, content in enumerate(base)])
        if result is None:
            return _MATTERS
        if not same(first, result):
            if not probe.accepts_all(0, result):
                return _MATTERS
            effects.append(_HARDLY)
        else:
            effects.append(_IDLE)
    if not effects:
        return _UNKNOWN
    return _HARDLY if _HARDLY in effects else _IDLE
