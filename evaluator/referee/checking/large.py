"""Checks shapes whose tensors are too large to copy or to compare in one step.

A content is in a slot of each process, and outputs stay where the process made them; only pieces are copied. Every
value of the candidate is compared with the reference's own result, piece by piece. The float64 oracle checks some
rows of the batch, drawn after the candidate has answered, and the rows where both differ most.

Rows stand for the whole only if the module treats them independently: the reference must return the same for these
rows alone as among all rows. If it does not (a norm over everything), the oracle computes the whole output if it
fits. Otherwise the reference's own result is the standard, with the tolerance for its rounding, and for what it loses itself in the
task's precision tier.

An output that is filled late shows up as a change: its fingerprint is taken when the clock stops and again at the
end.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from evaluator.content import distributions
from evaluator.errors import RoleReported
from evaluator.oracle.compare import Comparison, compare
from evaluator.oracle.glance import agree
from evaluator.oracle.tolerance import Bounds, expect
from evaluator.precision import rounds_operands
from evaluator.referee.checking.correctness import (
    changes_inputs,
    check_form,
    note_left_out,
    record,
    try_signs,
    with_deadline,
    wrong,
)
from evaluator.referee.checking.doubts import Doubt, chosen, doubt_of
from evaluator.referee.session.expectation import (
    Case,
    Content,
    OwnResult,
    Rows,
    case_of,
    compare_all,
    judged,
)
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.device_side import DeviceSide
from evaluator.referee.sides.fingerprint import fingerprint
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import CALL_SECONDS, Side
from evaluator.roles.frames import TensorMeta

#: Elements compared at a time, and elements of inputs and outputs for which the oracle computes rows at a
#: time.
_PIECE, _PART = 1 << 25, 1 << 25
#: How many places the oracle checks for each content.
_LOOKS = 2
#: An output with more elements is not computed in float64 as a whole.
_WHOLE = 1 << 26
#: If the oracle sees at most this many rows at a time, a finding says so.
_FEW_ROWS = 16
#: How many pieces of a timed call's output are compared.
_TIMED_PIECES = 4
#: For :func:`mimic`, which does the work of a comparison and ignores its result.
_ANY = Bounds(math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Answer:
    """The outputs of one call, in the memory of its process.

    Attributes:
        metas: of the outputs.
        spans: their memory as flat bytes. It changes with the next call of that process.
    """

    metas: tuple[TensorMeta, ...]
    spans: list[torch.Tensor]

    def tensor(self, index: int) -> torch.Tensor:
        """An output as a tensor over that memory."""
        meta = self.metas[index]
        flat = self.spans[index].view(getattr(torch, meta.dtype))
        return flat.as_strided(meta.shape, meta.strides)


def check(
    side: Side,
    shape: OpenShape,
    outcome: Outcome,
    names: Sequence[str] = (),
) -> None:
    """Runs the candidate on fresh contents and compares.

    By default: the task's own content and one of another distribution.

    Raises:
        Rejected: at the first wrong thing.
    """
    reference = shape.side
    assert isinstance(side, DeviceSide) and isinstance(reference, DeviceSide)
    for name in names or _names(shape):
        drawn = try_signs(shape, name, partial(_own_of, reference, name), _share_of_numbers)
        if drawn is None:
            note_left_out(shape, name)
            continue
        own, block, signs = drawn
        answered = with_deadline(side, outcome, partial(_called, side, partial(_give, side, reference)))
        report = block.report
        check_form(
            side, answered, Content(name, [], report.metas, report.structure, reference.aliased(block))
        )
        if not all(same_bytes(a, b) for a, b in zip(side.slot(0), reference.slot(0), strict=True)):
            raise changes_inputs(shape)
        answer = Answer(answered.report.metas, side.claimed(answered, 0))
        _Comparison(shape, outcome, name, signs=signs).run(answer, own, looks=_LOOKS)
        side.process.freeze()


def verify(shape: OpenShape, side: Side, block: Block, outcome: Outcome) -> None:
    """Checks a timed block of one call. Its content is made again in the reference's slot.

    Raises:
        Rejected: the output or the content of the slot is wrong.
    """
    reference = shape.side
    assert isinstance(side, DeviceSide) and isinstance(reference, DeviceSide)
    answer = Answer(block.report.metas, side.claimed(block, 0))
    before = [fingerprint(span) for span in answer.spans]
    rebuild = partial(reference.rebuild, side.drawn, [block.first_state] if side.chained else [])
    rebuild()
    if not all(same_bytes(a, b) for a, b in zip(side.slot(0), reference.slot(0), strict=True)):
        sentence = "in a timed block it changed its inputs or skipped their refresh"
        raise Rejected("cheating", "input_tampered", sentence)
    own, _ = _own(reference, rebuild)
    _Comparison(shape, outcome, "timed").run(answer, own, looks=0)
    if [fingerprint(span, key) for span, (key, _) in zip(answer.spans, before, strict=True)] != before:
        sentence = "an output of a timed call changed after its clock had stopped"
        raise Rejected("cheating", "filled_late", sentence)


def spoil_outputs(side: Side) -> None:
    """Overwrites the candidate's last outputs before a timed call."""
    assert isinstance(side, DeviceSide)
    side.poison()


def mimic(shape: OpenShape) -> None:
    """Does the work of :func:`verify` after a baseline's block, so that both sides start their next block in the
    same state.
    """
    assert isinstance(shape.side, DeviceSide)
    own, _ = _own(shape.side, shape.side.own)
    for index in range(len(own.metas)):
        for _, mine, _ in list(pieces(own.tensor(index), own.tensor(index)))[:_TIMED_PIECES]:
            agree(
                mine.reshape(-1),
                mine.reshape(-1),
                own.metas[index].dtype,
                _ANY,
                tuple(mine.shape),
                thorough=True,
            )


def _names(shape: OpenShape) -> list[str]:
    names = distributions.names(shape.inputs.tensors)
    return ["task", names[1 + secrets.randbelow(len(names) - 1)]]


def _own_of(reference: DeviceSide, name: str, *, signs: bool) -> tuple[Answer, Block, bool]:
    return *_own(reference, partial(reference.fill_from, name, signs=signs)), signs


def _share_of_numbers(drawn: tuple[Answer, Block, bool]) -> float:
    """The share in the output that has the fewest."""
    shares = [1.0]
    for index, meta in enumerate(drawn[0].metas):
        values = drawn[0].tensor(index)
        if values.is_floating_point() and meta.elements:
            finite = sum(int(torch.isfinite(part).sum()) for _, part, _ in pieces(values, values))
            shares.append(finite / meta.elements)
    return min(shares)


def _give(side: DeviceSide, reference: DeviceSide) -> None:
    """Copies the reference's slot to the candidate and overwrites everything that was there before."""
    side.take_slot(reference)
    side.poison(at_first=True)


def _called(side: DeviceSide, fill: Callable[[], None], deadline_s: float, *, strict: bool = False) -> Block:
    """Calls a process after ``fill`` has written its inputs. Adds memory if its outputs do not fit."""
    while True:
        fill()
        try:
            return side.call_slot(deadline_s, strict=strict)
        except RoleReported as failure:
            if not side.grows_for(failure):
                raise


def _own(reference: DeviceSide, fill: Callable[[], None]) -> tuple[Answer, Block]:
    """The reference's own result for what ``fill`` writes to its slot."""
    block = _called(reference, fill, CALL_SECONDS, strict=True)
    return Answer(block.report.metas, reference.claimed(block, 0)), block


class _Comparison:
    """Compares one answer of the candidate with the reference's own result and with the oracle."""

    def __init__(
        self,
        shape: OpenShape,
        outcome: Outcome,
        name: str,
        *,
        signs: bool = False,
    ) -> None:
        self._shape = shape
        self._outcome = outcome
        self._name = name
        self._signs = signs
        self._judged = judged(shape.precision, name, signs=signs)
        self._places = batched(shape)
        self._whole: Case | None = None

    def run(self, answer: Answer, own: Answer, *, looks: int) -> None:
        """Raises Rejected if a value is wrong."""
        if looks and self._places is not None and not self._is_by_rows(own):
            self._places, self._shape.checks.by_rows = None, False
        if looks and self._places is None:
            self._look_at_all(answer, own)
        for _ in range(looks if self._places is not None else 0):
            self._look(answer, own, self._drawn_rows())
        self._compare_all(answer, own)
        self._outcome.checks += 1

    # -- the oracle ----------------------------------------------------------------------------------------------

    def _is_by_rows(self, own: Answer) -> bool:
        """Whether the reference returns the same for some rows alone as among all others.

        Tested once per shape.
        """
        if self._shape.checks.by_rows is not None:
            return self._shape.checks.by_rows
        rows = self._drawn_rows()
        try:
            case = self._case(rows)
        except RoleReported:
            return False
        fits = [meta.shape[1:] for meta in case.metas] == [meta.shape[1:] for meta in own.metas]
        if not fits or not all(c.ok for c in self._compared(case, own, rows)):
            return False
        self._shape.checks.by_rows = True
        return True

    def _look(self, answer: Answer, own: Answer, rows: tuple[int, int]) -> None:
        """The oracle's comparison for some rows."""
        case = self._case(rows)
        if rows[1] - rows[0] > 1 or self._batch <= _FEW_ROWS:
            self._told(f"{rows[1] - rows[0]} of {self._batch} rows at a time")
        self._judge(case, answer, rows)

    def _look_at_all(self, answer: Answer, own: Answer) -> None:
        """The oracle's comparison for the whole output, if it can be computed."""
        if sum(meta.elements for meta in own.metas) <= _WHOLE:
            self._whole = self._case(None)
            self._judge(self._whole, answer, None)
        else:
            self._told("nothing, since its rows depend on each other and float64 does not fit as a whole")

    def _judge(self, case: Case, answer: Answer, rows: tuple[int, int] | None) -> None:
        comparisons = self._compared(case, answer, rows)
        record(self._outcome, comparisons, case)
        self._outcome.checks -= 1
        for comparison in comparisons:
            if not comparison.ok:
                raise wrong(self._shape, case, comparison, self._values(answer, rows))

    def _case(self, rows: tuple[int, int] | None) -> Case:
        """The expected outputs for some rows, or for all of them."""
        reference = self._shape.side
        cut = self._cut(rows)
        (own,) = reference.oracle([{"tier": "own", "move": None}], cut)
        metas = []
        for values, meta in zip(own, self._shape.output_metas, strict=True):
            sizes = meta.shape if rows is None else (rows[1] - rows[0], *meta.shape[1:])
            metas.append(_contiguous(meta.dtype, sizes))
            if values.numel() != metas[-1].elements:
                raise RoleReported("runtime_error", "the rows are not rows of the output", role="reference")
        spans = [values.clone().view(torch.uint8).reshape(-1) for values in own]
        result = OwnResult(self._name, [], tuple(metas), 0, frozenset(), spans, signs=self._signs)
        return case_of(self._shape, result, rows=cut, in_slot=True)

    @staticmethod
    def _values(answer: Answer, rows: tuple[int, int] | None) -> list[torch.Tensor]:
        """Some rows of every output, flat."""
        outputs = [answer.tensor(index) for index in range(len(answer.metas))]
        return [(output if rows is None else output[rows[0] : rows[1]]).reshape(-1) for output in outputs]

    def _compared(self, case: Case, answer: Answer, rows: tuple[int, int] | None) -> list[Comparison]:
        values = self._values(answer, rows)
        return compare_all(self._shape, case, values, rows=self._cut(rows), in_slot=True)

    def _cut(self, rows: tuple[int, int] | None) -> Rows | None:
        return None if rows is None else (*rows, self._places or [])

    @property
    def _batch(self) -> int:
        return self._shape.output_metas[0].shape[0]

    def _drawn_rows(self) -> tuple[int, int]:
        """Consecutive rows, drawn at random, as many as the oracle checks."""
        each = sum(t.size for t in self._shape.inputs.given) + sum(
            m.elements for m in self._shape.output_metas
        )
        count = max(1, min(self._batch, _PART * self._batch // max(each, 1)))
        first = secrets.randbelow(self._batch - count + 1)
        return first, first + count

    def _told(self, what: str) -> None:
        self._shape.checks.note(
            "oracle_on_part",
            f"at {self._shape.where} the float64 oracle looked at {what}; all values were compared with the reference's own",
        )

    # -- the reference's own -------------------------------------------------------------------------------------

    def _compare_all(self, answer: Answer, own: Answer) -> None:
        """Compares every value with the reference's own.

        A difference counts as wrong only if the oracle confirms it by rows.
        """
        if self._whole is not None:
            return  # the oracle has compared all of it, and its results may lie where the reference's own did
        doubtful: list[Doubt] = []
        for index, meta in enumerate(own.metas):
            found = list(pieces(answer.tensor(index), own.tensor(index)))
            if self._name == "timed" and len(found) > _TIMED_PIECES:
                # Drawn after the clock has stopped. There are as many draws as blocks.
                found = random.SystemRandom().sample(found, _TIMED_PIECES)
            for first, mine, theirs in found:
                if self._agrees(index, meta, mine, theirs):
                    continue
                if self._places is None:
                    self._decide(answer, own)
                    return
                doubtful.append(doubt_of(first, mine, theirs))
        for row in chosen(doubtful):
            self._look(answer, own, (row, row + 1))

    def _agrees(self, index: int, meta: TensorMeta, mine: torch.Tensor, theirs: torch.Tensor) -> bool:
        if (
            self._judged == "finiteness"
        ):  # the reference's result does not say how far rounding in this tier may move a value
            return not bool((torch.isfinite(theirs) & ~torch.isfinite(mine)).any())
        has_bounds = self._outcome.bounds and (self._places is not None or self._name == "timed")
        if has_bounds and self._judged == "everywhere":
            bounds = self._outcome.bounds[index]
            shape = tuple(mine.shape)
            return agree(mine.reshape(-1), theirs.reshape(-1), meta.dtype, bounds, shape, thorough=True)
        return self._beside_own(meta, mine, theirs).ok

    def _beside_own(
        self, meta: TensorMeta, mine: torch.Tensor, theirs: torch.Tensor, tiered: Sequence[torch.Tensor] = ()
    ) -> Comparison:
        """Whether values are within the rounding tolerance, taking the reference's own result as exact.

        Args:
            tiered: the reference's own in the task's tier, whose error widens the tolerance.
        """
        exact = theirs.reshape(-1)
        if theirs.is_floating_point() or theirs.is_complex():
            exact = exact.to(torch.complex128 if theirs.is_complex() else torch.float64)
        terms = max((size for t in self._shape.inputs.given for size in t.meta.shape), default=1)
        lossy = [one.reshape(-1) for one in tiered]
        shape = tuple(mine.shape)
        expected = expect(meta.dtype, shape, exact, exact, None, terms, tiered=lossy, judged=self._judged)
        return compare(mine.reshape(-1), expected)

    def _decide(self, answer: Answer, own: Answer) -> None:
        """Has the oracle compare the whole output, or where it does not fit, all outputs with the reference's own.

        Raises:
            Rejected: an output is wrong. Beside the reference's own: it differs by more than the task's tier makes of that.
        """
        self._look_at_all(answer, own)
        if self._whole is not None:
            return
        reference = cast("DeviceSide", self._shape.side)
        exact = [own.tensor(index) for index in range(len(own.metas))]
        tiered: list[torch.Tensor] = []
        if rounds_operands(self._shape.precision, gpu=reference.gpu):
            exact = [one.clone() for one in exact]  # the next call's results take their place
            block = reference.call_slot(CALL_SECONDS)
            lossy = Answer(block.report.metas, reference.claimed(block, 0))
            tiered = [lossy.tensor(index) for index in range(len(lossy.metas))]
        for index, (meta, theirs) in enumerate(zip(own.metas, exact, strict=True)):
            sides = [pieces(one, theirs) for one in (answer.tensor(index), *tiered[index : index + 1])]
            for (_, mine, one), *more in zip(*sides, strict=True):
                words = self._beside_own(meta, mine, one, [part for _, part, _ in more]).words
                if words:
                    name = self._shape.inputs.name_of(index, len(self._shape.output_metas)) or "result"
                    sentence = f"wrong {name} at {self._shape.where} on {self._name} inputs: {words}"
                    raise Rejected("incorrect", "wrong_result", sentence)


def batched(shape: OpenShape) -> list[int] | None:
    """Indices of the tensors that can be cut into rows: all whose first dimension is that of the outputs.

    None if there are none.
    """
    if shape.checks.by_rows is False or not shape.inputs.call.plain:
        return None
    firsts = {meta.shape[0] if meta.shape else 0 for meta in shape.output_metas}
    if len(firsts) != 1 or min(firsts) < 2:
        return None
    places = [
        place
        for place, tensor in enumerate(shape.inputs.given)
        if tensor.meta.shape and tensor.meta.shape[0] in firsts
    ]
    return places or None


def pieces(mine: torch.Tensor, theirs: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Pairs of pieces of two tensors of one shape, limited in size, each with its first row in the first
    dimension.
    """
    if mine.numel() <= _PIECE or mine.dim() == 0:
        yield 0, mine, theirs
        return
    rows = max(1, len(mine) * _PIECE // mine.numel())
    for first in range(0, len(mine), rows):
        one, other = mine[first : first + rows], theirs[first : first + rows]
        if len(one) == 1 and one.numel() > _PIECE and one.dim() > 1:
            yield from ((first, a[None], b[None]) for _, a, b in pieces(one[0], other[0]))
        else:
            yield first, one, other


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether flat bytes are equal, compared piece by piece."""
    return all(torch.equal(a, b) for a, b in zip(one.split(4 * _PIECE), other.split(4 * _PIECE), strict=True))


def _contiguous(dtype: str, sizes: tuple[int, ...]) -> TensorMeta:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return TensorMeta(dtype, tuple(sizes), tuple(reversed(strides)))
