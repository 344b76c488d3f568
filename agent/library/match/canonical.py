"""From a traced graph to one formula about a row.

Every operation that is not known, or that crosses rows, becomes an error: the module is then simply not recognized.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agent.library.match.graph import Trace
from agent.library.match.operations import HANDLERS, SEVERAL_RESULTS
from agent.library.match.reader import NotRowwise, Reader, Shape
from agent.library.match.terms import Algebra, Linear

__all__ = ["Formula", "NotRowwise", "formula_of"]


@dataclass(frozen=True)
class Formula:
    """A module's formula.

    Attributes:
        form: normal form in `algebra`; leaves are called "input 0", "parameter norm.weight" and so on.
        algebra: what the form belongs to.
        shape: of the output.
        full_shape: of the tensors whose last dimension is the row.
    """

    form: Linear
    algebra: Algebra
    shape: Shape
    full_shape: Shape


def formula_of(trace: Trace) -> Formula:
    """The formula that a graph computes.

    Raises:
        NotRowwise: there is none, for example because an operation works across rows.
    """
    inputs = [node.shape for node in trace.nodes if node.op == "input" and node.shape]
    if not inputs:
        raise NotRowwise("no input is a tensor")
    full_shape = max(inputs, key=lambda shape: (len(shape), math.prod(shape)))
    reader = Reader(trace, full_shape, HANDLERS, SEVERAL_RESULTS)
    value = reader.value(trace.output)
    return Formula(value.form, reader.algebra, value.shape, full_shape)
