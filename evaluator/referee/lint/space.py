"""The shapes at which lint tests a task, and findings about the space itself: empty, fixed, unused dimensions,
false ranges.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

from evaluator.description import LintFinding
from evaluator.errors import RoleFailure
from evaluator.referee.lint.refusals import finding_of
from evaluator.referee.session.drawn_shapes import SMALL_BYTES
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape, freeze_dims
from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, defaults, in_words

#: Usual sizes shrink by these divisors until a call at them is quick.
_DIVISORS = (1, 2, 4, 8)
#: Usual size of a dimension by the number of dimensions, and the share of it that each has in the first two
#: shapes. All differ, so that only sizes tied in the task are equal in both.
_USUAL_SIZE, _USUAL_OF_MANY = {1: 30, 2: 26, 3: 18, 4: 14}, 11
_SHARES = ((1.0, 1.37, 0.73, 1.66, 0.87, 1.18), (1.29, 0.77, 1.5, 0.96, 1.83, 1.12))
_MOST_CORNERS = 4
#: What switches torch.compile off for a function or a process.
_COMPILATION_OFF = re.compile(
    r"torch\._dynamo\.disable\b|torch\.compiler\.(?:disable|set_stance)\b|torch\._disable_dynamo\b"
    r"|\bdynamo\.config\.(?:disable|suppress_errors)\b|TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE"
)


def typical(session: TaskSession) -> list[Dims]:
    """Two shapes, small but not tiny, with dimensions of different sizes; one if the task has only one.

    Raises:
        RoleFailure: no shape of the task fits.
    """
    space = session.space
    for divisor in _DIVISORS:
        wanted = [_near(space, turn, divisor) for turn in range(len(_SHARES))]
        distinct = list({freeze_dims(dims): dims for dims in wanted}.values())
        if not any(isinstance(dim, IntegerDim) for dim in space.values()):
            return distinct
        if session.drawn.quick(distinct) == distinct:
            return distinct
    fitting = session.drawn.fitting(distinct, SMALL_BYTES)
    if not fitting:
        fitting = session.drawn.sample("adversarial", SMALL_BYTES)[:2] or session.drawn.sample("visible")[:1]
    if not fitting:
        raise RoleFailure(
            "out_of_memory", "no shape of the task stays within this device's share of memory and time"
        )
    return fitting


def _near(space: Space, turn: int, divisor: int = 1) -> Dims:
    count = sum(isinstance(dim, IntegerDim) for dim in space.values())
    usual = _USUAL_SIZE.get(count, _USUAL_OF_MANY) / divisor
    shape: Dims = {}
    for index, (name, dim) in enumerate(space.items()):
        if isinstance(dim, ChoiceDim):
            values = [dim.default, *(value for value in dim.values if value != dim.default)]
            shape[name] = values[turn % len(values)]
        else:
            size = usual * _SHARES[turn][index % len(_SHARES[turn])]
            shape[name] = _legal(dim, max(size, (2 + (index + turn) % 2) * dim.multiple_of))
    return shape


def as_equal_as_the_file(session: TaskSession) -> Dims | None:
    """A small shape that keeps equal the sizes that are equal at the defaults; None if there are none, or none is
    quick.
    """
    wanted = (_as_equal(session.space, divisor) for divisor in _DIVISORS)
    return next((dims for dims in wanted if dims and session.drawn.quick([dims])), None)


def _as_equal(space: Space, divisor: int) -> Dims | None:
    shape = _near(space, 0, divisor)
    first: dict[int, float] = {}
    for name, dim in space.items():
        if isinstance(dim, IntegerDim):
            shape[name] = _legal(dim, first.setdefault(dim.default, float(shape[name])))
    return shape if len(first) < sum(isinstance(dim, IntegerDim) for dim in space.values()) else None


def _legal(dim: IntegerDim, size: float) -> int:
    step = dim.multiple_of
    first, last = -(-dim.low // step) * step, dim.high // step * step
    return min(max(round(size / step) * step, first), last)


def corners(session: TaskSession, seen: list[Dims]) -> list[Dims]:
    """Shapes inside the range that must work: the smallest, tall, wide, odd and, if it is small, the default."""
    wanted = session.drawn.sample("adversarial", SMALL_BYTES)
    wanted += session.drawn.fitting([defaults(session.space)], SMALL_BYTES)
    for name, dim in session.space.items():
        if isinstance(dim, ChoiceDim):
            wanted = [{**seen[0], name: value} for value in dim.values] + wanted
    known = {freeze_dims(dims) for dims in seen}
    distinct = list({freeze_dims(dims): dims for dims in wanted if freeze_dims(dims) not in known}.values())
    return (session.drawn.quick(distinct) or distinct[:1])[:_MOST_CORNERS]


def check_declared(session: TaskSession) -> Iterator[LintFinding]:
    """Findings from the declaration alone."""
    if not session.space:
        yield LintFinding(
            "fixed_shape",
            "warning",
            "the task has one shape only, so a kernel for that shape would be enough",
            "let get_inputs() and get_init_inputs() take sizes, the module accept them, and DIMS name them",
        )
    elif all(
        dim.low == dim.high if isinstance(dim, IntegerDim) else len(dim.values) == 1
        for dim in session.space.values()
    ):
        yield LintFinding(
            "fixed_shape",
            "warning",
            "every dimension in DIMS has one value only, so the shape cannot be varied",
            "widen min and max",
        )
    for name in session.idle_dims:
        yield LintFinding(
            "dimension_unused",
            "error",
            f"DIMS names {name}, but neither get_inputs() nor get_init_inputs() takes it",
            f"add {name} to the parameters of the function that should use it, or remove it from DIMS",
        )
    off = _COMPILATION_OFF.search(session.task.source)
    if off is not None:
        yield LintFinding(
            "compilation_off",
            "warning",
            f"the file switches torch.compile off ({off[0]}), so some or all speedups are only against eager",
            "remove that, unless the module cannot be compiled",
        )


def check_corners(session: TaskSession, seen: list[Dims], until_s: float) -> Iterator[LintFinding]:
    """Opens shapes of the range. A failure makes DIMS false; at most one finding."""
    # The choice of corners asks for the costs of many shapes, which takes a second for a network.
    for dims in corners(session, seen) if time.monotonic() < until_s else ():
        if time.monotonic() > until_s:
            return
        failure = failure_at(session, dims)
        if failure is not None:
            yield at_shape(session, dims, failure)
            return


def failure_at(session: TaskSession, dims: Dims) -> RoleFailure | None:
    """Why a shape cannot be opened; None if it can."""
    try:
        with session.trial(dims):
            return None
    except RoleFailure as failure:
        return failure


def at_shape(session: TaskSession, dims: Dims, failure: RoleFailure) -> LintFinding:
    """A failure at a shape as a finding: DIMS is false if the task works at its default shape."""
    finding = finding_of(failure, f" at {in_words(dims)}")
    usual = defaults(session.space)
    if finding.rule not in ("fails", "too_large", "too_slow") or not dims or dims == usual:
        return finding
    if finding.rule == "fails" and (session.process.dead or failure_at(session, usual) is not None):
        return finding
    return replace(
        finding,
        rule="dims_lie",
        sentence=f"DIMS allows {in_words(dims)}, but there {finding.sentence.replace(f' at {in_words(dims)}', '', 1)}",
        mending="narrow DIMS (min, max, multiple_of) to what works, or correct the module for that shape",
    )


def check_effect(session: TaskSession, first: OpenShape, second: OpenShape) -> Iterator[LintFinding]:
    """Reports if all tensors have the same shapes at two different shapes of the space: nothing varies."""
    if _forms(first) == _forms(second):
        yield LintFinding(
            "fixed_shape",
            "error",
            f"inputs, weights and outputs have the same shapes at {first.where} and at {second.where}",
            "use the dimensions in get_inputs() or get_init_inputs() instead of constants",
        )


def _forms(shape: OpenShape) -> object:
    return (
        [tensor.meta for tensor in shape.inputs.tensors],
        [entry.meta for entry in shape.inputs.state],
        shape.output_metas,
        shape.inputs.init,
    )
