"""How far an output may be from the float64 result.

Two things make a correct float32 kernel differ from the float64 oracle: rounding in its own order of operations, and
the problem's conditioning. The first is estimated by the *reference's own* error in the task's dtype, the second by
how much the oracle's result moves when every input moves by one rounding error. They make one bound per row:

    |candidate - oracle| <= (A * reference error + B * input sensitivity + (C + D * terms) * eps) * scale
    scale = |oracle| + rms of the row (on inputs other than the task's own: + the output's usual rms),
            without large constants, see :mod:`evaluator.oracle.fills`

with both errors relative to the same scale. Rows are the last dimension. A drop to a lower precision tier shows as an
error two or three orders of magnitude above this bound (TF32: about 5e-4 against 1e-6).

**Lower precision on purpose.** A task's ``PRECISION`` (:mod:`evaluator.precision`) allows rounding of the operands of
products, including those of backward. ``tf32``, ``bf16``, ``fp16`` and ``fp8`` allow it for matrix products and
convolutions. ``default`` allows it on a GPU for convolutions and recurrent layers only, as PyTorch does by default.
``strict`` allows none. The effect on a result is measured: the float64 oracle runs once more with every such operand
rounded to nearest to the tier's explicit mantissa bits (10, 7, 10, 3: unit roundoffs 2^-11, 2^-8, 2^-11, 2^-4). Sums,
biases and everything else stay in float64, and no exponent range is cut. With t the largest error of that run in a row
(at least twice the median row's)

    tier bound = bound + T * t        (T = 4: hardware may truncate instead of round, and fall otherwise)

so a tier widens nothing for a module without products, and a result beyond ``bound`` is reported as a change of
precision.

**Many small errors.** In dtypes of 16 bits and less, a bound of two spacings per element hides a lot. There the root
mean square of the errors is bounded too, for the tensor and for each long row, so that errors cannot accumulate in rows
or tiles.

**Ill-conditioned rows.** One move of the inputs may by chance change such a row little, since its effects cancel. In a simulated
attention with scores of up to thousands, 10 to 36 of 65,536 rows were beyond their bound, by up to 3.8 times, for honest float32 sums in
another order than the reference's. So before a result that is slightly beyond is called wrong, inputs and weights are moved again, up
to fifteen times, and a row's widest change counts (:meth:`Expected.widened`, at most `WIDEST` times its bound). One of 500,000 such rows was still beyond then.

**Integers and booleans** must be exact. If they were rounded or compared from floating values, each element may be the
reference's, float64's, or float64's on inputs moved up or down by one rounding error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from evaluator.oracle.arrays import Array, space
from evaluator.oracle.fills import are_fills, find, in_range, rms_of_rows
from evaluator.oracle.numbers import epsilon, is_inexact

_OWN_ERROR_FACTOR = 4.0
_SENSITIVITY_FACTOR = 4.0
_FLOOR_EPSILONS = {"float32": 16.0, "float64": 64.0, "complex64": 16.0, "complex128": 64.0}
#: A sum of n nearly equal terms, added one after the other as compilers do over rows, was off by up to n/12 unit
#: roundoffs of the scale, while the reference's pairwise sum is hardly off. Longer sums must be split to be right.
_EPSILONS_PER_TERM, _MOST_TERMS = 0.125, 2048
#: Equal terms are all rounded the same way, so the error of their mean grows with their number, again up to n/12
#: unit roundoffs. Where the problem amplifies it (LayerNorm of a constant row, by 1/sqrt(eps)), it counts as this
#: many moved inputs.
_SENSITIVITY_PER_EQUAL_TERM = 1.0 / 12.0
#: How many times the error of an oracle with rounded operands a candidate's may be: hardware may truncate, and fall otherwise.
_TIER_FACTOR = 4.0
#: For large values in a tier below TF32, and in fp8: an exponential makes of one run's error and of another's any ratio. An honest
#: softmax in fp8 was beyond twice its bound in 8 of 100 contents and beyond eight times in 1 of 300; in bf16 it was within a quarter.
CHANCE_SLACK, CHANCE_SLACK_FP8 = 2.0, 8.0
#: Up to how many times its bound a row's error may be for more moves to be tried, and how far they may widen it.
WIDEST = 8.0
#: Bound of the root mean square, for dtypes with few bits: a multiple of the reference's own, plus that of the
#: tier and of rounding the inputs, plus some spacings. Rounding moves a number by 0.2 spacings (root mean square),
#: not by the whole one by which inputs are moved. Shorter rows are too noisy to judge alone.
_RMS_FACTOR, _RMS_OF_ROUNDING = 3.0, 0.2
_LONG_ROW = 64
#: A row is steady if its bound is at most this multiple of the strict one, and at most this large.
_STEADY_FACTOR, _STEADY = 3.0, 0.25


def as_rows(values: Array, shape: tuple[int, ...]) -> Array:
    """Values of a tensor as (rows, last dimension); a vector or scalar is one row."""
    width = shape[-1] if len(shape) > 1 else max(space(values).size(values), 1)
    return values.reshape(-1, max(width, 1))


@dataclass(frozen=True)
class Bounds:
    """How far an output was allowed to be off.

    A row in which everything cancels is allowed any relative error, so no single row's relative bound is used.

    Attributes:
        usual: in the median row, relative to the row.
        least: at the smallest element of the median row, in the output's own unit.
        rms: root mean square, relative, in the row with the widest bound; infinite if there was no such bound.
        fills: values that say nothing about a row's scale.
    """

    usual: float
    least: float
    rms: float
    fills: tuple[float, ...] = ()

    def or_wider(self, other: Bounds) -> Bounds:
        """The larger of each."""
        fills = tuple(sorted({*self.fills, *other.fills}))
        usual, least = max(self.usual, other.usual), max(self.least, other.least)
        return Bounds(usual, least, max(self.rms, other.rms), fills)


@dataclass(frozen=True)
class Expected:
    """What one output tensor must be.

    Attributes:
        dtype: torch's name of the dtype.
        shape: its sizes.
        exact: the float64 oracle (or the reference's values for integers and booleans), as rows.
        own: the reference's result in the task's dtype, as rows of float64.
        scale: |oracle| + rms of the row: errors are relative to it.
        bound: allowed relative error per row, shape (rows, 1).
        strict: the same without what the task's precision tier adds.
        rms_bound: allowed root mean square of the relative error per row; None if single elements say enough.
        alternatives: for integers and booleans, other values that are as right as ``exact``, as rows.
        moved_bound: the part of ``bound`` for moved inputs, shape (rows, 1); None if there is none.
        moved_factor: what the error on moved inputs is multiplied with for it.
        fills: the reference's values that are large constants and say nothing about a row's scale.
        judged: ``everywhere``; ``where_finite``: only elements for which both the reference and the oracle give
            numbers; ``finiteness``: that these are numbers, and right ones in rows that the tier's rounding hardly
            touches; ``finiteness_alone``: that these are numbers.
        chance_slack: how many times its bound an error in such rows may be.
    """

    dtype: str
    shape: tuple[int, ...]
    exact: Array
    own: Array
    scale: Array
    bound: Array
    strict: Array
    rms_bound: Array
    alternatives: tuple[Array, ...] = ()
    moved_bound: Array | None = None
    moved_factor: float = 0.0
    fills: tuple[float, ...] = ()
    judged: str = "everywhere"
    chance_slack: float = CHANCE_SLACK

    def allowed_for(self, moved: Array) -> Array | None:
        """What rows may be off by if the oracle says this for moved inputs, flat; shape (rows, 1), None if no move counts."""
        if self.moved_bound is None:
            return None
        xp = space(self.exact)
        moved = in_range(as_rows(moved, self.shape), self.own, self.dtype)
        constant = are_fills(self.own, self.fills)
        if constant is not None:
            moved = xp.where(constant, self.own, moved)
        finite = xp.isfinite(self.exact) & xp.isfinite(self.own) & xp.isfinite(moved)
        return self.moved_factor * _row_error(moved, self.exact, finite, self.scale)

    def widened(self, allowed: Array | None) -> Expected:
        """The same with rows that may be off by so much for moved inputs, and by at most `WIDEST` times their bound in all.

        Args:
            allowed: the largest of several that `allowed_for` has told.
        """
        if allowed is None:
            return self
        xp = space(self.exact)
        more = xp.maximum(allowed - self.moved_bound, 0.0 * allowed)
        more = -xp.maximum(-more, -(WIDEST - 1.0) * self.bound)
        return replace(self, bound=self.bound + more, strict=self.strict + more)

    @property
    def rms(self) -> float:
        """Root mean square of the finite values that are not large constants."""
        xp = space(self.exact)
        fills = are_fills(self.own, self.fills)
        counted = xp.isfinite(self.exact) if fills is None else xp.isfinite(self.exact) & ~fills
        finite = xp.widen(xp.abs(self.exact[counted]), "float64")
        return math.sqrt(xp.mean(finite**2)) if xp.size(finite) else 0.0

    @cached_property
    def all_finite(self) -> bool:
        """Whether neither the reference nor the oracle has a NaN or an infinity."""
        xp = space(self.exact)
        return bool(xp.isfinite(self.exact).all()) and bool(xp.isfinite(self.own).all())

    @property
    def steady_rows(self) -> Array:
        """Rows that the tier's rounding hardly touches, or all of them if it touches none much; shape (rows, 1)."""
        every = self.bound <= _STEADY
        # Of a row without values any relative error is allowed, which says nothing about the others.
        all_are = (every | (self._remaining == 0)).all()
        return (self.bound <= _STEADY_FACTOR * self.strict) & (self.strict <= _STEADY) | all_are & every

    @property
    def _remaining(self) -> Array:
        return _remaining(self.exact != 0, are_fills(self.own, self.fills))

    @property
    def bounds(self) -> Bounds:
        """A summary of what its rows are allowed."""
        xp = space(self.bound)
        if not xp.size(self.bound):
            return Bounds(0.0, 0.0, math.inf)
        rms = math.inf if self.rms_bound is None else float(self.rms_bound.max())
        least_scale = -xp.max_of_rows(-self.scale)
        remaining = self._remaining
        usual, least = (_typical(one, remaining) for one in (self.bound, self.bound * least_scale))
        return Bounds(usual, least, rms, self.fills)


def expect(
    dtype: str,
    shape: tuple[int, ...],
    exact: Array,
    own: Array,
    moved: Array | None,
    terms: int = 1,
    usual: float = 0.0,
    *,
    moved_share: float = 1.0,
    equal_terms: bool = False,
    tiered: Sequence[Array] = (),
    alternatives: Sequence[Array] = (),
    judged: str = "everywhere",
    chance_slack: float = CHANCE_SLACK,
) -> Expected:
    """Builds the expectation for one output from flat float64 (or integer) values.

    Args:
        dtype: the task's dtype of this output.
        shape: its sizes.
        exact: oracle in float64 (complex128 for complex outputs).
        own: the reference's own output, widened.
        moved: the oracle on inputs that were moved by one rounding error, or None if there is no inexact input.
        terms: length of the longest sum that the module may take, as far as it is known.
        usual: root mean square of this output on the task's own inputs. Other inputs may make everything cancel,
            leaving only rounding errors in any order, so errors there are also relative to this.
        moved_share: a rounding error of this output's own dtype divided by the distance by which inputs were
            moved, if they were moved for a coarser output beside it.
        equal_terms: whether the inputs are constant along their rows.
        tiered: what the task's tier makes of it, empty for the strict one: the oracle with rounded operands of
            products, and the reference's own result, which shows what its libraries lose beyond that.
        alternatives: other right values of an integer or boolean output.
        judged, chance_slack: see :class:`Expected`.
    """
    exact, own = as_rows(exact, shape), as_rows(own, shape)
    xp = space(exact)
    if not is_inexact(dtype) or xp.size(exact) == 0:
        zeros = xp.full(exact, (exact.shape[0], 1), 0.0)
        others = tuple(as_rows(values, shape) for values in alternatives)
        return Expected(dtype, shape, own, own, zeros + 1.0, zeros, zeros, None, others, judged=judged)
    exact = in_range(exact, own, dtype)
    moved = None if moved is None else in_range(as_rows(moved, shape), own, dtype)
    tiered = [in_range(as_rows(values, shape), own, dtype) for values in tiered]
    fills = find(dtype, exact, own, moved)
    constant = are_fills(own, fills)
    if (
        constant is not None
    ):  # an error from storing it in the task's dtype says nothing about the other elements either
        exact, moved = xp.where(constant, own, exact), xp.where(constant, own, moved)
        tiered = [xp.where(constant, own, values) for values in tiered]
    finite = xp.isfinite(exact) & xp.isfinite(own)
    magnitude = xp.where(finite, xp.abs(exact), 0.0)
    # In a short row, or one that is nearly all cut off at zero, few elements remain to estimate its scale and the
    # reference's error. Their loss happened before the cut: up to twice as much as in the median row, as elsewhere.
    # A convolution with ReLU, summed in another order, was called wrong in 13 of 1000 contents with rows of 3, and
    # in 2 of 25 million elements with rows of 256 (H100).
    remaining = _remaining(magnitude > 0.0, constant)
    few = remaining < _LONG_ROW
    beside = constant
    if bool(few.any()):
        cut = few & (magnitude == 0.0)
        beside = cut if constant is None else constant | cut
    rms = rms_of_rows(magnitude, beside)
    overall = math.sqrt(xp.mean((magnitude if constant is None else xp.where(constant, 0.0, magnitude)) ** 2))
    # An all-zero row still gets a scale, from the whole tensor, at the size of rounding noise.
    least_scale = rms + usual + epsilon(dtype) * overall + sys.float_info.min
    scale = magnitude + least_scale
    own_error = _row_error(own, exact, finite, scale)
    # Before rows of which nothing remains are allowed what others lose: relative to their scale that is any number.
    typical = _typical(own_error, remaining)
    few |= usual > 0.0
    # Not in 16 bits: their errors depend on the size of each result.
    if dtype in _FLOOR_EPSILONS and bool(few.any()):
        lost = _row_error(own, exact, finite, xp.full(exact, (exact.shape[0], 1), 1.0))
        own_error = xp.where(
            few, xp.maximum(own_error, 2.0 * _median(lost, remaining > 0) / least_scale), own_error
        )
    bound = _OWN_ERROR_FACTOR * xp.maximum(own_error, 2.0 * typical)
    moved_bound: Array | None = None
    moved_factor = _SENSITIVITY_FACTOR + equal_terms * _SENSITIVITY_PER_EQUAL_TERM * min(terms, _MOST_TERMS)
    moved_factor *= moved_share
    if moved is not None:
        moved_bound = moved_factor * _row_error(moved, exact, finite & xp.isfinite(moved), scale)
        bound = bound + moved_bound
    epsilons = _FLOOR_EPSILONS.get(dtype, 2.0)
    if dtype in _FLOOR_EPSILONS:
        epsilons += _EPSILONS_PER_TERM * min(terms, _MOST_TERMS)
    strict = bound + epsilons * epsilon(dtype)
    rms_bound: Array = None
    if dtype not in _FLOOR_EPSILONS:
        rms_bound = xp.full(exact, (exact.shape[0], 1), _RMS_OF_ROUNDING * epsilon(dtype))
        # For the tier, the oracle alone: the reference's own loss is the first of these.
        rounded = tiered[0] if tiered else None
        for values, share in ((own, 1.0), (moved, moved_share * _RMS_OF_ROUNDING), (rounded, 1.0)):
            if values is not None:
                rms_bound += _RMS_FACTOR * share * _row_rms(values, exact, finite, scale)
    bound = strict
    if tiered:
        tier_error = _row_error(tiered[0], exact, finite, scale)
        for values in tiered[1:]:
            tier_error = xp.maximum(tier_error, _row_error(values, exact, finite, scale))
        typical = _typical(tier_error, remaining)
        if bool(few.any()):
            # As above: what rounded operands lose in a sum does not depend on the size of the sum. A bfloat16
            # attention with one value per head, whose row is one number near zero, was called wrong by 1.06 times
            # the bound (H100).
            lost = _row_error(tiered[0], exact, finite, xp.full(exact, (exact.shape[0], 1), 1.0))
            tier_error = xp.where(
                few, xp.maximum(tier_error, _median(lost, remaining > 0) / least_scale), tier_error
            )
        # Tensor cores may truncate what the oracle rounds to nearest (PTX ISA, `mma`): twice the error, and in
        # equal terms it accumulates.
        factor = _TIER_FACTOR * (2.0 if equal_terms else 1.0)
        bound = strict + factor * xp.maximum(tier_error, 2.0 * typical)
    return Expected(
        dtype,
        shape,
        exact,
        own,
        scale,
        bound,
        strict,
        rms_bound,
        moved_bound=moved_bound,
        moved_factor=moved_factor,
        fills=fills,
        judged=judged,
        chance_slack=chance_slack,
    )


def _remaining(is_there: Array, fills: Array | None) -> Array:
    """How many elements of each row are neither cut off at zero nor a large constant, shape (rows, 1)."""
    return space(is_there).count_of_rows(is_there if fills is None else is_there & ~fills)


def _typical(values: Array, remaining: Array) -> float:
    """The median of relative values over rows with many remaining elements, or if there are none, with any."""
    many = remaining >= _LONG_ROW
    return _median(values, many if bool(many.any()) else remaining > 0)


def _median(values: Array, rows: Array) -> float:
    """The median over these rows, or if there are none, over all."""
    return float(space(values).median(values[rows] if bool(rows.any()) else values))


def _row_error(values: Array, exact: Array, valid: Array, scale: Array) -> Array:
    return space(exact).max_of_rows(_errors(values, exact, valid, scale))


def _errors(values: Array, exact: Array, valid: Array, scale: Array) -> Array:
    """Relative errors; 0 where either is not a number."""
    xp = space(exact)
    counted = valid & xp.isfinite(values)
    with xp.quiet():
        difference = xp.abs(values - exact)
        return (difference if bool(counted.all()) else xp.where(counted, difference, 0.0)) / scale


def _row_rms(values: Array, exact: Array, valid: Array, scale: Array) -> Array:
    """Root mean square of the relative error per row, at least that of the whole tensor."""
    return row_rms(_errors(values, exact, valid, scale))


def row_rms(relative: Array) -> Array:
    """Root mean square per long row, at least that of the whole tensor; shape (rows, 1)."""
    xp = space(relative)
    squares = relative**2
    whole = xp.full(relative, (relative.shape[0], 1), xp.mean(squares))
    if relative.shape[1] >= _LONG_ROW:
        whole = xp.maximum(whole, xp.mean_of_rows(squares))
    return xp.sqrt(whole)
