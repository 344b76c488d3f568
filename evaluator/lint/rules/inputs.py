"""Inputs that no result depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.lint.findings import LintFinding
from evaluator.lint.probe import Probe, disturbed, same
from evaluator.oracle.numbers import is_inexact

_UNKNOWN, _MATTERS, _HARDLY, _IDLE = "unknown", "matters", "within the tolerance", "not in a bit"


def check(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """One finding per input tensor that may be anything."""
    for position, tensor in enumerate(probes[0].inputs):
        found = [_effect(probe, position) for probe in probes]
        if any(effect in (_UNKNOWN, _MATTERS) for effect in found):
            continue
        how = _HARDLY if _HARDLY in found else _IDLE
        amount = "not in a single bit" if how == _IDLE else "by no more than the tolerance"
        yield LintFinding(
            "input_unused",
            "error",
            f"input {position + 1} ({tensor.meta.dtype} of shape {list(tensor.meta.shape)} at {probes[0].where}) does "
            f"not matter: other values change the output {amount}",
            "use it or take it out of get_inputs(); if a model should see it, look for a dimension that is read as "
            "another one (batch_first) and for a part of the result that is dropped",
        )


def _effect(probe: Probe, position: int) -> str:
    """What other values of one input do, the others being as they were."""
    tensor = probe.inputs[position]
    case, first = probe.cases[0], probe.results[0]
    base = probe.contents(case)
    effects = []
    variants = [probe.contents(other)[position] for other in probe.cases[1:]]
    if is_inexact(tensor.meta.dtype) and not tensor.meta.dtype.startswith("complex"):
        variants.append(disturbed(base[position], tensor))
    for variant in variants:
        if np.array_equal(variant.view(np.uint8), base[position].view(np.uint8)):
            continue
        result = probe.call([variant if at == position else content for at, content in enumerate(base)])
        if result is None:
            return _MATTERS
        if not same(first, result):
            if not probe.accepts_all(case, result):
                return _MATTERS
            effects.append(_HARDLY)
        else:
            effects.append(_IDLE)
    if not effects:
        return _UNKNOWN
    return _HARDLY if _HARDLY in effects else _IDLE
