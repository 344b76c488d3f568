"""Compares a candidate's output with the expectation and says in words what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evaluator.counting import counted
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.numbers import is_inexact
from evaluator.oracle.tolerance import Expected, as_rows, row_rms
from evaluator.roles.frames import TensorMeta


@dataclass(frozen=True)
class Comparison:
    """Outcome for one output tensor.

    Attributes:
        ok: within the bound everywhere, with NaN and Inf exactly where the reference has them; or what else the
            expectation requires.
        ratio: largest error relative to its bound (below 1 is right); inf for wrong masks or integers.
        max_abs: largest absolute error among finite elements.
        words: what is wrong, empty when ok.
        strict_ratio: the same as ratio, for the bound of strict float32 arithmetic.
        wrong: mask of wrong elements by (row, column), if single elements are wrong.
    """

    ok: bool
    ratio: float
    max_abs: float
    words: str = ""
    strict_ratio: float = 0.0
    wrong: Array | None = field(default=None, repr=False, compare=False)


def widen(values: Array, dtype: str) -> Array:
    """Carried values as float64 or complex128, or unchanged integers."""
    return space(values).widen(values, dtype)


def contract(meta: TensorMeta, expected: TensorMeta) -> str:
    """Why an output breaks the contract of shape, dtype and layout; empty if it does not."""
    if meta.dtype != expected.dtype:
        return f"an output has dtype {meta.dtype}, the reference returns {expected.dtype}: return that"
    if meta.shape != expected.shape:
        return f"an output has shape {list(meta.shape)}, the reference returns {list(expected.shape)}: return that"
    if not _good_layout(meta, expected):
        return (
            f"an output has strides {list(meta.strides)}, the reference returns {list(expected.strides)}: return it contiguous "
            "(.contiguous()) or with the reference's strides"
        )
    return ""


def _good_layout(meta: TensorMeta, expected: TensorMeta) -> bool:
    """Whether an output is contiguous, which suits any caller, or has the reference's layout.

    Strides along dimensions of one element, and of empty tensors, do not matter.
    """
    return (
        meta.elements == 0
        or meta.contiguous
        or all(
            mine == wanted
            for size, mine, wanted in zip(meta.shape, meta.strides, expected.strides, strict=True)
            if size > 1
        )
    )


def dense(span: Array, meta: TensorMeta) -> Array:
    """The elements of a strided tensor in logical order, flat, from its memory span."""
    if meta.elements == 0:
        return span[:0]
    return space(span).dense(span, meta)


def compare(values: Array, expected: Expected, slack: float = 1.0) -> Comparison:
    """Compares flat carried values with the expectation, the bound widened by ``slack``."""
    got = as_rows(widen(values, expected.dtype), expected.shape)
    xp = space(got)
    if xp.size(got) == 0:
        return Comparison(True, 0.0, 0.0)
    if not is_inexact(expected.dtype):
        if expected.judged.startswith("finiteness"):
            return Comparison(True, 0.0, 0.0)
        wrong = got != expected.exact
        for other in expected.alternatives:
            wrong &= got != other
        if wrong.any():
            return Comparison(
                False, float("inf"), float("nan"), _first_wrong(wrong, got, expected.exact), wrong=wrong
            )
        return Comparison(True, 0.0, 0.0)
    # The usual case, which saves most of the work: there is no NaN or Inf at all.
    all_finite = expected.all_finite and bool(xp.isfinite(got).all())
    masks = None if all_finite else _mask_difference(got, expected)
    if expected.judged != "everywhere" and not all_finite:
        numbers = xp.isfinite(expected.own) & xp.isfinite(expected.exact)
        masks = numbers & ~xp.isfinite(got)
        masks = masks if masks.any() else None
        got = xp.where(numbers, got, expected.exact)
    if masks is not None:
        return Comparison(
            False, float("inf"), float("nan"), _first_wrong(masks, got, expected.own), wrong=masks
        )
    if expected.judged == "finiteness_alone":
        return Comparison(True, 0.0, 0.0)
    if expected.judged == "finiteness":
        # In rows that the tier's rounding hardly touches, the outcome is not chance. If rounding flips no row,
        # that holds for all rows.
        got = xp.where(expected.steady_rows, got, expected.exact)
        slack *= expected.chance_slack
    with xp.quiet():
        difference = xp.abs(got - expected.exact)
        if not all_finite:
            finite = xp.isfinite(got) & xp.isfinite(expected.exact)
            difference = xp.where(finite, difference, 0.0)
        relative = difference / expected.scale
    bound, of_rows = slack * expected.bound, xp.max_of_rows(relative)
    worst, largest = float((of_rows / bound).max()), float(difference.max())
    if worst > 1.0:
        wrong = relative / bound > 1.0
        words = f"{_first_wrong(wrong, got, expected.exact)}; the error is {worst:.3g} times the bound"
        return Comparison(False, worst, largest, words, wrong=wrong)
    if expected.rms_bound is not None and expected.judged != "finiteness":
        ratios = row_rms(relative) / (slack * expected.rms_bound)
        worst = max(worst, float(ratios.max()))
        if worst > 1.0:
            words = f"many elements are slightly wrong, most of all in row {int(ratios.argmax())}: the root mean square of "
            return Comparison(False, worst, largest, f"{words}the errors is {worst:.3g} times its bound")
    strict = float((of_rows / (slack * expected.strict)).max())
    return Comparison(True, worst, largest, strict_ratio=strict)


def _mask_difference(got: Array, expected: Expected) -> Array | None:
    """Elements whose NaN or Inf class differs. Where reference and oracle disagree (overflow), either is right."""
    xp = space(got)
    wrong = xp.zeros(got, tuple(got.shape))
    infinite = (xp.isinf,) if xp.iscomplex(got) else (xp.isposinf, xp.isneginf)
    for classify in (xp.isnan, *infinite):
        mine = classify(got)
        wrong |= (mine != classify(expected.own)) & (mine != classify(expected.exact))
    return wrong if wrong.any() else None


def _first_wrong(wrong: Array, got: Array, exact: Array) -> str:
    count = int(wrong.sum())
    xp = space(wrong)
    row, column = xp.first_true(wrong)
    size = xp.size(wrong)
    share = count / size
    return (
        f"{count} of {counted(size, 'element')} ({share:.1%}) wrong, first at row {row}, column {column}: "
        f"got {_number(xp.item(got, row, column))}, expected {_number(xp.item(exact, row, column))}"
    )


def _number(value: Any) -> str:
    return str(value) if value.dtype.kind in "biu" else f"{value:.6g}"
