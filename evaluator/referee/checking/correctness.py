"""Correctness at one shape: both sides get the same fresh contents, and the float64 oracle compares the outputs.

Contents go to the same addresses every time. Allocations are poisoned. Outputs must survive two later calls, and
inputs must come back unchanged. A wrong answer that is right for an *earlier* content is reported as cached. One
content is repeated to see whether the module agrees with itself.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from evaluator.content import distributions
from evaluator.counting import counted
from evaluator.errors import RoleExited, RoleFailure, RoleReported, RoleTimeout
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.compare import Comparison, compare, contract, dense, widen
from evaluator.oracle.numbers import is_inexact
from evaluator.oracle.places import Places, places
from evaluator.oracle.tolerance import Expected, as_rows
from evaluator.precision import TIERS
from evaluator.referee.session.expectation import (
    OWN_INPUTS,
    Case,
    Content,
    OwnResult,
    case_of,
    compare_all,
    own_result,
)
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import CALL_SECONDS, Side
from evaluator.verdict import Finding

_LARGE_BYTES = 2 << 20
_CACHED_ELEMENTS = 1 << 18
#: Contents of both signs are used only if at least this share of the reference's output is not NaN.
_LEAST_NUMBERS = 0.5
_Result = TypeVar("_Result")
#: Memory limit over all shapes of a task. One shape at the limit above takes about 30 MB, and up to 160 are
#: open at a time.
_CACHED_BYTES = 256 << 20


def cases(session: TaskSession, shape: OpenShape) -> list[Case]:
    """Contents and expectations for a shape.

    Small ones are reused for the next candidate, which has not seen them.
    """
    if shape.checks.cases:
        return shape.checks.cases
    names = distributions.names(shape.inputs.tensors)
    if shape.inputs.input_bytes > _LARGE_BYTES:
        # Draw only two anew for each candidate: a float64 oracle at a large shape is slow.
        names = ["task", names[1 + secrets.randbelow(len(names) - 1)]]
    made = [own_case(shape)]
    for name in names[1:]:
        if name == "task" and any(tensor.rollable for tensor in shape.inputs.tensors):
            # Change a few elements of the first one. A cached answer looked up by the rest would miss that.
            made.append(case_of(shape, _nearly(shape, made[0])))
        elif case := make_case(shape, name):
            made.append(case)
    elements = sum(meta.elements for meta in made[0].metas) + sum(
        tensor.size for tensor in shape.inputs.tensors
    )
    made_bytes = sum(map(_bytes_of, made))
    kept_bytes = sum(one.checks.cases_bytes for one in session.shapes.values())
    if elements <= _CACHED_ELEMENTS and kept_bytes + made_bytes <= _CACHED_BYTES:
        shape.checks.cases, shape.checks.cases_bytes = made, made_bytes
    return made


def _bytes_of(case: Case) -> int:
    """Bytes of a case's contents and expected outputs."""
    arrays = [*case.contents, *(value for one in case.expected for value in vars(one).values())]
    return sum(int(getattr(array, "nbytes", 0)) for array in arrays)


def make_case(shape: OpenShape, name: str) -> Case | None:
    """Draws one content and gets the reference's own result and the float64 result.

    None if the reference refuses it.
    """
    result = try_signs(shape, name, partial(_drawn, shape, name), _share_of_numbers)
    if result is None:
        note_left_out(shape, name)
        return None
    return case_of(shape, result)


def note_left_out(shape: OpenShape, name: str) -> None:
    """Notes that candidates are not tested with this distribution."""
    words = (
        f"the reference raises for {name.replace('_', ' ')} inputs, so the candidate was not tested with them"
    )
    shape.checks.note("inputs_left_out", words)


def _nearly(shape: OpenShape, case: Case) -> OwnResult:
    contents = [
        tensor.slightly_changed(content)
        for tensor, content in zip(shape.inputs.tensors, case.contents, strict=True)
    ]
    return own_result(shape, "task", contents)


def own_case(shape: OpenShape) -> Case:
    """The same for the task's own distribution."""
    return case_of(shape, fresh(shape))


def fresh(shape: OpenShape) -> OwnResult:
    """Draws one content of the task's own distribution and gets the reference's own result."""
    return _drawn(shape, "task", signs=False)


def _drawn(shape: OpenShape, name: str, *, signs: bool) -> OwnResult:
    shape.side.fill_from(name, signs=signs)
    return replace(own_result(shape, name, shape.side.contents(0)), signs=signs)


def try_signs(
    shape: OpenShape, name: str, draw: Callable[..., _Result], numbers: Callable[[_Result], float]
) -> _Result | None:
    """A result for contents of both signs. If the module does not accept those, a result for the task's own sign.

    Args:
        shape: where; it remembers that negative inputs are not valid.
        name: of the distribution.
        draw: makes a result, from contents of both signs with ``signs=True``.
        numbers: the share of a result's values that are not NaN.

    Returns:
        None if the reference raises for the distribution.

    Raises:
        RoleFailure: the reference fails on the task's own inputs or cannot continue.
    """
    if name == "task":
        return draw(signs=False)
    may_be_negative = any(tensor.may_be_negative for tensor in shape.inputs.tensors)
    tries = (True, False) if shape.checks.signs and may_be_negative else (False,)
    for signs in tries:
        try:
            result = draw(signs=signs)
        except RoleReported as failure:
            if "device-side assert" in failure.sentence:
                sentence = (
                    f"it does not survive {_in_words(name, signs=signs)} inputs on this device: if it never gets any, declare "
                    'DOMAIN = {"name of the input": "as_drawn"} in the task'
                )
                raise RoleFailure("task_rejected", sentence, role="reference") from None
            if failure.word == "out_of_memory":
                raise
        else:
            if not signs or numbers(result) >= _LEAST_NUMBERS:
                return result
        if signs:
            shape.checks.signs = False
    return None


def _share_of_numbers(result: OwnResult) -> float:
    """The share in the output that has the fewest."""
    shares = [1.0]
    for span, meta in zip(result.spans, result.metas, strict=True):
        values = widen(dense(span, meta), meta.dtype)
        if is_inexact(meta.dtype) and meta.elements:
            shares.append(float(space(values).isfinite(values).sum()) / meta.elements)
    return min(shares)


def _in_words(name: str, *, signs: bool) -> str:
    return name.replace("_", " ") + (", partly negative" if signs else "")


def check(side: Side, shape: OpenShape, todo: list[Case], outcome: Outcome) -> None:
    """Runs the candidate on each case and compares.

    Raises:
        Rejected: at the first wrong thing.
    """
    earlier: list[tuple[Block, list[Array], Case]] = []
    todo, repeated = _with_repeat(todo)
    first: list[Array] = []
    for case in todo:
        block, spans = call(side, shape, case, outcome)
        values = values_of(block, spans)
        _compare(shape, case, values, outcome, [entry[2] for entry in earlier])
        if case is repeated:
            if first:
                outcome.unsteady = outcome.unsteady or _difference(first, values, shape)
            first = values
        _check_survival(side, earlier, shape)
        earlier.append((block, spans, case))
    side.process.freeze()


def check_again(
    side: Side,
    shape: OpenShape,
    outcome: Outcome,
) -> None:
    """One more call after those at other shapes, with a fresh content of the task's own distribution.

    The requirements are those of :func:`check`. Values are first compared with the reference's own result within
    the bounds that :func:`check` found. The float64 oracle runs only if they differ, and it decides.

    Args:
        side: the candidate's.
        shape: where it has been checked.
        outcome: of that check.

    Raises:
        Rejected: at the first wrong thing.
    """
    result = fresh(shape)
    block, spans = call(side, shape, result, outcome)
    if side.agree(spans, block.report.metas, result.spans, result.metas, outcome.bounds, thorough=True):
        outcome.checks += 1
    else:
        _compare(shape, case_of(shape, result), values_of(block, spans), outcome, shape.checks.cases)
    side.process.freeze()


def call(side: Side, shape: OpenShape, content: Content, outcome: Outcome) -> tuple[Block, list[Array]]:
    """Calls the candidate with a content and returns its outputs after checking their form."""
    poison = 1 + secrets.randbelow(254)
    block = with_deadline(
        side, outcome, lambda deadline_s: side.call([content.contents], deadline_s, poison=poison, keep=True)
    )
    check_form(side, block, content)
    spans = side.outputs(block, 0)
    if not side.holds(0, content.contents):
        raise changes_inputs(shape)
    return block, spans


def with_deadline(side: Side, outcome: Outcome, call: Callable[[float], Block]) -> Block:
    """Makes a call of the candidate with its deadline in seconds, and notes how long the first one took."""
    paused_s = side.process.paused_s
    block = call(CALL_SECONDS if outcome.checks else side.first_call_seconds)
    paused_s = side.process.paused_s - paused_s
    outcome.first_call_s = outcome.first_call_s or block.elapsed_ns / 1e9 - paused_s
    return block


def changes_inputs(shape: OpenShape) -> Rejected:
    """The rejection for inputs that did not come back unchanged."""
    sentence = f"it changes its inputs (seen at {shape.where}): write results into new tensors"
    return Rejected("contract_violation", "input_mutated", sentence)


def values_of(block: Block, spans: list[Array]) -> list[Array]:
    """The values of the outputs, flat."""
    return [dense(span, meta) for span, meta in zip(spans, block.report.metas, strict=True)]


def _compare(
    shape: OpenShape, case: Case, values: list[Array], outcome: Outcome, earlier: list[Case]
) -> None:
    """Raises Rejected if values differ from the oracle's."""
    comparisons = compare_all(shape, case, values)
    record(outcome, comparisons, case)
    for comparison in comparisons:
        if not comparison.ok:
            raise wrong(shape, case, comparison, values, earlier)


def _with_repeat(todo: list[Case]) -> tuple[list[Case], Case | None]:
    """The cases, with one of them repeated later."""
    if len(todo) < 2:
        return todo, None
    place = secrets.randbelow(len(todo))
    again = place + 1 + secrets.randbelow(len(todo) - place)
    return [*todo[:again], todo[place], *todo[again:]], todo[place]


def _difference(first: list[Array], second: list[Array], shape: OpenShape) -> str:
    """How two results for the same content differ bit for bit, in words. Empty if they are equal."""
    unequal = [space(a).count_different(a, b) for a, b in zip(first, second, strict=True)]
    if not any(unequal):
        return ""
    return (
        f"at {shape.where} the same inputs gave {counted(sum(unequal), 'element')} different from the first time, "
        "within the tolerance"
    )


def record(outcome: Outcome, comparisons: list[Comparison], case: Case) -> None:
    """Adds comparisons to the record of a shape."""
    outcome.checks += 1
    outcome.max_ratio = max([outcome.max_ratio, *(c.ratio for c in comparisons)])
    outcome.strict_ratio = max([outcome.strict_ratio, *(c.strict_ratio for c in comparisons)])
    outcome.max_abs = max([outcome.max_abs, *(c.max_abs for c in comparisons if math.isfinite(c.max_abs))])
    if case.distribution not in OWN_INPUTS:
        return  # timed blocks use the task's own inputs, so their tolerance must not be wider than those need
    bounds = [expected.bounds for expected in case.expected]
    outcome.bounds = [
        mine.or_wider(known) for mine, known in zip(bounds, outcome.bounds or bounds, strict=True)
    ]


def first_wrong(
    shape: OpenShape, case: Case, values: list[Array], earlier: Sequence[Case] = (), *, slack: float = 1.0
) -> Rejected | None:
    """The rejection for the first output that differs from the oracle's; None if all are right."""
    for comparison in compare_all(shape, case, values, slack=slack):
        if not comparison.ok:
            return wrong(shape, case, comparison, values, earlier)
    return None


def wrong(
    shape: OpenShape, case: Case, comparison: Comparison, values: list[Array], earlier: Sequence[Case] = ()
) -> Rejected:
    """The rejection for a wrong output: ``stale`` if it is right for an earlier content, otherwise incorrect."""
    at = shape.where
    for old in reversed(earlier):
        if _says_much(old) and all(compare(v, e).ok for v, e in zip(values, old.expected, strict=True)):
            evidence = (
                f"at {at} it returned the answer for inputs it had seen before, although the inputs at the same "
                "addresses had changed: the result was cached, not computed"
            )
            return Rejected("cheating", "stale_output", evidence)
    if all(_constant(v) for v in values) and not all(_constant(e.own) for e in case.expected):
        evidence = f"at {at} on {inputs_in_words(shape, case)} every element of its output is the same value: {comparison.words}"
        return Rejected("incorrect", "constant_output", evidence)
    index = _index(case, values, comparison)
    name = (index is not None and shape.inputs.name_of(index, len(values))) or "result"
    sentence = f"wrong {name} at {at} on {inputs_in_words(shape, case)}: {comparison.words}"
    seen = None if index is None else _places(case.expected[index], values[index], comparison)
    return Rejected("incorrect", "wrong_result", sentence, seen)


def _says_much(case: Case) -> bool:
    """Whether a match proves much: hardly any wrong answer would match this content by chance."""
    return not any(e.judged == "finiteness" or _constant(e.own) for e in case.expected)


def inputs_in_words(shape: OpenShape, content: Content) -> str:
    """Describes a content.

    For contents that get_inputs() does not draw, also how to declare that the module never gets them.
    """
    if content.distribution in OWN_INPUTS:
        mixed = any(tensor.rollable or tensor.turned for tensor in shape.inputs.given)
        return "inputs mixed from draws of get_inputs()" if mixed else "inputs as get_inputs() draws them"
    words = f"{content.distribution.replace('_', ' ')} inputs"
    if not content.signs:
        return words
    return (
        f"{words} of both signs (get_inputs() draws none below zero, which the task does not promise: a task that never gets any "
        'declares DOMAIN = {"input": "non_negative"})'
    )


def _index(case: Case, values: list[Array], comparison: Comparison) -> int | None:
    """The index of the output that a comparison was about. None if it is not known."""
    if len(values) == 1:
        return 0
    wrong: list[int] = []
    for index, (value, expected) in enumerate(zip(values, case.expected, strict=True)):
        found = compare(value, expected)
        if found.words == comparison.words:
            return index
        if not found.ok:
            wrong.append(index)
    # More moves may have widened the bound that the words tell of.
    return wrong[0] if len(wrong) == 1 else None


def _places(expected: Expected, values: Array, comparison: Comparison) -> Places | None:
    """Where and how the output is wrong. None if no single element is, or if nothing useful can be said."""
    if comparison.wrong is None:
        return None
    got = as_rows(widen(values, expected.dtype), expected.shape)
    return places(comparison.wrong, got, expected.exact) or None


def _constant(values: Array) -> bool:
    return bool(space(values).size(values) > 1 and (values == values.reshape(-1)[0]).all())


def check_form(side: Side, block: Block, case: Content) -> None:
    """Checks the outputs' number, containers, dtypes, shapes, strides and memory.

    Raises:
        Rejected: one of them is wrong.
    """
    metas, expected = block.report.metas, case.metas
    if len(metas) != len(expected):
        sentence = f"it returns {counted(len(metas), 'tensor')}, the reference returns {len(expected)}: return as many"
        raise Rejected("contract_violation", "output_count", sentence)
    if block.report.structure != case.structure:
        sentence = (
            "its outputs have other containers (or other plain values beside them) than the reference's: return the same types of "
            "containers (a list is not a tuple, a tuple is not a named tuple; name and fields count), the same keys and plain values"
        )
        raise Rejected("contract_violation", "output_structure", sentence)
    for meta, wanted in zip(metas, expected, strict=True):
        broken = contract(meta, wanted)
        if broken:
            raise Rejected("contract_violation", "output_contract", broken)
    if side.aliased(block) - case.aliased:
        sentence = (
            "it returns a view of its input's memory instead of a fresh tensor: return a copy (.clone())"
        )
        raise Rejected("contract_violation", "output_aliases_input", sentence)


def _check_survival(side: Side, earlier: list[tuple[Block, list[Array], Case]], shape: OpenShape) -> None:
    """The outputs of the last two calls must be unchanged."""
    last = earlier[:-3:-1]
    try:
        later = side.outputs_later([block for block, _, _ in last], CALL_SECONDS)
    except RoleFailure as failure:
        # Copies that do not fit in memory do not prove overwritten outputs. The caller decides whose fault
        # that is and what to try next.
        if isinstance(failure, RoleTimeout | RoleExited) or failure.word == "out_of_memory":
            raise
        later = [[]] * len(last)
    for now, (_, spans, case) in zip(later, last, strict=True):
        if len(now) != len(spans) or any(
            index not in case.aliased and space(a).count_different(a, b)
            for index, (a, b) in enumerate(zip(now, spans, strict=True))
        ):
            sentence = (
                f"at {shape.where} an output was overwritten by a later call: results must be fresh tensors, "
                "allocated in each call"
            )
            raise Rejected("contract_violation", "output_overwritten", sentence)


def remarks(outcomes: list[Outcome], tier: str) -> list[Finding]:
    """Notes about a correct candidate that are not faults."""
    found = []
    unsteady = [outcome.unsteady for outcome in outcomes if outcome.unsteady]
    if unsteady:
        found.append(Finding("nondeterministic", "info", unsteady[0]))
    strict = max((outcome.strict_ratio for outcome in outcomes), default=0.0)
    if strict > 1.0:
        evidence = (
            f"its largest error is {strict:.3g} times the strict float32 tolerance and within the tolerance of precision "
            f"{tier} allows ({TIERS[tier].words}): it computes in lower precision"
        )
        found.append(Finding("precision_change", "info", evidence))
    return found
