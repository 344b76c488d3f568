"""Speed at one shape: the candidate and the best baseline in turn, every block of the candidate verified.

A block is a chain of calls: what call i returned decides how the input of call i+1 is refreshed, so that calls cannot
be computed ahead, batched or filled in late. Which call is verified is drawn after the process was stopped. What the harness
itself costs (starting, stopping, chaining) is learnt from blocks of the baseline's process that compute nothing, and
taken off both sides alike; nothing that the candidate does can enlarge it.

The sides alternate strictly. In ABBA order one side runs twice in a row and finds its memory still in the caches, while
the other never does, because its blocks are verified in between: 1.5 % in its disfavor, measured on two cores.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.oracle.compare import compare, contract, dense, widen
from evaluator.oracle.numbers import Array, is_inexact
from evaluator.referee.correctness import Case, Outcome, Rejected, case_of, wrong
from evaluator.referee.side import Block, Side
from evaluator.referee.task_session import Baseline, OpenShape, TaskSession
from evaluator.roles.frames import TensorMeta
from evaluator.timing.statistics import decide, median_interval
from evaluator.verdict import Finding

_CALL_SECONDS = 60.0
_SAMPLED_ELEMENTS = 1 << 17
_CHUNK = 2048


@dataclass(frozen=True)
class Effort:
    """How long to measure one shape.

    Attributes:
        looks: quads after which it may stop; fixed beforehand, since peeking at will inflates errors.
        half_width: half of the interval's width, relative, at which it stops.
        max_seconds: it stops here in any case.
        until_decided: it also stops when the interval says faster or slower and fewer than half of the quads were
            disturbed: a few quads that agree by luck in a storm decide nothing.
    """

    looks: tuple[int, ...]
    half_width: float
    max_seconds: float
    until_decided: bool = False


EFFORTS = {
    "screen": Effort((6, 12, 24), 0.015, 0.5, True),
    "confirm": Effort((16, 32, 48), 0.01, 3.5),
}
#: A quad is disturbed when one side's two times differ by more than this (log): something else had the cores. The
#: rule looks at each side against itself, never at the ratio, so it favors neither. A neighbor on the same physical
#: core slows either side by a factor of 1.5 to 2 for 50 to 200 ms, so quads are shorter than that.
_DISTURBED = 0.15
_MIN_QUADS = 5
#: Drawn outputs wait to be compared until there are so many of them, or so many bytes.
_PENDING = 16
_PENDING_BYTES = 32 << 20
_MIN_CALLS = 4
#: CPU time that a stopped process may have used, over all its stops: bookkeeping of the kernel, none as a rule.
_MOST_WHILE_STOPPED_US = 500.0


@dataclass(frozen=True)
class Timing:
    """Result at one shape; times in microseconds per call."""

    baseline: str
    baseline_us: float
    candidate_us: float
    speedup: float
    ci95: tuple[float, float]
    decision: str
    log_ratios: tuple[float, ...]
    calls: int
    disturbed: int


def measure(
    session: TaskSession,
    shape: OpenShape,
    side: Side,
    rivals: list[tuple[Baseline, Side]],
    outcome: Outcome,
    earlier: list[Case],
    effort: Effort,
) -> Timing:
    """Times the candidate in ``side`` against the first of ``rivals``, or the second where that turns out faster.

    Raises:
        Rejected: a timed output was wrong.
    """
    checker = _Checker(session, shape, side, outcome, earlier)
    (baseline, rival), *others = rivals
    shape.side.process.freeze()
    many = min(16, side.slot_count)
    short, long = checker.run(1), checker.run(many)
    session.run(rival, baseline, 1, chained=True)
    guess_us = max((long.elapsed_ns - short.elapsed_ns) / (1e3 * (many - 1)), 1.0)
    guess_us = min(guess_us, max(baseline.median_us, 1.0))
    calls = math.ceil(session.fleet.device.block_target_us / guess_us)
    most = side.slot_count
    calls = max(_MIN_CALLS, min(calls, most * 4 // 5))
    candidate_first = bool(secrets.randbelow(2))
    quads: list[_Quad] = []
    started = time.monotonic()
    for look in effort.looks:
        while sum(not quad.disturbed for quad in quads) < look:
            if time.monotonic() - started > effort.max_seconds and len(quads) >= _MIN_QUADS:
                break
            # How long a block is stays secret: a candidate cannot know where it ends.
            secret_calls = min(calls + secrets.randbelow(calls // 4 + 1), most)
            ours, theirs, null_ns = [], [], 0
            for is_candidate in (candidate_first, not candidate_first) * 2:
                if is_candidate:
                    ours.append(checker.run(secret_calls).elapsed_ns)
                    continue
                theirs.append(session.run(rival, baseline, secret_calls, chained=True).elapsed_ns)
                null_ns = null_ns or session.null_ns(rival, secret_calls)
            # The other rival is there to be noticed should it be the faster one now. When it is asked stays secret.
            few = 3 * sum(quad.other is not None for quad in quads) <= len(quads)
            asked = others if few or secrets.randbelow(2) else []
            other_ns = [
                session.run(side_of, b, secret_calls, chained=True).elapsed_ns for b, side_of in asked
            ]
            quads.append(_Quad(secret_calls, ours, theirs, null_ns, *other_ns))
        estimate = _estimate(quads)
        ratios = estimate.log_ratios
        speedup, low, high = median_interval(ratios)
        if time.monotonic() - started > effort.max_seconds:
            break
        if len(ratios) < _MIN_QUADS:
            continue
        calm = 2 * sum(not quad.disturbed for quad in quads) >= len(quads)
        if (high - low) / 2 <= effort.half_width * speedup:
            break
        if effort.until_decided and calm and decide(low, high) in ("faster", "slower"):
            break
    checker.compare_pending()
    return Timing(
        others[0][0].name if estimate.by_other else baseline.name,
        estimate.theirs_us,
        estimate.ours_us,
        speedup,
        (low, high),
        decide(low, high) if len(ratios) >= _MIN_QUADS else "undecided",
        tuple(ratios),
        calls,
        sum(quad.disturbed for quad in quads),
    )


@dataclass(frozen=True)
class _Quad:
    """Two blocks of either side in turn, one that computes nothing, and one of the other rival; all of the same length.

    Times are in ns.
    """

    calls: int
    ours: list[int]
    theirs: list[int]
    null: int
    other: int | None = None

    @property
    def disturbed(self) -> bool:
        return any(abs(math.log(first / second)) > _DISTURBED for first, second in (self.ours, self.theirs))

    @property
    def us_per_call(self) -> tuple[float, float, float]:
        """Candidate, baseline and other rival (NaN if there is none), without what the harness itself takes."""
        # It is its own measurement with its own noise: never let it decide more than half of a figure.
        null = min(self.null, min(*self.ours, *self.theirs) / 2)
        return (
            (sum(self.ours) / 2 - null) / self.calls / 1e3,
            (sum(self.theirs) / 2 - null) / self.calls / 1e3,
            math.nan if self.other is None else max(self.other - null, self.other / 2) / self.calls / 1e3,
        )


@dataclass(frozen=True)
class _Estimate:
    """What the quads say, against the faster of the rivals."""

    log_ratios: list[float]
    ours_us: float
    theirs_us: float
    by_other: bool


def _estimate(quads: list[_Quad]) -> _Estimate:
    """Log ratio of every undisturbed quad, and the medians of both sides' microseconds per call."""
    asked = [quad for quad in quads if quad.other is not None]
    # From all of them: which quads count as disturbed is partly in the candidate's hand.
    by_other = bool(asked) and statistics.median(_advantage(quad) for quad in asked) > 0
    counted = asked if by_other else quads
    used = [quad for quad in counted if not quad.disturbed]
    if len(used) < _MIN_QUADS:
        used = counted
    times = np.array([quad.us_per_call for quad in used])
    theirs = times[:, 2 if by_other else 1]
    ours_us = float(np.median(times[:, 0]))
    return _Estimate(np.log(theirs / times[:, 0]).tolist(), ours_us, float(np.median(theirs)), by_other)


def _advantage(quad: _Quad) -> float:
    """By how much (log) the other rival was faster than the first."""
    _, first, other = quad.us_per_call
    return math.log(first / other)


class _Checker:
    """Runs the candidate's blocks and verifies one randomly drawn call of each.

    Contract and chain at once; the values some blocks later, several in one block of the reference.
    """

    def __init__(
        self, session: TaskSession, shape: OpenShape, side: Side, outcome: Outcome, earlier: list[Case]
    ) -> None:
        self.session = session
        self.shape = shape
        self.side = side
        self.outcome = outcome
        self.earlier = earlier
        self._pending: list[tuple[tuple[TensorMeta, ...], list[Array], list[Array]]] = []

    def run(self, calls: int) -> Block:
        """One verified block."""
        side = self.side
        slots = list(range(calls))
        self._check_rest()
        side.ready(_CALL_SECONDS, warm="eager", poison=0)
        side.fill(calls)
        block = side.block(slots, _CALL_SECONDS, chained=True)
        if side.process.stop_others():
            sentence = "it left a process of its own running between calls"
            raise Rejected(
                "contract_violation", sentence, (Finding("background_process", "error", sentence),)
            )
        self._verify(block)
        self._check_rest()
        return block

    def _check_rest(self) -> None:
        """What ran while it was stopped could have filled outputs late, read the next contents early or slowed the rival."""
        ran_us = self.side.process.check_rest() / 1e3
        if ran_us > _MOST_WHILE_STOPPED_US:
            sentence = f"its process went on for {ran_us:.0f} us of CPU time while it was stopped"
            raise Rejected("cheating", sentence, (Finding("ran_while_stopped", "cheat", sentence),))

    def _verify(self, block: Block) -> None:
        """Checks a call that nobody could have known would be checked, and the link of the chain that led to it."""
        side, shape = self.side, self.shape
        report = block.report
        for meta, wanted in zip(report.metas, shape.output_metas, strict=False):
            broken = contract(meta, wanted)
            if broken or len(report.metas) != len(shape.output_metas):
                sentence = f"in a timed block {broken or 'the number of outputs changes'}"
                raise Rejected(
                    "contract_violation", sentence, (Finding("output_contract", "error", sentence),)
                )
        call = secrets.randbelow(len(block.slots))
        spans = side.outputs(block, call, _CALL_SECONDS)
        state = block.first_state if call == 0 else report.states[call - 1]
        if side.chained:
            if side.digest(spans, state) != report.states[call]:
                raise self._broken_chain()
            if call and not side.gpu:
                before = block.first_state if call == 1 else report.states[call - 2]
                if side.digest(side.outputs(block, call - 1, _CALL_SECONDS), before) != state:
                    raise self._broken_chain()
        contents = (
            side.refreshed(block.slots[call], state) if side.chained else side.contents(block.slots[call])
        )
        if side.chained and not side.gpu and not side.holds(block.slots[call], contents):
            sentence = "in a timed block it changed its inputs or skipped their refresh"
            raise Rejected("cheating", sentence, (Finding("input_tampered", "cheat", sentence),))
        self._pending.append((block.report.metas, spans, contents))
        waiting_bytes = len(self._pending) * (shape.inputs.input_bytes + sum(span.nbytes for span in spans))
        if len(self._pending) == min(_PENDING, shape.side.slot_count) or waiting_bytes > _PENDING_BYTES:
            self.compare_pending()

    def _broken_chain(self) -> Rejected:
        sentence = (
            "in a timed block the chain between its calls does not follow from its outputs: they were not computed "
            "one after the other"
        )
        return Rejected("cheating", sentence, (Finding("broken_chain", "cheat", sentence),))

    def compare_pending(self) -> None:
        """A quick look against the reference's own results; only what looks wrong goes to the float64 oracle.

        Raises:
            Rejected: a drawn output was wrong.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        reference = self.shape.side
        self.side.process.freeze()
        reference.ready(_CALL_SECONDS)
        for slot, (_, _, contents) in enumerate(pending):
            reference.write(slot, contents)
        own_block = reference.block(list(range(len(pending))), _CALL_SECONDS)
        own_metas = own_block.report.metas
        doubtful = []
        for slot, (metas, spans, contents) in enumerate(pending):
            own_spans = reference.outputs(own_block, slot, _CALL_SECONDS)
            self.outcome.checks += 1
            close = all(
                _close(dense(span, meta), dense(own, own_meta), meta.dtype, bound)
                for span, meta, own, own_meta, bound in zip(
                    spans, metas, own_spans, own_metas, self.outcome.bounds, strict=True
                )
            )
            if not close:
                doubtful.append((metas, spans, contents))
        # Afterwards: the oracle's block replaces the outputs that were read above.
        for metas, spans, contents in doubtful:
            self._judge(metas, spans, contents)

    def _judge(self, metas: tuple[TensorMeta, ...], spans: list[Array], contents: list[Array]) -> None:
        """The float64 oracle's word on an output that differs from the reference's."""
        case = case_of(self.session, self.shape, "timed", contents, [])
        values = [dense(span, meta) for span, meta in zip(spans, metas, strict=True)]
        for value, expected in zip(values, case.expected, strict=True):
            comparison = compare(value, expected, slack=2.0)
            if not comparison.ok:
                rejected = wrong(self.shape, case, comparison, values, self.earlier)
                raise Rejected(rejected.word, "in a timed call: " + rejected.sentence, rejected.findings)


def _close(values: Array, own: Array, dtype: str, bound: float) -> bool:
    """Whether values agree with the reference's within twice the bound; large tensors by random chunks."""
    if values.size > _SAMPLED_ELEMENTS:
        generator = np.random.default_rng(secrets.randbits(64))
        starts = generator.integers(0, values.size - _CHUNK, _SAMPLED_ELEMENTS // _CHUNK)
        places = (starts[:, None] + np.arange(_CHUNK)).reshape(-1)
        values, own = values[places], own[places]
    if not is_inexact(dtype):
        return bool(np.array_equal(values, own))
    mine, theirs = widen(values, dtype), widen(own, dtype)
    finite = np.isfinite(theirs)
    if not np.array_equal(np.isfinite(mine), finite):
        return False
    mine, theirs = mine[finite], theirs[finite]
    if mine.size == 0:
        return True
    magnitude = np.abs(theirs)
    scale = magnitude + math.sqrt(float(np.mean(magnitude**2))) + np.finfo(np.float64).tiny
    return bool((np.abs(mine - theirs) <= 2.0 * bound * scale).all())


def facts(effort: str) -> dict[str, Any]:
    """The protocol in words, for the verdict."""
    return {
        "protocol": (
            "strictly alternating blocks of chained calls on the referee's clock, fresh contents in rotating buffers; the "
            "harness's own cost learnt in the reference's process and taken off both; both processes stopped off turn; one "
            "drawn call of every block verified; median of log ratios, bootstrap interval"
        ),
        "effort": effort,
        "regime": "cold, rotating buffers",
    }
