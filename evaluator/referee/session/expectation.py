"""What a call must return: the reference's own result and the oracle's for one content, as a :class:`Case`."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from evaluator.counting import counted
from evaluator.errors import RoleFailure, RoleReported
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.compare import Comparison, compare, contract, dense, widen
from evaluator.oracle.numbers import epsilon, is_inexact
from evaluator.oracle.tolerance import CHANCE_SLACK, CHANCE_SLACK_FP8, WIDEST, Expected, expect
from evaluator.precision import rounds_operands
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.roles.frames import TensorMeta
from evaluator.roles.protocol import OWN_IN_TIER, OWN_RESULT

#: First row, end, and the indices of the tensors that are cut.
Rows = tuple[int, int, list[int]]
#: Names of cases whose contents come from the task's own distribution.
OWN_INPUTS = ("task", "timed")
_LARGE_VALUES = ("wide_range", "large_mean")
#: The case in which all terms of a sum over a row are equal.
_EQUAL_TERMS = "constant_rows"
#: How often inputs and weights are moved again before a slightly wrong result is called wrong, and how often in a row in vain.
_MOST_MOVES, _IDLE_MOVES = 15, 5
#: No device computes in float8 itself: kernels widen it, at least to this.
_NARROWEST_ARITHMETIC = epsilon("bfloat16")


@dataclass
class Content:
    """One content with the form that outputs must have for it.

    Attributes:
        distribution: what was drawn.
        contents: per tensor, its span of memory.
        metas: of the outputs.
        structure: digest of the outputs' containers.
        aliased: outputs that the reference itself returns as views of its inputs.
        signs: some inputs have negative values although no draw of ``get_inputs`` has any.
    """

    distribution: str
    contents: list[Array]
    metas: tuple[TensorMeta, ...]
    structure: int
    aliased: frozenset[int]
    signs: bool = field(default=False, kw_only=True)


@dataclass
class OwnResult(Content):
    """The reference's own result, in full precision: per output, its span of memory."""

    spans: list[Array]


@dataclass
class Case(Content):
    """The expectation for every output.

    Attributes:
        expected: per output.
        moved_as: how the oracle was asked for moved inputs; None if it was not.
    """

    expected: list[Expected]
    moved_as: dict[str, Any] | None = None


def own_result(shape: OpenShape, name: str, contents: list[Array]) -> OwnResult:
    """The reference's own result for given contents."""
    side = shape.side
    block = side.call([contents], strict=True)
    report = block.report
    return OwnResult(
        name, contents, report.metas, report.structure, side.aliased(block), side.outputs(block, 0)
    )


def case_of(
    shape: OpenShape,
    result: OwnResult,
    *,
    rows: Rows | None = None,
    in_slot: bool = False,
) -> Case:
    """Expectations for a content for which the reference's own result is known.

    Args:
        shape: where.
        result: the reference's own.
        rows: rows and tensors that the result is for, see :meth:`evaluator.referee.sides.side.Side.oracle`; None
            for all.
        in_slot: the content is in the reference's first slot already.
    """
    name, metas = result.distribution, result.metas
    own = [widen(dense(span, meta), meta.dtype) for span, meta in zip(result.spans, metas, strict=True)]
    contents = None if in_slot else result.contents
    oracle = _ask_oracle(shape, contents, metas, own, rows)
    # As a rule, a sum runs over a dimension of an input. The module's inner structure is not known here.
    terms = max((size for tensor in shape.inputs.tensors for size in tensor.meta.shape), default=1)
    # What a weight is multiplied with is summed over all but its first dimension: channels times window in a
    # convolution.
    terms = max(terms, *(math.prod(entry.meta.shape[1:]) for entry in shape.inputs.state), 1)
    if shape.inputs.call.backward:
        # Gradients of parameters are sums over whole inputs.
        terms = max(terms, *(tensor.meta.elements for tensor in shape.inputs.tensors))
    usual = shape.checks.usual
    names = [shape.inputs.name_of(i, len(metas)) for i in range(len(metas))]
    mode = judged(shape.precision, name, signs=result.signs)
    expected = [
        expect(
            meta.dtype,
            meta.shape,
            oracle.exact[i],
            own[i],
            oracle.moved[i] if oracle.moved is not None else None,
            terms,
            usual[i] if i < len(usual) and name not in OWN_INPUTS else 0.0,
            moved_share=_share(meta.dtype, oracle.step),
            equal_terms=name == _EQUAL_TERMS,
            tiered=[values[i] for values in oracle.tiered],
            alternatives=[values[i] for values in oracle.alternatives],
            judged=_of_gradient(mode) if names[i].startswith("gradient") else mode,
            chance_slack=CHANCE_SLACK_FP8 if shape.precision == "fp8" else CHANCE_SLACK,
        )
        for i, meta in enumerate(metas)
    ]
    if not usual and name in OWN_INPUTS:
        shape.checks.usual = [one.rms for one in expected]
    return Case(
        name,
        result.contents,
        metas,
        result.structure,
        result.aliased,
        expected,
        oracle.moved_as,
        signs=result.signs,
    )


def compare_all(
    shape: OpenShape,
    case: Case,
    values: list[Array],
    *,
    slack: float = 1.0,
    rows: Rows | None = None,
    in_slot: bool = False,
) -> list[Comparison]:
    """Compares all outputs with a case. If one is slightly wrong, the oracle is asked first how far more moves go.

    The case stays as it is: what one candidate's outputs made the referee ask must not help the next.

    Args:
        shape, rows, in_slot: as for :func:`case_of`; the reference has the weights that it had then.
        case: the expectation.
        values: per output, flat.
        slack: see :func:`evaluator.oracle.compare.compare`.
    """
    expected = case.expected
    found = _compared(expected, values, slack)
    allowed = [one.moved_bound for one in expected]
    moves, idle, weights = 0, 0, True
    while case.moved_as and moves < _MOST_MOVES and idle < _IDLE_MOVES and _are_slightly_wrong(found):
        moved = _moved_again(shape, case, rows, in_slot=in_slot, weights=weights)
        if moved is None:
            if not weights:
                break
            weights = False  # such weights cannot be moved, or there is no room for them
            continue
        pairs = zip(case.expected, moved, allowed, strict=True)
        allowed = [_larger(one.allowed_for(other), known) for one, other, known in pairs]
        expected = [one.widened(most) for one, most in zip(case.expected, allowed, strict=True)]
        before, found = found, _compared(expected, values, slack)
        moves, idle = moves + 1, idle + 1 if _worst(found) > 0.99 * _worst(before) else 0
    return found


def _compared(expected: list[Expected], values: list[Array], slack: float) -> list[Comparison]:
    return [compare(v, e, slack=slack) for v, e in zip(values, expected, strict=True)]


def _are_slightly_wrong(found: list[Comparison]) -> bool:
    """Whether some outputs are wrong, and those in single elements by little."""
    wrong = [one for one in found if not one.ok]
    return bool(wrong) and all(one.wrong is not None and one.ratio < WIDEST for one in wrong)


def _worst(found: list[Comparison]) -> float:
    return max(one.ratio for one in found)


def _larger(one: Array | None, other: Array | None) -> Array | None:
    return one if one is None or other is None else space(one).maximum(one, other)


def _moved_again(
    shape: OpenShape, case: Case, rows: Rows | None, *, in_slot: bool, weights: bool
) -> list[Array] | None:
    """The oracle's results for another move of the inputs, and of the weights; None if the reference does not take it."""
    assert case.moved_as is not None
    move = {**case.moved_as["move"], "seed": secrets.randbits(62)}
    # What the module itself computes is for its own weights.
    if weights and case.moved_as["tier"] != OWN_RESULT:
        move["weights"] = _coarsest(case.metas)
    kind = {**case.moved_as, "move": move}
    with suppress(RoleReported):
        for _, moved in _answers(
            shape, None if in_slot else case.contents, {"moved": kind}, case.metas, rows
        ):
            return moved
    return None


def difference(case: Case, metas: tuple[TensorMeta, ...], spans: list[Array]) -> str:
    """What is wrong with outputs for a content, in words; empty if they are right."""
    if len(metas) != len(case.metas):
        return f"it returns {counted(len(metas), 'tensor')}, the reference returns {len(case.metas)}"
    for span, meta, wanted, expected in zip(spans, metas, case.metas, case.expected, strict=True):
        if words := contract(meta, wanted) or compare(dense(span, meta), expected).words:
            return words
    return ""


def judged(precision: str, name: str, *, signs: bool) -> str:
    """Which output values count for a distribution, see :class:`evaluator.oracle.tolerance.Expected`."""
    if name in _LARGE_VALUES and precision not in ("default", "strict", "tf32"):
        # With large numbers under an exponential, the few bits of these tiers decide by chance which element wins.
        return "finiteness"
    return "where_finite" if signs else "everywhere"


def _of_gradient(mode: str) -> str:
    """A gradient of such inputs is a difference of large products: one rounding of an element that is steady moves it
    by more than its own size.
    """
    return "finiteness_alone" if mode == "finiteness" else mode


@dataclass
class _Oracle:
    """The oracle's results for one content, per output.

    They are: exact, on moved inputs, in the task's tier (the oracle with rounded operands, and the reference
    itself), and alternatives that are as right.
    """

    exact: list[Array]
    moved: list[Array] | None = None
    moved_as: dict[str, Any] | None = None
    step: float = 0.0
    tiered: list[list[Array]] = field(default_factory=list)
    alternatives: list[list[Array]] = field(default_factory=list)


def _ask_oracle(
    shape: OpenShape,
    contents: list[Array] | None,
    metas: tuple[TensorMeta, ...],
    own: list[Array],
    rows: Rows | None,
) -> _Oracle:
    steps = _steps(shape, metas)
    move = {"steps": steps, "seed": secrets.randbits(62), "sign": 1}
    rounded = any(not is_inexact(meta.dtype) for meta in metas)
    kinds: dict[str, dict[str, Any]] = {"exact": {"tier": "strict", "move": None}}
    if any(steps):
        kinds["moved"] = {"tier": "strict", "move": move}
    if any(steps) and rounded:
        kinds["opposite"] = {"tier": "strict", "move": {**move, "sign": -1}}
    if rounds_operands(shape.precision, gpu=shape.side.gpu):
        kinds["tiered"] = {"tier": shape.precision, "move": None}
        kinds["own_tiered"] = {"tier": OWN_IN_TIER, "move": None}
    known: dict[str, list[Array]] = {}
    try:
        for name, values in _answers(shape, contents, kinds, metas, rows):
            known[name] = values
    except RoleReported as failure:
        if shape.own_oracle:
            raise RoleFailure(
                "task_rejected", f"the task's own oracle() failed: {failure.sentence}", role="reference"
            ) from None
        # Memory figures vary from run to run.
        why = "it does not fit on this device" if failure.word == "out_of_memory" else failure.sentence
        shape.checks.note("no_float64_oracle", f"the reference does not run in float64: {why}")
        left = {name: kinds[name] for name in ("own_tiered",) if name in kinds and name not in known}
        # A smaller step is lost in the input's own dtype.
        pairs = zip(steps, shape.inputs.tensors, strict=True)
        # Whole numbers have no step and no spacing.
        own_steps = [step if step and step >= epsilon(tensor.meta.dtype) else 0.0 for step, tensor in pairs]
        if "exact" not in known and any(own_steps):
            # The reference's own result counts as exact now, and its result for moved inputs says how far rounding moves it. Where
            # large terms cancel, convolutions more accurate than the reference were called wrong without this (H200).
            for name in ("moved", "opposite") if rounded else ("moved",):
                left[name] = kinds[name] = {
                    "tier": OWN_RESULT,
                    "move": {**kinds[name]["move"], "steps": own_steps},
                }
        for name, kind in left.items():
            # What the tier and rounding allow must not be lost with float64.
            with suppress(RoleReported):
                known |= _answers(shape, contents, {name: kind}, metas, rows)
    return _Oracle(
        known.get("exact", own),
        known.get("moved"),
        kinds["moved"] if "moved" in known else None,
        max(steps, default=0.0),
        [known[name] for name in ("tiered", "own_tiered") if name in known],
        [known[name] for name in ("exact", "moved", "opposite") if name in known] if rounded else [],
    )


def _answers(
    shape: OpenShape,
    contents: list[Array] | None,
    kinds: dict[str, dict[str, Any]],
    metas: tuple[TensorMeta, ...],
    rows: Rows | None,
) -> Iterator[tuple[str, list[Array]]]:
    """The oracle's results for each kind, in order, with as few requests as possible.

    Raises:
        RoleReported: one fails; those before it have been reported.
    """
    side, todo = shape.side, list(kinds.items())
    most = side.most_kinds(metas)
    while todo:
        asked = todo[:most]
        if contents is not None:
            side.write(0, contents)
        try:
            answers = side.oracle([kind for _, kind in asked], rows)
        except RoleReported:
            if len(asked) == 1:
                raise
            # Some may work alone although all together were too large. Try one by one.
            most = 1
            continue
        yield from ((name, _read(values, metas)) for (name, _), values in zip(asked, answers, strict=True))
        todo = todo[most:]


def _read(values: list[Array], metas: tuple[TensorMeta, ...]) -> list[Array]:
    """The oracle's values, widened. Integer and boolean outputs keep the reference's dtype."""
    if len(values) != len(metas) or any(
        space(value).size(value) != meta.elements for value, meta in zip(values, metas, strict=True)
    ):
        raise RoleFailure(
            "task_rejected",
            "the oracle returns shapes that differ from the reference's: return the same",
            role="reference",
        )
    return [space(value).read_as(value, meta.dtype) for value, meta in zip(values, metas, strict=True)]


def _steps(shape: OpenShape, metas: tuple[TensorMeta, ...]) -> list[float]:
    """One relative rounding error per input tensor: of the finer of its own dtype and the coarsest output's.

    Inputs are exact as given. Rounding happens to what a module computes from them, and a float8 that is widened
    first is not rounded like a float8.
    """
    coarsest = _coarsest(metas)
    return [
        min(epsilon(tensor.meta.dtype), coarsest) if is_inexact(tensor.meta.dtype) else 0.0
        for tensor in shape.inputs.tensors
    ]


def _coarsest(metas: tuple[TensorMeta, ...]) -> float:
    """The largest relative rounding error of an output, but none that no device computes with."""
    results = [epsilon(meta.dtype) for meta in metas if is_inexact(meta.dtype)]
    return min(max(results, default=1.0), _NARROWEST_ARITHMETIC)


def _share(dtype: str, step: float) -> float:
    """How much of the change from moved inputs is due to an output of this dtype."""
    return min(1.0, epsilon(dtype) / step) if step and is_inexact(dtype) else 1.0
