"""Correctness at one shape: the same fresh contents on both sides, compared with the float64 oracle.

Contents go to the same addresses every time, allocations are poisoned, outputs must survive two later calls, inputs
must come back unchanged, and a wrong answer that is right for an *earlier* content is called what it is. One content comes
a second time, to see whether the module agrees with itself.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.content import distributions
from evaluator.errors import RoleFailure, RoleReported
from evaluator.oracle.compare import Comparison, compare, contract, dense, widen
from evaluator.oracle.numbers import Array, epsilon, is_inexact
from evaluator.oracle.tolerance import Expected, expect
from evaluator.referee.side import Block, Side
from evaluator.referee.task_session import OpenShape, TaskSession
from evaluator.roles.arena import carrier
from evaluator.roles.frames import TensorMeta
from evaluator.verdict import Finding

_CALL_SECONDS = 60.0
#: Names of cases whose contents come from the task's own distribution.
_OWN_INPUTS = ("task", "timed")
#: The case in which all terms of a sum over a row are equal.
_EQUAL_TERMS = "constant_rows"
_FIRST_CALL_SECONDS = 120.0
_LARGE_BYTES = 2 << 20
_CACHED_ELEMENTS = 1 << 18
#: Nothing computes in float8 itself: kernels widen it, at least to this.
_NARROWEST_ARITHMETIC = epsilon("bfloat16")


class Rejected(Exception):
    """The candidate is rejected: word, sentence and findings."""

    def __init__(self, word: str, sentence: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(sentence)
        self.word = word
        self.sentence = sentence
        self.findings = findings


@dataclass
class Case:
    """One content with what every output must be.

    Attributes:
        distribution: what was drawn.
        contents: per tensor, its span of memory.
        metas: of the outputs.
        expected: their values.
        structure: digest of the containers that they stand in.
        aliased: outputs that the reference itself returns as views of its inputs.
    """

    distribution: str
    contents: list[Array]
    metas: tuple[TensorMeta, ...]
    expected: list[Expected]
    structure: int = 0
    aliased: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """What the checks at one shape saw.

    Attributes:
        max_ratio: largest error over its bound.
        max_abs: largest absolute error.
        bounds: per output the widest bound that the task's own inputs need.
        checks: calls that were compared.
        first_call_s: seconds that the first call took.
        strict_ratio: largest error over the bound of strict arithmetic; above 1 only in a lower precision tier.
        unsteady: words about a content whose second result differed from its first, empty if none did.
    """

    max_ratio: float = 0.0
    max_abs: float = 0.0
    bounds: list[float] = field(default_factory=list)
    checks: int = 0
    first_call_s: float = 0.0
    strict_ratio: float = 0.0
    unsteady: str = ""


def cases(session: TaskSession, shape: OpenShape, findings: list[Finding]) -> list[Case]:
    """Contents and expectations for a shape. Small ones are kept for the next candidate, which has never seen them."""
    if "cases" in shape.checks:
        kept: list[Case] = shape.checks["cases"]
        return kept
    names = distributions.names(shape.inputs.tensors)
    if session.precision not in ("fp32", "tf32"):
        # Where a heavy tail meets an exponential, the few bits of these tiers decide by chance which element wins.
        names = [name for name in names if name != "wide_range"]
    if shape.inputs.input_bytes > _LARGE_BYTES:
        # Two of them, drawn anew for every candidate: a float64 oracle of a large shape takes a while.
        names = ["task", names[1 + secrets.randbelow(len(names) - 1)]]
    made = [make_case(session, shape, name, findings) for name in names]
    elements = sum(meta.elements for meta in made[0].metas) + sum(c.size for c in made[0].contents)
    if elements <= _CACHED_ELEMENTS:
        shape.checks["cases"] = made
    return made


def make_case(session: TaskSession, shape: OpenShape, name: str, findings: list[Finding]) -> Case:
    """Draws one content and asks the reference role for its own result and the float64 one."""
    side = shape.side
    side.fill_from(name)
    return case_of(session, shape, name, side.contents(0), findings)


def case_of(
    session: TaskSession, shape: OpenShape, name: str, contents: list[Array], findings: list[Finding]
) -> Case:
    """Expectations for given contents."""
    side = shape.side
    side.ready(_CALL_SECONDS)
    side.write(0, contents)
    block = side.block([0], _CALL_SECONDS, strict=True)
    metas = block.report.metas
    own = [
        widen(dense(span, meta), meta.dtype)
        for span, meta in zip(side.outputs(block, 0, _CALL_SECONDS), metas, strict=True)
    ]
    oracle = _ask_oracle(session, shape, contents, metas, own, findings)
    # A sum runs over a dimension of an input as a rule; how the module is built inside is not known here.
    terms = max((size for tensor in shape.inputs.tensors for size in tensor.meta.shape), default=1)
    if shape.inputs.call.backward:
        # Gradients of parameters are sums over whole inputs.
        terms = max(terms, *(tensor.meta.elements for tensor in shape.inputs.tensors))
    usual: list[float] = shape.checks.get("usual", [])
    expected = [
        expect(
            meta.dtype,
            meta.shape,
            oracle.exact[i],
            own[i],
            oracle.moved[i] if oracle.moved is not None else None,
            terms,
            usual[i] if i < len(usual) and name not in _OWN_INPUTS else 0.0,
            moved_share=_share(meta.dtype, oracle.step),
            equal_terms=name == _EQUAL_TERMS,
            tiered=oracle.tiered[i] if oracle.tiered is not None else None,
            alternatives=[values[i] for values in oracle.alternatives],
        )
        for i, meta in enumerate(metas)
    ]
    if not usual and name in _OWN_INPUTS:
        shape.checks["usual"] = [one.rms for one in expected]
    return Case(name, contents, metas, expected, block.report.structure, _aliased(side, block))


@dataclass
class _Oracle:
    """What the oracle says of one content, per output: exact, on moved inputs, in the task's tier, and what is as right."""

    exact: list[Array]
    moved: list[Array] | None = None
    step: float = 0.0
    tiered: list[Array] | None = None
    alternatives: list[list[Array]] = field(default_factory=list)


def _ask_oracle(
    session: TaskSession,
    shape: OpenShape,
    contents: list[Array],
    metas: tuple[TensorMeta, ...],
    own: list[Array],
    findings: list[Finding],
) -> _Oracle:
    side = shape.side

    def ask(**how: Any) -> list[Array]:
        side.write(0, contents)
        return _read(side.oracle(0, _CALL_SECONDS, **how), metas)

    oracle = _Oracle(own)
    try:
        oracle.exact = ask()
        steps = _steps(shape, metas)
        oracle.step = max(steps, default=0.0)
        move = {"steps": steps, "seed": secrets.randbits(62), "sign": 1}
        oracle.moved = ask(move=move)
        if not all(is_inexact(meta.dtype) for meta in metas):
            oracle.alternatives = [oracle.exact, oracle.moved, ask(move={**move, "sign": -1})]
        if session.precision != "fp32":
            oracle.tiered = ask(tier=session.precision)
    except RoleReported as failure:
        what = "the task's oracle" if session.own_oracle else "the reference"
        note = Finding("no_float64_oracle", "info", f"{what} does not run in float64: {failure.sentence}")
        if session.own_oracle:
            raise RoleFailure(
                "task_rejected", f"the task's own oracle() failed: {failure.sentence}", role="reference"
            ) from None
        if note not in findings:
            findings.append(note)
    return oracle


def _read(values: list[Array], metas: tuple[TensorMeta, ...]) -> list[Array]:
    """The oracle's values, widened; those of integer and boolean outputs in the reference's own dtype."""
    if len(values) != len(metas) or any(v.size != m.elements for v, m in zip(values, metas, strict=True)):
        raise RoleFailure(
            "task_rejected", "the oracle returns other shapes than the reference", role="reference"
        )
    wide = {True: np.dtype(np.complex128), False: np.dtype(np.float64)}
    return [
        value.astype(
            wide[meta.dtype.startswith("complex")] if is_inexact(meta.dtype) else carrier(meta.dtype)
        )
        for value, meta in zip(values, metas, strict=True)
    ]


def _steps(shape: OpenShape, metas: tuple[TensorMeta, ...]) -> list[float]:
    """One rounding error per input tensor, relative: of the finer of its own dtype and the coarsest output's.

    Inputs are exact as they are given; what is rounded is what a module makes of them, and a float8 that is widened
    first is not rounded like a float8.
    """
    results = [epsilon(meta.dtype) for meta in metas if is_inexact(meta.dtype)]
    coarsest = min(max(results, default=1.0), _NARROWEST_ARITHMETIC)
    return [
        min(epsilon(tensor.meta.dtype), coarsest) if is_inexact(tensor.meta.dtype) else 0.0
        for tensor in shape.inputs.tensors
    ]


def _share(dtype: str, step: float) -> float:
    """How much of what moved inputs do is due to an output of this dtype."""
    return min(1.0, epsilon(dtype) / step) if step and is_inexact(dtype) else 1.0


def check(side: Side, shape: OpenShape, todo: list[Case], outcome: Outcome) -> None:
    """Runs the candidate on each case and compares.

    Raises:
        Rejected: with the first thing that is wrong.
    """
    earlier: list[tuple[Block, list[Array], Case]] = []
    todo, repeated = _with_repeat(todo)
    first: list[Array] = []
    for case in todo:
        side.ready(_CALL_SECONDS, poison=1 + secrets.randbelow(255), keep=True)
        side.write(0, case.contents)
        # The first call of a process may load libraries or compile.
        deadline_s = _CALL_SECONDS if outcome.checks else _FIRST_CALL_SECONDS
        block = side.block([0], deadline_s)
        outcome.first_call_s = outcome.first_call_s or block.elapsed_ns / 1e9
        spans = _checked_outputs(side, block, case)
        if not side.holds(0, case.contents):
            raise Rejected(
                "contract_violation", "it changes its inputs", _finding("input_mutated", "error", shape)
            )
        values = [dense(span, meta) for span, meta in zip(spans, block.report.metas, strict=True)]
        comparisons = [compare(v, e) for v, e in zip(values, case.expected, strict=True)]
        record(outcome, comparisons, case)
        for comparison in comparisons:
            if not comparison.ok:
                raise wrong(shape, case, comparison, values, [entry[2] for entry in earlier])
        if case is repeated:
            if first:
                outcome.unsteady = outcome.unsteady or _difference(first, values, shape)
            first = values
        if not side.gpu:
            _check_survival(side, earlier, shape)
        earlier.append((block, spans, case))
    side.process.freeze()


def _with_repeat(todo: list[Case]) -> tuple[list[Case], Case | None]:
    """The cases with one of them a second time, somewhere later."""
    if len(todo) < 2:
        return todo, None
    place = secrets.randbelow(len(todo))
    again = place + 1 + secrets.randbelow(len(todo) - place)
    return [*todo[:again], todo[place], *todo[again:]], todo[place]


def _difference(first: list[Array], second: list[Array], shape: OpenShape) -> str:
    """In words, how two results for the same content differ bit by bit; empty when they do not."""
    unequal = [
        int((a.view(f"V{a.itemsize}") != b.view(f"V{b.itemsize}")).sum())
        for a, b in zip(first, second, strict=True)
    ]
    if not any(unequal):
        return ""
    return (
        f"at {_where(shape)} the same inputs gave {sum(unequal)} elements that differ from the first time, all of them "
        "within the tolerance"
    )


def record(outcome: Outcome, comparisons: list[Comparison], case: Case) -> None:
    """Adds comparisons to what was seen at a shape."""
    outcome.checks += 1
    outcome.max_ratio = max([outcome.max_ratio, *(c.ratio for c in comparisons)])
    outcome.strict_ratio = max([outcome.strict_ratio, *(c.strict_ratio for c in comparisons)])
    outcome.max_abs = max([outcome.max_abs, *(c.max_abs for c in comparisons if np.isfinite(c.max_abs))])
    if case.distribution not in _OWN_INPUTS:
        return  # timed blocks get the task's own inputs, and no more room than those need
    bounds = [expected.typical_bound for expected in case.expected]
    outcome.bounds = [max(pair) for pair in zip(outcome.bounds or bounds, bounds, strict=True)]


def wrong(
    shape: OpenShape, case: Case, comparison: Comparison, values: list[Array], earlier: list[Case]
) -> Rejected:
    """The rejection for a wrong output: stale when it is right for an earlier content, else incorrect."""
    where = _where(shape)
    for old in reversed(earlier):
        if all(compare(v, e).ok for v, e in zip(values, old.expected, strict=True)):
            evidence = (
                f"at {where} it returned the answer for inputs it had seen before, although the inputs at the same "
                "addresses had changed: the result was cached, not computed"
            )
            return Rejected("cheating", evidence, (Finding("stale_output", "cheat", evidence),))
    if all(_constant(v) for v in values) and not all(_constant(e.own) for e in case.expected):
        evidence = f"at {where} every element of its output is the same value: {comparison.words}"
        return Rejected("incorrect", evidence, (Finding("constant_output", "error", evidence),))
    name = _name(shape, case, values, comparison)
    sentence = f"wrong {name} at {where} on {case.distribution.replace('_', ' ')} inputs: {comparison.words}"
    return Rejected("incorrect", sentence, (Finding("wrong_result", "error", sentence),))


def _name(shape: OpenShape, case: Case, values: list[Array], comparison: Comparison) -> str:
    """Which output a comparison was about."""
    for index, (value, expected) in enumerate(zip(values, case.expected, strict=True)):
        if compare(value, expected).words == comparison.words:
            return shape.inputs.name_of(index, len(values)) or "result"
    return "result"


def _constant(values: Array) -> bool:
    return bool(values.size > 1 and (values == values.reshape(-1)[0]).all())


def _checked_outputs(side: Side, block: Block, case: Case) -> list[Array]:
    metas, expected = block.report.metas, case.metas
    if len(metas) != len(expected):
        sentence = f"it returns {len(metas)} tensors, the reference returns {len(expected)}"
        raise Rejected("contract_violation", sentence, (Finding("output_count", "error", sentence),))
    if block.report.structure != case.structure:
        sentence = "its outputs stand in other containers (or beside other plain values) than the reference's"
        raise Rejected("contract_violation", sentence, (Finding("output_structure", "error", sentence),))
    for meta, wanted in zip(metas, expected, strict=True):
        broken = contract(meta, wanted)
        if broken:
            raise Rejected("contract_violation", broken, (Finding("output_contract", "error", broken),))
    if _aliased(side, block) - case.aliased:
        sentence = "it returns a view of its input's memory instead of a fresh tensor"
        raise Rejected("contract_violation", sentence, (Finding("output_aliases_input", "error", sentence),))
    return side.outputs(block, 0, _CALL_SECONDS)


def _aliased(side: Side, block: Block) -> frozenset[int]:
    """Which outputs lie in the memory of the inputs, as far as that can be seen (on a GPU it cannot)."""
    if side.gpu:
        return frozenset()
    maps = Path(f"/proc/{side.process.pid}/maps").read_bytes().splitlines()
    ranges = [line.split(b" ", 1)[0].split(b"-") for line in maps if b"memfd:kernelwright-arena" in line]
    shared = [(int(low, 16), int(high, 16)) for low, high in ranges]
    outputs = zip(block.report.addresses[0], block.report.metas, strict=True)
    return frozenset(
        index
        for index, (address, meta) in enumerate(outputs)
        if any(address < high and address + meta.span_bytes > low for low, high in shared)
    )


def _check_survival(side: Side, earlier: list[tuple[Block, list[Array], Case]], shape: OpenShape) -> None:
    """The outputs of the last two calls must still hold what they held."""
    for block, spans, case in earlier[-2:]:
        try:
            now = side.outputs(block, 0, _CALL_SECONDS)
        except RoleFailure:
            now = []
        if len(now) != len(spans) or any(
            index not in case.aliased and not np.array_equal(a.view(np.uint8), b.view(np.uint8))
            for index, (a, b) in enumerate(zip(now, spans, strict=True))
        ):
            sentence = (
                f"at {_where(shape)} an output was overwritten by a later call: results must be fresh tensors"
            )
            raise Rejected(
                "contract_violation", sentence, (Finding("output_overwritten", "error", sentence),)
            )


def remarks(outcomes: list[Outcome], tier: str) -> list[Finding]:
    """What is no fault of a correct candidate, yet worth knowing."""
    found = []
    unsteady = [outcome.unsteady for outcome in outcomes if outcome.unsteady]
    if unsteady:
        found.append(Finding("nondeterministic", "info", unsteady[0]))
    strict = max((outcome.strict_ratio for outcome in outcomes), default=0.0)
    if strict > 1.0:
        evidence = (
            f"its largest error is {strict:.3g} times what strict float32 arithmetic allows, within what the task's "
            f"PRECISION ({tier}) allows: it computes in lower precision"
        )
        found.append(Finding("precision_change", "info", evidence))
    return found


def _where(shape: OpenShape) -> str:
    return ", ".join(f"{name}={value}" for name, value in shape.dims.items()) or "the task's shape"


def _finding(rule: str, severity: str, shape: OpenShape) -> tuple[Finding, ...]:
    return (Finding(rule, severity, f"seen at {_where(shape)}"),)
