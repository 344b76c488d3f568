"""Finds what a verdict does not cover, after timing: unusual strides, train mode, NaN and Inf, threads.

The candidate need not support any of these. It only must not return wrong numbers. Each gap is reported in the
verdict as a limit, with whether the delivered module guards against it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput
from evaluator.counting import counted
from evaluator.errors import RoleFailure, RoleReported
from evaluator.input_structure import DRAWN
from evaluator.oracle.arrays import space
from evaluator.oracle.compare import widen
from evaluator.oracle.numbers import is_inexact
from evaluator.referee.checking.correctness import call, own_case, values_of
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.expectation import Case, case_of, compare_all, own_result
from evaluator.referee.session.outcome import Rejected, RunState
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol
from evaluator.roles.arena import carrier
from evaluator.verdict import Finding

_SECONDS, _SMALL_BYTES = 60.0, 1 << 20
_WORDS = {
    "strides": "inputs with other strides give {}; the delivered module passes such inputs to the reference",
    "train": "in train mode the reference's result changes and this one does not; the delivered module uses the reference there",
    "threads": "two threads that call it at the same time get {}; the delivered module does not guard against that: use one module per thread",
}
_FAILS = "inputs with NaN and Inf: it fails there ({}) and was not tested further; a delivered module falls back to the reference when a member fails"
_CONSTANT = (
    "values of input {} that get_inputs() does not draw; the delivered module does not guard against that"
)
_HIDES = "{} here where the reference gives NaN or Inf for such inputs; the delivered module does not guard against that"
_SPREADS = "with a NaN or Inf in an input, {} NaN or Inf here and a number in the reference's result; the delivered module does not guard against that"


def check(candidate: CandidateRun, shapes: Sequence[OpenShape], run: RunState) -> None:
    """Adds limits to the findings. Nothing is timed after it.

    Raises:
        Rejected: with NaN or Inf in an input, it returns wrong numbers elsewhere.
    """
    able = [
        shape
        for shape in shapes
        if not shape.large and shape.inputs.call.plain and shape.key in candidate.sides
    ]
    if not able or candidate.process is None or candidate.process.dead:
        return
    # Use the largest of the smaller shapes: at a size of 1, neither strides nor threads make a difference.
    small = [one for one in able if one.inputs.input_bytes <= _SMALL_BYTES]
    shape = max(small, key=_size) if small else min(able, key=_size)
    side = candidate.sides[shape.key]
    constant = [
        str(number)
        for number, tensor in enumerate(shape.inputs.given, 1)
        if tensor.structure.way == DRAWN and is_inexact(tensor.meta.dtype)
    ]
    if constant:
        run.findings.append(_limit("constant_inputs", _CONSTANT.format(", ".join(constant)), shape))
    try:
        _look_for_numbers(side, shape, run)
        side.fill(1)
        asked = [name for name in _WORDS if name != "train" or _changes_in_training(shape)]
        found = _asked(side, asked)
    except RoleFailure as failure:
        if failure.role == "reference" and not isinstance(failure, RoleReported):
            raise
        if failure.role != "reference":
            words = _FAILS.format(failure.sentence.partition("\n")[0][:200])
            run.findings.append(_limit("raises", words, shape))
        return
    for name, words in _WORDS.items():
        said = found.get(name, "")
        # In train mode, an unchanged result is the wrong one.
        if (name == "train" and name in found and not said) or (name != "train" and said):
            run.findings.append(_limit(name, words.format(said), shape))


def _size(shape: OpenShape) -> int:
    return shape.inputs.input_bytes


def _asked(side: Side, questions: list[str]) -> dict[str, str]:
    found: dict[str, Any] = side.process.request_json(
        protocol.LIMITS, {"shape": side.key, "questions": questions}, _SECONDS
    )
    side.process.freeze()
    return {name: str(found.get(name, ""))[:200] for name in questions}


def _changes_in_training(shape: OpenShape) -> bool:
    if shape.inputs.call.training:
        return False
    if shape.checks.in_training is None:
        shape.side.fill(1)
        shape.checks.in_training = bool(_asked(shape.side, ["train"])["train"])
    return shape.checks.in_training


def _look_for_numbers(side: Side, shape: OpenShape, run: RunState) -> None:
    """One call with a NaN and an Inf in an input. Only parts of the result that these do not reach are judged."""
    if shape.checks.spoiled is None:
        shape.checks.spoiled = _spoiled_case(shape)
    if not shape.checks.spoiled:
        return
    case, untouched = shape.checks.spoiled
    block, spans = call(side, shape, case, run.outcomes[shape.key])
    hides, spreads = _compared(shape, case, untouched, values_of(block, spans))
    if hides:
        run.findings.append(_limit("nan_hidden", _HIDES.format(counted(hides, "number")), shape))
    if spreads:
        run.findings.append(_limit("nan_spreads", _SPREADS.format(counted(spreads, "element")), shape))


def _spoiled_case(shape: OpenShape) -> tuple[Any, ...]:
    """A content with NaN and Inf, its expectation, and per output the rows that are unchanged by them.

    Empty if there is no such content.
    """
    able = [
        place
        for place, tensor in enumerate(shape.inputs.tensors)
        if tensor.transformable and tensor.structure.domain != "in_range"
    ]
    if not able:
        return ()
    place = secrets.choice(able)
    clean = own_case(shape)
    contents = list(clean.contents)
    contents[place] = _spoiled(contents[place], shape.inputs.tensors[place])
    try:
        own = own_result(shape, "NaN and Inf", contents)
    except RoleReported:
        return ()
    case = case_of(shape, replace(own, signs=True))
    # Compare whole rows: a single element of an affected row may be unchanged by chance.
    pairs = zip(case.expected, clean.expected, strict=True)
    return case, [space(a.own).max_of_rows((a.own != b.own) * 1.0) == 0.0 for a, b in pairs]


def _compared(shape: OpenShape, case: Case, untouched: list[Any], values: list[Any]) -> tuple[int, int]:
    """Counts elements that are numbers but should be NaN or Inf, and the reverse."""
    hides = spreads = 0
    judged = []
    for value, expected, same in zip(values, case.expected, untouched, strict=True):
        if not is_inexact(expected.dtype):
            judged.append(expected)
            continue
        got = widen(value, expected.dtype).reshape(expected.own.shape)
        xp = space(got)
        finite = xp.isfinite(got)
        hides += int((finite & ~xp.isfinite(expected.own) & ~xp.isfinite(expected.exact)).sum())
        spreads += int((same & ~finite).sum())
        judged.append(replace(expected, own=xp.where(same & finite, expected.own, float("nan"))))
    for comparison, expected in zip(
        compare_all(shape, replace(case, expected=judged), values), judged, strict=True
    ):
        if not comparison.ok and is_inexact(expected.dtype):
            sentence = (
                f"with NaN and Inf in an input it gives wrong numbers at {shape.where} in rows that these do not reach in the reference's result: "
                f"{comparison.words}"
            )
            raise Rejected("incorrect", "wrong_result", sentence)
    return hides, spreads


def _spoiled(content: Any, tensor: TensorInput) -> Any:
    """A content with a NaN and an Inf, each at its own place. Structural zeros stay."""
    import torch

    on_device = not isinstance(content, np.ndarray)
    raw = content.cpu().numpy() if on_device else content.copy()
    flat = torch.from_numpy(raw.view(np.uint8).reshape(-1)).view(getattr(torch, tensor.meta.dtype))
    places = (flat != 0).nonzero().flatten()
    chosen = secrets.SystemRandom().sample(range(len(places)), min(2, len(places)))
    for place, number in zip(chosen, (float("nan"), float("inf")), strict=False):
        flat[places[place]] = number
    spoiled = flat.view(torch.uint8)
    return spoiled.to(content.device) if on_device else spoiled.numpy().view(carrier(tensor.meta.dtype))


def _limit(name: str, sentence: str, shape: OpenShape) -> Finding:
    return Finding(
        f"limit_{name}", "info", f"not covered by this verdict (seen at {shape.where}): {sentence}"
    )
