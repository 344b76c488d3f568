"""Verifies timed blocks: every candidate block runs here, and one call of each, drawn afterwards, must be right."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from evaluator.errors import RoleReported
from evaluator.oracle.compare import contract, dense
from evaluator.referee.checking import large
from evaluator.referee.checking.correctness import first_wrong
from evaluator.referee.checking.kept_alive import KeptOutputs, most_kept
from evaluator.referee.checking.watch import Watch
from evaluator.referee.session.expectation import case_of, own_result
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import CALL_SECONDS, Side
from evaluator.referee.sides.slots import Drawn
from evaluator.roles.frames import TensorMeta
from evaluator.roles.process import RoleProcess
from evaluator.timing.cycles import Clocks

#: Rule of the finding for a process that ran while it was stopped.
LATE_STOP = "ran_while_stopped"
#: CPU time that a stopped process may use in total, and per stop. The kernel's bookkeeping came to 0.5 ms in
#: several hundred stops of an honest process on a busy machine.
_MOST_WHILE_STOPPED_US, _MOST_PER_STOP_US = 500.0, 2.0
#: One block in this many is inspected while it runs: too few to affect a median, and dozens are timed.
_INSPECTED = 8
#: Drawn outputs are compared once there are this many of them, or this many bytes (of the host, of a device).
_PENDING = 16
_PENDING_BYTES = (32 << 20, 512 << 20)
#: The first comparison, and then one in this many, sends an output to the oracle, even if it looks right.
_ORACLE_ONE_IN = 4


@dataclass(frozen=True)
class _Taken:
    """A block's data as it was when its clock stopped.

    The drawn call, the call before it, the contents and state of the slot, and after how many calls the chain
    breaks.
    """

    block: Block
    call: int
    spans: list[Any]
    spans_before: list[Any]
    drawn: Drawn
    held: list[Any]
    broken_links: int


@dataclass(frozen=True)
class _Compared:
    """A drawn call's outputs, its contents, and whether it followed another call at once."""

    metas: tuple[TensorMeta, ...]
    spans: list[Any]
    contents: list[Any]
    follows: bool


class Checker:
    """Runs the candidate's blocks and verifies one randomly drawn call of each.

    Contract and chain are checked at once. Values are compared some blocks later, several in one block of the
    reference.

    Args:
        session: of the task.
        shape: where it is timed.
        side: the candidate's.
        outcome: gets the number of checks; its bounds are those of the correctness cases.
        captured: whether blocks are replays of a CUDA graph.
        same_slot: whether all calls of a block use one slot, see :mod:`evaluator.referee.measuring.warm`.
    """

    def __init__(
        self,
        session: TaskSession,
        shape: OpenShape,
        side: Side,
        outcome: Outcome,
        *,
        captured: bool = False,
        same_slot: bool = False,
    ) -> None:
        self.session = session
        self.shape = shape
        self.side = side
        self.outcome = outcome
        self.captured = captured
        self.same_slot = same_slot
        self.clocks = Clocks(session.fleet.device.clock)
        #: Time per call of the shortest block, in ns, for the candidate (True) and for baselines.
        self._least_call_ns: dict[bool, float] = {}
        self._unverified: _Taken | None = None
        #: Which outputs are kept alive, once :meth:`keep_outputs` was called.
        self.kept = KeptOutputs(side, shape, 0)
        self.watch = Watch(session.fleet.keeper, side.process)
        self._pending: list[_Compared] = []
        self._has_asked = False  #: whether an output went to the oracle

    def run(self, calls: int, *, later: bool = False) -> Block:
        """One verified block.

        With ``later`` it is verified after the next block of a baseline, or by :meth:`settle`.

        Verification uses the referee's and the device's time and changes the caches. To spread that effect over
        both sides, half of the blocks are verified before the rival's next block and half after it. The data is
        copied at once in either case, so that outputs filled late cannot use the rival's turn.
        """
        self.settle()
        self._check_rest()
        self.kept.compare_displaced()
        try:
            block = self._block(calls)
        except RoleReported as failure:
            # Later its outputs of earlier blocks would be lost.
            if self.captured or self.kept.begun or not self.side.grows_for(failure):
                raise
            return self.run(calls, later=later)
        self._note(self.side, block)
        self.watch.after(self.side)
        self._check_contract(block)
        if self.shape.large:
            if self.side.chained and self.side.broken_links(block):
                raise _broken()
            self.clocks.after_block(mine=True)
            self._inspect()
            large.verify(self.shape, self.side, block, self.outcome)
            return block
        taken = self._taken(self.side, block)
        self.clocks.after_block(mine=True)
        self._inspect()
        self._unverified = taken
        if not later:
            self.settle()
        return block

    def _block(self, calls: int) -> Block:
        """One block with fresh contents, as it is timed."""
        side = self.side
        slots = 1 if self.same_slot else calls
        side.ready(CALL_SECONDS, warm="eager", poison=0, captured=self.captured, calls=slots)
        if self.shape.large:
            large.spoil_outputs(side)
        side.fill(slots)
        self.watch.before(side)
        return side.block(
            calls,
            chained=True,
            captured=self.captured,
            same_slot=self.same_slot,
            while_running=lambda: self._inspect_some(side.process, calls),
        )

    def settle(self) -> None:
        """Verifies the last block, if that has not been done."""
        taken, self._unverified = self._unverified, None
        if taken is not None:
            self._verify(taken)
            self._check_rest()

    def keep_outputs(self) -> None:
        """From now on, keeps the outputs of some calls alive.

        Not for replays: each overwrites the previous one's outputs.
        """
        if not self.captured and not self.shape.large:
            most = most_kept(self.side, self.shape.output_metas)
            self.kept = KeptOutputs(self.side, self.shape, most)

    def _inspect(self) -> None:
        """After a block: the stopped candidate must have an intact harness and no running process."""
        process = self.side.process
        if process.landmarks is not None:
            process.landmarks.check()
        if process.stop_others():
            sentence = "it left a process of its own running between calls: end what it starts before forward returns"
            raise Rejected("contract_violation", "background_process", sentence)

    def _inspect_some(self, running: RoleProcess, calls: int) -> None:
        """Reads the harness at a random moment of some blocks, unless that would take the core that the process
        waits for.

        Also while a baseline runs: reading takes up to 0.5 ms of a core, and on a busy machine slows the running
        side.
        """
        landmarks = self.side.process.landmarks
        if landmarks is not None and not running.pinned and secrets.randbelow(_INSPECTED) == 0:
            landmarks.check_within(
                running, calls * self._least_call_ns.get(running is self.side.process, 0.0)
            )

    def _note(self, side: Side, block: Block) -> None:
        # A graph's replay runs none of the candidate's code.
        if not self.captured:
            self.watch.got_ready(side, block)
        mine, each_ns = side.process is self.side.process, block.elapsed_ns / block.calls
        self._least_call_ns[mine] = min(self._least_call_ns.get(mine, each_ns), each_ns)

    def _check_rest(self) -> None:
        """Work while stopped could fill outputs late, read the next contents early, or slow the rival."""
        process = self.side.process
        ran_us = process.check_rest() / 1e3
        if ran_us > _MOST_WHILE_STOPPED_US + _MOST_PER_STOP_US * process.stops:
            sentence = f"its process used {ran_us:.0f} us of CPU time while it was stopped"
            raise Rejected("cheating", LATE_STOP, sentence)

    def run_rival(self, rival: Side, baseline: Baseline, calls: int) -> Block:
        """One block of a baseline. The candidate must not run meanwhile."""
        block = baseline.run(
            rival,
            calls,
            captured=self.captured,
            same_slot=self.same_slot,
            while_running=lambda: self._inspect_some(rival.process, calls),
        )
        self._note(rival, block)
        self.watch.before(rival)
        self.watch.after(rival)
        # Same as after the candidate's block: a device's idle time affects its clock, and later work affects its
        # caches.
        if self.shape.large:
            large.mimic(self.shape)
        else:
            self._taken(rival, block)
        self.clocks.after_block(mine=False)
        self._inspect()
        self.settle()
        return block

    def _check_contract(self, block: Block) -> None:
        """Not for baselines: forms of the reference may lay outputs out differently (copies of a graph's), which
        is allowed.
        """
        metas, wanted = block.report.metas, self.shape.output_metas
        broken = next((b for b in map(contract, metas, wanted) if b), None)
        if broken or len(metas) != len(wanted):
            sentence = (
                f"in a timed block {broken or 'the number of outputs changes: return as many in each call'}"
            )
            raise Rejected("contract_violation", "output_contract", sentence)

    def _taken(self, side: Side, block: Block) -> _Taken:
        """Copies the verified data of a block: an unpredictably drawn call, and the link that leads to it."""
        call = self.kept.draw(side, block.calls)
        spans = side.outputs(block, call)
        self.kept.note(side, block, call, spans)
        return _Taken(
            block,
            call,
            spans,
            side.outputs(block, call - 1) if side.chained and call else [],
            side.drawn,
            side.contents(0 if self.same_slot else call),
            side.broken_links(block) if side.chained else 0,
        )

    def _verify(self, taken: _Taken) -> None:
        """Checks the drawn call, and that the chain leads to it."""
        side, shape = self.side, self.shape
        block, call, spans = taken.block, taken.call, taken.spans
        states = [block.first_state, *block.report.states]
        if side.chained:
            links = [(call, spans), (call - 1, taken.spans_before)][: 2 if call else 1]
            if taken.broken_links or not all(
                side.follows(outputs, states[at], states[at + 1]) for at, outputs in links
            ):
                raise _broken()
        contents, final = self._rebuilt(taken, states)
        if not side.same(taken.held, final):
            sentence = "in a timed block it changed its inputs or skipped their refresh"
            raise Rejected("cheating", "input_tampered", sentence)
        self._pending.append(_Compared(block.report.metas, spans, contents, follows=call > 0))
        # The reference's outputs are copied behind its pool, like the oracle's, which are at least as large.
        most = min(_PENDING, shape.side.slot_count, shape.side.most_kinds(shape.output_metas))
        if len(self._pending) == most or self.pending_bytes > self.most_bytes:
            self.compare_pending()

    @property
    def pending_bytes(self) -> int:
        """Bytes of outputs that wait for comparison."""
        each_bytes = self.shape.inputs.input_bytes + sum(meta.span_bytes for meta in self.shape.output_metas)
        return len(self._pending) * each_bytes

    @property
    def most_bytes(self) -> int:
        """How many bytes may wait for comparison."""
        return _PENDING_BYTES[self.side.gpu]

    def _rebuilt(self, taken: _Taken, states: list[int]) -> tuple[list[Any], list[Any]]:
        """What the drawn call must have seen, and what its slot must hold after the block, given the states before
        each call.
        """
        side, drawn, call = self.side, taken.drawn, taken.call
        if self.same_slot:
            return side.refreshed(drawn, 0, states[: call + 1]), side.refreshed(drawn, 0, states[:-1])
        contents = side.refreshed(drawn, call, [states[call]])
        return contents, contents

    def compare_pending(self) -> None:
        """A quick comparison with the reference's own results.

        What looks wrong goes to the float64 oracle, and sometimes what does not.

        Raises:
            Rejected: a drawn output was wrong.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        reference = self.shape.side
        self.side.process.freeze()
        own_block = reference.call([one.contents for one in pending])
        own_metas = own_block.report.metas
        doubtful = []
        # The quick comparison misses errors in small rows. A block's first call looks like a check, and a candidate may be honest
        # there alone: the first output that goes to the oracle is of a later call.
        following = [slot for slot, one in enumerate(pending) if one.follows]
        if following and not self._has_asked:
            drawn = secrets.choice(following)
        else:
            drawn = secrets.randbelow(len(pending) * (_ORACLE_ONE_IN if self._has_asked else 1))
        self._has_asked = True
        for slot, one in enumerate(pending):
            own_spans = reference.outputs(own_block, slot)
            self.outcome.checks += 1
            agrees = reference.agree(one.spans, one.metas, own_spans, own_metas, self.outcome.bounds)
            if not agrees or slot == drawn:
                doubtful.append(one)
        # Last: the oracle's block replaces the outputs that were read above.
        for one in doubtful:
            self._judge(one.metas, one.spans, one.contents)

    def _judge(self, metas: tuple[TensorMeta, ...], spans: list[Any], contents: list[Any]) -> None:
        """The float64 oracle's comparison for an output that differs from the reference's."""
        case = case_of(self.shape, own_result(self.shape, "timed", contents))
        values = [dense(span, meta) for span, meta in zip(spans, metas, strict=True)]
        if rejected := first_wrong(self.shape, case, values, self.shape.checks.cases, slack=2.0):
            rejected.sentence = f"in a timed call: {rejected.sentence}"
            raise rejected


def _broken() -> Rejected:
    sentence = "in a timed block the chain between its calls does not follow from its outputs: they were not computed one after the other"
    return Rejected("cheating", "broken_chain", sentence)
