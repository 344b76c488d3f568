"""One shape of a task under lint: contents, results and the oracle's tolerance, in numpy on any device."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput, logical
from evaluator.errors import RoleReported
from evaluator.oracle.arrays import Array
from evaluator.oracle.compare import compare, dense, widen
from evaluator.oracle.numbers import from_float64, is_inexact, to_float64
from evaluator.oracle.tolerance import Expected
from evaluator.referee.checking.correctness import fresh
from evaluator.referee.session.expectation import OwnResult, case_of, own_result
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.roles import protocol
from evaluator.roles.arena import carrier
from evaluator.shapes.space import Dims

#: For tests of what has an effect, each of which is a call.
_INSPECT_SECONDS = 0.5
#: Three contents are drawn per shape, two where a call takes longer than this.
_SLOW_S = 0.05

#: Outputs of one call: per output its values (float64, complex128 or integers) in the shape of the output.
Result = list[Array]


@dataclass
class Probe:
    """An open shape, with some contents of the task's own distribution and their results.

    Rules ask about the first content before the others, because what its outputs must be takes two calls in float64,
    in which some operators (3-D convolutions on a CPU) are a hundred times slower.

    Attributes:
        session: of the task.
        shape: as it is open.
        drawn: the contents, with the reference's own results as spans of memory.
        results: the same as arrays.
    """

    session: TaskSession
    shape: OpenShape
    drawn: list[OwnResult]
    results: list[Result]
    _expected: dict[int, list[Expected]] = field(default_factory=dict)

    @classmethod
    def of(cls, session: TaskSession, shape: OpenShape) -> Probe:
        """Draws contents and calls the reference."""
        drawn = [fresh(shape)]
        started = time.monotonic()  # the first call takes longer than others
        drawn.append(fresh(shape))
        if time.monotonic() - started < _SLOW_S:
            drawn.append(fresh(shape))
        probe = cls(session, shape, drawn, [_arrays(one) for one in drawn])
        if shape.own_oracle:
            probe.expected(0)  # an oracle() that fails makes the task unsound, whatever the rules ask
        return probe

    @classmethod
    def without_contents(cls, session: TaskSession, shape: OpenShape) -> Probe:
        """A probe of how operations are connected alone: nothing is disturbed, see :attr:`seen`."""
        return cls(session, shape, [], [])

    @property
    def where(self) -> str:
        """The shape in words."""
        return self.shape.where

    @property
    def dims(self) -> Dims:
        return self.shape.dims

    @property
    def inputs(self) -> list[TensorInput]:
        """The tensors that forward gets."""
        return self.shape.inputs.given

    def is_result(self, output: int) -> bool:
        """Whether an output is the module's own result: neither a gradient nor a buffer after the call."""
        name = self.shape.inputs.name_of(output, len(self.drawn[0].metas))
        return not name.startswith(("gradient", "buffer"))

    # -- what others would return ------------------------------------------------------------------------------

    def accepts(self, expected: Expected, values: Array) -> bool:
        """Whether an output with these values (as in :class:`Result`) would be accepted."""
        flat = np.asarray(values).reshape(-1)
        dtype = expected.dtype
        carried = from_float64(flat, dtype) if is_inexact(dtype) else flat.astype(carrier(dtype))
        return compare(_like(carried, expected), expected).ok

    def expected(self, content: int) -> list[Expected]:
        """What each output must be for a content, with the oracle's tolerance."""
        if content not in self._expected:
            self._expected[content] = case_of(self.shape, self.drawn[content]).expected
        return self._expected[content]

    def accepts_all(self, content: int, result: Result) -> bool:
        """Whether all of these outputs would be accepted for a content."""
        return all(
            self.accepts(expected, values)
            for expected, values in zip(self.expected(content), result, strict=True)
        )

    # -- other contents ----------------------------------------------------------------------------------------

    def contents(self, number: int) -> list[Array]:
        """Copies of a content's tensors in their carriers, on the host."""
        return [
            _carried(content, tensor).copy()
            for content, tensor in zip(self.drawn[number].contents, self.shape.inputs.tensors, strict=True)
        ]

    def call(self, contents: list[Array]) -> Result | None:
        """The reference's result for contents of the host; None if it refuses them.

        Raises:
            RoleFailure: its process did not survive.
        """
        try:
            return _arrays(own_result(self.shape, "task", contents))
        except RoleReported:
            return None

    @cached_property
    def seen(self) -> dict[str, Any]:
        """The report of :mod:`evaluator.roles.inspection` on the last content; empty if it failed."""
        request = {"shape": self.shape.key, "seconds": _INSPECT_SECONDS if self.drawn else 0.0}
        for one in self.drawn[-1:]:
            self.shape.side.write(0, one.contents)
        try:
            return self.shape.side.process.request_json(protocol.INSPECT, request, 60.0)
        except RoleReported:
            # A module that cannot be traced (a compiled one, say) is judged only by its results.
            return {}
        finally:
            if not self.shape.side.process.dead:
                self.shape.side.process.freeze()


def same(first: Result, second: Result) -> bool:
    """Whether two results are the same in every bit that counts."""
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(first, second, strict=True)
    )


def disturbed(content: Array, tensor: TensorInput) -> Array:
    """A floating content with every finite element changed by up to a half, in its carrier."""
    values = to_float64(content, tensor.meta.dtype)
    generator = np.random.default_rng()
    finite = np.isfinite(values)
    size = math.sqrt(float(np.mean(np.abs(values[finite]) ** 2))) if finite.any() else 1.0
    moved = (
        values * generator.uniform(0.5, 1.5, values.shape) + generator.uniform(0, 0.1, values.shape) * size
    )
    return np.asarray(from_float64(np.where(finite, moved, values), tensor.meta.dtype))


def first_row_changed(content: Array, tensor: TensorInput, other: Array) -> Array:
    """A content whose first row (along the first dimension) comes from another one."""
    changed = content.copy()
    logical(changed, tensor.meta)[0] = logical(other.copy(), tensor.meta)[0]
    return changed


def _arrays(found: OwnResult) -> Result:
    return [
        _on_host(widen(dense(span, meta), meta.dtype)).reshape(meta.shape)
        for span, meta in zip(found.spans, found.metas, strict=True)
    ]


def _on_host(values: Array) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def _carried(content: Array, tensor: TensorInput) -> Array:
    """A span as the referee holds it (bytes, if it is on a device) in its carrier."""
    return np.ascontiguousarray(_on_host(content)).reshape(-1).view(carrier(tensor.meta.dtype))


def _like(carried: Array, expected: Expected) -> Array:
    """Carried values where the expectation is: in numpy, or as a tensor of the device."""
    exact = expected.exact
    if isinstance(exact, np.ndarray):
        return carried
    import torch

    dtype = getattr(torch, expected.dtype)
    raw = torch.from_numpy(np.ascontiguousarray(carried).view(np.uint8)).to(exact.device)
    return raw.view(dtype)
