"""Parts of a module without effect, and operands that were broadcast along a dimension, perhaps by mistake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.description import LintFinding
from evaluator.oracle.numbers import is_inexact
from evaluator.referee.lint.probe import Probe
from evaluator.referee.sides.shape_inputs import StateEntry

_SHOWN = 3


def check(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Findings from the report of the reference's process. It only describes, so its form is checked."""
    weights = _everywhere(probes, "idle_state")
    if weights:
        yield LintFinding(
            "weight_unused",
            "warning",
            f"{_listed(weights, 'weight')} may change without a bit of the output changing",
            "use them or remove them: a branch that never runs, is multiplied by zero or is dropped looks like this",
        )
    steps = _everywhere(probes, "idle_steps")
    if steps:
        yield LintFinding(
            "dead_branch",
            "warning",
            f"the result of {_listed(steps, 'operation')} may change without a bit of the output changing",
            "remove the computation, or let its result reach the output: a candidate that skips it wins without a better kernel",
        )
    constant = [name for name in _constant_buffers(probes[0]) if name in _constant_buffers(probes[-1])]
    if constant:
        yield LintFinding(
            "constant_buffer",
            "warning",
            f"{_listed(constant, 'buffer')} has one value everywhere and never changes, so a candidate that omits it or hard-codes that value is right",
            "make it a parameter, which is redrawn, if other values may be loaded; otherwise make it a number in the source",
        )
    yield from check_broadcast(probes)


def untested(probe: Probe) -> list[str]:
    """A note on what there was no time for: not a fault, but useful to know."""
    count = probe.seen.get("untested")
    if not isinstance(count, int) or count < 1:
        return []
    return [
        f"{count} weights and operations of it were not tested for an effect on the output: each takes a call"
    ]


def check_broadcast(probes: Sequence[Probe]) -> Iterator[LintFinding]:
    """Operands that fit only because two sizes are equal."""
    spread = _spread(probes[0])
    if spread and all(_spread(probe) for probe in probes[1:]):
        operation, vector, other, shapes = spread
        yield LintFinding(
            "accidental_broadcast",
            "warning",
            f"in {operation}, what comes from input {vector} (shape {shapes[0]}) is broadcast along the rows of what comes "
            f"from input {other} (shape {shapes[1]}), and that fits only because both sizes are equal",
            "if it belongs to the rows, write x.unsqueeze(-1), or squeeze the other; if not, give rows and columns sizes of their own in DIMS",
        )


def _constant_buffers(probe: Probe) -> list[str]:
    """Floating entries of the state that are not redrawn, as parameters are, and hold one number."""
    return [
        entry.name[:80]
        for entry in probe.shape.inputs.state
        if entry.kept and is_inexact(entry.meta.dtype) and entry.meta.elements and _is_one_number(entry)
        if not _is_updated(probe, entry.name)
    ]


def _is_updated(probe: Probe, name: str) -> bool:
    """Whether a call leaves more than one number in a buffer: then it is an output, not a constant."""
    buffers = probe.shape.inputs.call.buffers
    if name not in buffers:
        return False
    after = [result[buffers.index(name) - len(buffers)] for result in probe.results]
    return any((values != after[0].flat[0]).any() for values in after)


def _is_one_number(entry: StateEntry) -> bool:
    """Whether all elements of an entry are the same, bit for bit."""
    rows = (
        entry.values if isinstance(entry.values, np.ndarray) else entry.values.view(-1, entry.meta.item_bytes)
    )
    return bool((rows == rows[0]).all())


def _everywhere(probes: Sequence[Probe], key: str) -> list[str]:
    """Names that every probe reports, in the first one's order."""
    names = list(dict.fromkeys(_texts(probes[0].seen.get(key))))
    for probe in probes[1:]:
        # Most tasks have none, and a second inspection takes time.
        if names:
            others = set(_texts(probe.seen.get(key)))
            names = [name for name in names if name in others]
    return [name[:80] for name in names]


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _listed(names: list[str], kind: str) -> str:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{kind}{'s' if len(names) > 1 else ''} {shown}"


def _spread(probe: Probe) -> tuple[str, int, int, list[list[int]]] | None:
    """The first operation that broadcasts one input against another: its name, both inputs (from 1) and both
    shapes.
    """
    try:
        for entry in probe.seen.get("spread", []):
            vector, other = int(entry["vector"][0]) + 1, int(entry["other"][0]) + 1
            shapes = [[int(size) for size in shape][:8] for shape in entry["shapes"][:2]]
            if len(shapes) == 2:
                return str(entry["operation"])[:40], vector, other, shapes
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    return None
