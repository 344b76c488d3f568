"""One shape of a task under lint: contents, results and the oracle's tolerance, in numpy on any device."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput, logical
from evaluator.errors import RoleReported
from evaluator.oracle.arrays import Array
from evaluator.oracle.compare import compare, dense, widen
from evaluator.oracle.numbers import from_float64, is_inexact, to_float64
from evaluator.oracle.tolerance import Expected
from evaluator.referee.checking.correctness import own_case
from evaluator.referee.session.expectation import Case, own_result
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.roles import protocol
from evaluator.roles.arena import carrier
from evaluator.shapes.space import Dims

_INSPECT_SECONDS = 1.5
#: Contents drawn per shape. Fewer where the first one took long, since each needs a float64 oracle.
_CASES, _CASES_IF_SLOW, _SLOW_S = 3, 2, 0.15


#: Outputs of one call: per output its values (float64, complex128 or integers) in the shape of the output.
Result = list[Array]


@dataclass
class Probe:
    """An open shape, with some contents of the task's own distribution and their results.

    Attributes:
        session: of the task.
        shape: as it is open.
        cases: what outputs must be for each content.
        results: the reference's own.
    """

    session: TaskSession
    shape: OpenShape
    cases: list[Case]
    results: list[Result]

    @classmethod
    def of(cls, session: TaskSession, shape: OpenShape, count: int | None = None) -> Probe:
        """Draws contents, ``count`` of them if given, and calls the reference."""
        started = time.monotonic()
        cases = [own_case(shape)]
        count = count or (_CASES if time.monotonic() - started < _SLOW_S else _CASES_IF_SLOW)
        cases += [own_case(shape) for _ in range(count - 1)]
        results = [
            [_on_host(e.own).reshape(e.shape) for e in case.expected]  # as rows, widened
            for case in cases
        ]
        return cls(session, shape, cases, results)

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
        name = self.shape.inputs.name_of(output, len(self.cases[0].metas))
        return not name.startswith(("gradient", "buffer"))

    # -- what others would return ------------------------------------------------------------------------------

    def accepts(self, expected: Expected, values: Array) -> bool:
        """Whether an output with these values (as in :class:`Result`) would be accepted."""
        flat = np.asarray(values).reshape(-1)
        dtype = expected.dtype
        carried = from_float64(flat, dtype) if is_inexact(dtype) else flat.astype(carrier(dtype))
        return compare(_like(carried, expected), expected).ok

    def accepts_all(self, case: Case, result: Result) -> bool:
        """Whether all of these outputs would be accepted for a content."""
        return all(
            self.accepts(expected, values) for expected, values in zip(case.expected, result, strict=True)
        )

    # -- other contents ----------------------------------------------------------------------------------------

    def contents(self, case: Case) -> list[Array]:
        """Copies of a content's tensors in their carriers, on the host."""
        return [
            _carried(content, tensor).copy()
            for content, tensor in zip(case.contents, self.shape.inputs.tensors, strict=True)
        ]

    def call(self, contents: list[Array]) -> Result | None:
        """The reference's result for contents of the host; None if it refuses them.

        Raises:
            RoleFailure: its process did not survive.
        """
        try:
            found = own_result(self.shape, "task", contents)
        except RoleReported:
            return None
        return [
            _on_host(widen(dense(span, meta), meta.dtype)).reshape(meta.shape)
            for span, meta in zip(found.spans, found.metas, strict=True)
        ]

    @cached_property
    def seen(self) -> dict[str, Any]:
        """The report of :mod:`evaluator.roles.inspection` on the last content; empty if it failed."""
        request = {"shape": self.shape.key, "seconds": _INSPECT_SECONDS}
        self.shape.side.write(0, self.cases[-1].contents)
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
