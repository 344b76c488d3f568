"""Asks `torch.export` about the free sizes of inputs: which it keeps symbolic, and which guards it adds.

Runs in a disposable process that also runs the task's code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves, tree_map

from evaluator.shapes.inference.found import Axis, Found
from evaluator.shapes.inference.probing import Outcome, Probe, Values

#: Limit of input bytes, because real inputs are made for it.
_MOST_BYTES = 256 << 20
_MODULUS = re.compile(r"Eq\(Mod\((s\d+), (\d+)\), 0\)")


@dataclass
class Exported:
    """What export confirmed.

    Attributes:
        status: ``confirmed``, ``partly`` or ``not exported``.
        sentences: what it found beyond the probes, or why it could not be used.
        regimes: by name, sizes at which the module's code takes another path.
        symbolic: names that stay symbolic in the exported program.
    """

    status: str
    sentences: list[str] = field(default_factory=list)
    regimes: dict[str, list[int]] = field(default_factory=dict)
    symbolic: list[str] = field(default_factory=list)


def confirm(probe: Probe, base: Values, found: Found) -> Exported:
    """Exports with every size of an input left to export (AUTO), then demands those that it kept (DYNAMIC)."""
    values = dict(base)
    for axis in found.axes:
        # Export treats sizes of 0 and 1 as constants, and equal sizes as one. Neither is wanted here.
        if axis.default < 2 and axis.high >= 2:
            size = max(2, axis.low) if axis.step == 1 else max(2 * axis.step, axis.low)
            values |= dict.fromkeys(axis.names, min(size, axis.high))
    start = probe(values)
    if not start.works or start.nbytes > _MOST_BYTES:
        return Exported("not exported", ["export was not tried: the inputs are too large to make here"])
    try:
        model, inputs = probe.make(values)
        # Export works on inputs; a task with non-tensor inputs cannot be exported here.
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        program = export(model, tuple(inputs), dynamic_shapes=_shapes(inputs, None), strict=False)
    except Exception as error:  # noqa: BLE001
        words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
        return Exported("not exported", [f"torch.export cannot trace it ({words}); the probes alone decide"])
    named = _named_sizes(probe, values, found.axes, start)
    shapes = _placeholders(program, len(tensors))
    answer = Exported("confirmed")
    kept: set[tuple[int, int]] = set()
    names_of: dict[str, str] = {}
    for (position, dimension), name in named.items():
        symbol = str(shapes[position][dimension]) if position < len(shapes) else ""
        if re.fullmatch(r"s\d+", symbol):
            kept.add((position, dimension))
            names_of.setdefault(symbol, name)
            if name not in answer.symbolic:
                answer.symbolic.append(name)
    only_inputs = set(named.values()) - {
        axis.names[0] for axis in found.axes if probe({**values, axis.names[0]: axis.low}).arguments != start.arguments
    }  # fmt: skip
    _read_guards(program, names_of, only_inputs, found, answer, probe, values)
    for name in sorted(only_inputs - set(answer.symbolic)):
        answer.status = "partly"
        answer.sentences.append(
            f"{name} varies, but export treats it as a constant: each size is compiled again"
        )
    if kept:
        try:
            export(model, tuple(inputs), dynamic_shapes=_shapes(inputs, kept), strict=False)
        except Exception as error:  # noqa: BLE001
            answer.status = "partly"
            words = (str(error).splitlines() or [""])[0][:160]
            answer.sentences.append(f"export refuses them as dynamic sizes: {type(error).__name__}: {words}")
    return answer


def _shapes(inputs: list[Any], kept: set[tuple[int, int]] | None) -> tuple[Any, ...]:
    """AUTO for all sizes, or DYNAMIC for those in ``kept`` (position of the tensor, dimension) and AUTO for the
    rest.
    """
    position = -1

    def sizes(leaf: Any) -> Any:
        nonlocal position
        if not isinstance(leaf, torch.Tensor):
            return None
        position += 1
        return {
            dimension: Dim.DYNAMIC if kept is not None and (position, dimension) in kept else Dim.AUTO
            for dimension in range(leaf.dim())
        }

    return tuple(tree_map(sizes, list(inputs)))


def _named_sizes(
    probe: Probe, values: Values, axes: list[Axis], start: Outcome
) -> dict[tuple[int, int], str]:
    """Which size of which input is which axis: the sizes that follow it exactly."""
    named: dict[tuple[int, int], str] = {}
    for axis in axes:
        now = int(values[axis.names[0]])
        other = now + axis.step if now + axis.step <= axis.high else now - axis.step
        after = probe({**values, **dict.fromkeys(axis.names, other)})
        if not after.works or len(after.inputs) != len(start.inputs):
            continue
        for position, ((old, _), (new, _)) in enumerate(zip(start.inputs, after.inputs, strict=True)):
            for dimension, (before, behind) in enumerate(zip(old, new, strict=False)):
                if (before, behind) == (now, other):
                    named[position, dimension] = axis.names[0]
    return named


def _placeholders(program: Any, count: int) -> list[tuple[Any, ...]]:
    wanted = set(program.graph_signature.user_inputs)
    shapes = []
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" and node.name in wanted else None
        if isinstance(value, torch.Tensor):
            shapes.append(tuple(value.shape))
    return shapes if len(shapes) == count else []


def _read_guards(
    program: Any,
    names_of: dict[str, str],
    only_inputs: set[str],
    found: Found,
    answer: Exported,
    probe: Probe,
    values: Values,
) -> None:
    """Reads guards: a bound on a symbol marks where the module's code takes another path; moduli are divisibility."""
    axes = {axis.names[0]: axis for axis in found.axes}
    for symbol, interval in program.range_constraints.items():
        name = names_of.get(str(symbol))
        # With parameters of one size, a bound only says that the parameters have that size.
        if name is None or name not in only_inputs:
            continue
        low, high = (
            int(str(bound)) if str(bound).isdigit() else 0 for bound in (interval.lower, interval.upper)
        )
        # A bound beyond which the module fails is a limit, which the probes have found, not another path.
        inside = [
            size
            for size, beyond in ((low, low - axes[name].step), (high, high + axes[name].step))
            if axes[name].low < size < axes[name].high and size > 2 and probe({**values, name: beyond}).works
        ]
        if inside:
            answer.regimes[name] = inside
            until = f"to {high}" if high in inside else "upwards"
            answer.sentences.append(
                f"{name}: the path that the module's code takes at the file's size holds from {max(low, axes[name].low)} "
                f"{until}; elsewhere it takes another"
            )
    modes = [
        node.meta["val"].fake_mode
        for node in program.graph.nodes
        if hasattr(node.meta.get("val"), "fake_mode")
    ]
    guards = " ".join(str(guard.expr) for guard in modes[0].shape_env.guards) if modes else ""
    for symbol, number in sorted(set(_MODULUS.findall(guards))):
        name = names_of.get(symbol)
        if name is None:
            continue
        if axes[name].step % int(number):
            answer.status = "partly"
            answer.sentences.append(
                f"{name}: export guards that {number} divides it, the probes found no such rule"
            )
        else:
            answer.sentences.append(f"{name}: export's guards confirm that {number} divides it")
