"""Correctness at one shape: the same fresh contents on both sides, compared with the float64 oracle.

Contents go to the same addresses every time, allocations are poisoned, outputs must survive two later calls, inputs
must come back unchanged, and a wrong answer that is right for an *earlier* content is called what it is.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evaluator.content import distributions
from evaluator.errors import RoleFailure, RoleReported
from evaluator.oracle.compare import Comparison, compare, contract, dense, widen
from evaluator.oracle.numbers import Array, epsilon, from_float64, is_floating, to_float64
from evaluator.oracle.tolerance import Expected, expect
from evaluator.referee.side import Block, Side
from evaluator.referee.task_session import OpenShape, TaskSession
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


class Rejected(Exception):
    """The candidate is rejected: word, sentence and findings."""

    def __init__(self, word: str, sentence: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(sentence)
        self.word = word
        self.sentence = sentence
        self.findings = findings


@dataclass
class Case:
    """One content with what every output must be."""

    distribution: str
    contents: list[Array]
    metas: tuple[TensorMeta, ...]
    expected: list[Expected]


@dataclass
class Outcome:
    """What the checks at one shape saw."""

    max_ratio: float = 0.0
    max_abs: float = 0.0
    bounds: list[float] = field(default_factory=list)
    checks: int = 0
    first_call_s: float = 0.0


def cases(session: TaskSession, shape: OpenShape, findings: list[Finding]) -> list[Case]:
    """Contents and expectations for a shape. Small ones are kept for the next candidate, which has never seen them."""
    if "cases" in shape.checks:
        kept: list[Case] = shape.checks["cases"]
        return kept
    names = distributions.names(shape.inputs.tensors)
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
    block = side.block([0], _CALL_SECONDS)
    metas = block.report.metas
    own = [
        widen(dense(span, meta), meta.dtype)
        for span, meta in zip(side.outputs(block, 0, _CALL_SECONDS), metas, strict=True)
    ]
    exact, moved = own, None
    try:
        side.write(0, contents)
        exact = _float64(side.oracle(0, _CALL_SECONDS), metas)
        side.write(0, _moved(shape, contents))
        moved = _float64(side.oracle(0, _CALL_SECONDS), metas)
    except RoleReported as failure:
        note = Finding(
            "no_float64_oracle", "info", f"the reference does not run in float64: {failure.sentence}"
        )
        if note not in findings:
            findings.append(note)
    # A sum runs over a dimension of an input as a rule; how the module is built inside is not known here.
    terms = max((size for tensor in shape.inputs.tensors for size in tensor.meta.shape), default=1)
    # What a weight is multiplied with is summed over all but its first dimension: channels times window in a convolution.
    terms = max(terms, *(math.prod(entry.meta.shape[1:]) for entry in shape.inputs.state), 1)
    usual: list[float] = shape.checks.get("usual", [])
    expected = [
        expect(
            meta.dtype,
            meta.shape,
            exact[i],
            own[i],
            moved[i] if moved is not None else None,
            terms,
            usual[i] if i < len(usual) and name not in _OWN_INPUTS else 0.0,
            equal_terms=name == _EQUAL_TERMS,
        )
        for i, meta in enumerate(metas)
    ]
    if not usual and name in _OWN_INPUTS:
        shape.checks["usual"] = [one.rms for one in expected]
    return Case(name, contents, metas, expected)


def _float64(values: list[Array], metas: tuple[TensorMeta, ...]) -> list[Array]:
    if len(values) != len(metas) or any(v.size != m.elements for v, m in zip(values, metas, strict=True)):
        raise RoleFailure("task_rejected", "the reference returns other shapes in float64", role="reference")
    return [value if value.dtype.kind in "fc" else value.astype(np.float64) for value in values]


def _moved(shape: OpenShape, contents: list[Array]) -> list[Array]:
    """The contents with every floating value moved by one rounding error up or down."""
    generator = np.random.default_rng(secrets.randbits(64))
    moved = []
    for tensor, content in zip(shape.inputs.tensors, contents, strict=True):
        dtype = tensor.meta.dtype
        if is_floating(dtype):
            signs = generator.integers(0, 2, content.size) * 2 - 1
            width = tensor.meta.shape[-1] if tensor.meta.shape else 1
            if width > 1 and tensor.meta.contiguous:
                # A row whose signs happen to be all alike is merely shifted, which a normalization does not notice: one
                # short row in a hundred would be granted no rounding error at all.
                rows = signs.reshape(-1, width)
                rows[:, 0] = -rows[:, 1]
            values = to_float64(content, dtype) * (1.0 + epsilon(dtype) * signs)
            content = from_float64(values, dtype)
        moved.append(content)
    return moved


def check(side: Side, shape: OpenShape, todo: list[Case], outcome: Outcome) -> None:
    """Runs the candidate on each case and compares.

    Raises:
        Rejected: with the first thing that is wrong.
    """
    earlier: list[tuple[Block, list[Array], Case]] = []
    for case in todo:
        side.ready(_CALL_SECONDS, poison=1 + secrets.randbelow(255), keep=True)
        side.write(0, case.contents)
        # The first call of a process may load libraries or compile.
        deadline_s = _CALL_SECONDS if outcome.checks else _FIRST_CALL_SECONDS
        block = side.block([0], deadline_s)
        outcome.first_call_s = outcome.first_call_s or block.elapsed_ns / 1e9
        spans = _checked_outputs(side, block, case.metas)
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
        if not side.gpu:
            _check_survival(side, earlier, shape)
        earlier.append((block, spans, case))
    side.process.freeze()


def record(outcome: Outcome, comparisons: list[Comparison], case: Case) -> None:
    """Adds comparisons to what was seen at a shape."""
    outcome.checks += 1
    outcome.max_ratio = max([outcome.max_ratio, *(c.ratio for c in comparisons)])
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
    sentence = f"wrong result at {where} on {case.distribution.replace('_', ' ')} inputs: {comparison.words}"
    return Rejected("incorrect", sentence, (Finding("wrong_result", "error", sentence),))


def _constant(values: Array) -> bool:
    return bool(values.size > 1 and (values == values.reshape(-1)[0]).all())


def _checked_outputs(side: Side, block: Block, expected: tuple[TensorMeta, ...]) -> list[Array]:
    metas = block.report.metas
    if len(metas) != len(expected):
        sentence = f"it returns {len(metas)} tensors, the reference returns {len(expected)}"
        raise Rejected("contract_violation", sentence, (Finding("output_count", "error", sentence),))
    for meta, wanted in zip(metas, expected, strict=True):
        broken = contract(meta, wanted)
        if broken:
            raise Rejected("contract_violation", broken, (Finding("output_contract", "error", broken),))
    if not side.gpu:
        _check_alias(side, block)
    return side.outputs(block, 0, _CALL_SECONDS)


def _check_alias(side: Side, block: Block) -> None:
    """Outputs may not lie in the memory of the inputs."""
    maps = Path(f"/proc/{side.process.pid}/maps").read_bytes().splitlines()
    ranges = [line.split(b" ", 1)[0].split(b"-") for line in maps if b"memfd:kernelwright-arena" in line]
    shared = [(int(low, 16), int(high, 16)) for low, high in ranges]
    for address, meta in zip(block.report.addresses[0], block.report.metas, strict=True):
        if any(address < high and address + meta.span_bytes > low for low, high in shared):
            sentence = "it returns a view of its input's memory instead of a fresh tensor"
            raise Rejected(
                "contract_violation", sentence, (Finding("output_aliases_input", "error", sentence),)
            )


def _check_survival(side: Side, earlier: list[tuple[Block, list[Array], Case]], shape: OpenShape) -> None:
    """The outputs of the last two calls must still hold what they held."""
    for block, spans, _ in earlier[-2:]:
        try:
            now = side.outputs(block, 0, _CALL_SECONDS)
        except RoleFailure:
            now = []
        if len(now) != len(spans) or any(
            not np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(now, spans, strict=True)
        ):
            sentence = (
                f"at {_where(shape)} an output was overwritten by a later call: results must be fresh tensors"
            )
            raise Rejected(
                "contract_violation", sentence, (Finding("output_overwritten", "error", sentence),)
            )


def _where(shape: OpenShape) -> str:
    return ", ".join(f"{name}={value}" for name, value in shape.dims.items()) or "the task's shape"


def _finding(rule: str, severity: str, shape: OpenShape) -> tuple[Finding, ...]:
    return (Finding(rule, severity, f"seen at {_where(shape)}"),)
