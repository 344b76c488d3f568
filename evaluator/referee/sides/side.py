"""One process at one shape: blocks of calls on the referee's clock, and their outputs."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from evaluator.errors import ProtocolViolation
from evaluator.oracle.compare import dense
from evaluator.oracle.glance import agree
from evaluator.oracle.tolerance import Bounds
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.shape_inputs import ShapeInputs
from evaluator.referee.sides.slots import Slots
from evaluator.roles import frames, protocol
from evaluator.roles.arena import NAME, carrier
from evaluator.roles.chain import Chain, follows
from evaluator.roles.frames import BlockReport, TensorMeta
from evaluator.roles.kernel_view import inside
from evaluator.roles.process import RoleProcess

#: A process makes at least this many at once.
_FEWEST_SLOTS = 16
#: For the calls of one block; a process's first call may load libraries or compile.
CALL_SECONDS, FIRST_CALL_SECONDS = 60.0, 120.0
NO_STATE = 0
#: Most links that are checked on a CPU, and most of their output bytes together: whole outputs are copied,
#: although a digest needs 256 words of large ones.
_MOST_LINKS, _MOST_LINKS_BYTES = 16, 256 << 10
#: Most bytes of oracle results at once in host memory, and the gap between two results.
_ORACLE_BYTES, _SPARE_BYTES = 512 << 20, 512


class Side(Slots):
    """One process at one shape.

    Memory here is the host's. :class:`evaluator.referee.sides.device_side.DeviceSide` is the same on a GPU.
    """

    def __init__(self, process: RoleProcess, key: int, inputs: ShapeInputs, chain: Chain) -> None:
        super().__init__(process, key, inputs, chain)
        self._announced = b""  #: What the process last said when it was ready.
        self.ready_ns = 0  #: How long it last took to get ready.
        self.first_call_seconds = FIRST_CALL_SECONDS  #: How long its first call may take.
        #: By number, the outputs that the process keeps alive, see :mod:`evaluator.referee.checking.kept_alive`:
        #: which call of the block that had just ended. The process learns of it whenever it gets ready.
        self.kept: dict[int, int] = {}
        self._last_kept = 0

    # -- blocks ------------------------------------------------------------------------------------------------

    def most_calls(self, metas: tuple[TensorMeta, ...]) -> int:
        """The longest block: as many calls as there are slots, if all their outputs can be kept."""
        return self.slot_count

    def null_ns(
        self,
        calls: int,
        metas: tuple[TensorMeta, ...],
        *,
        captured: bool = False,
        again: bool = True,
        same_slot: bool = False,
    ) -> int:
        """Nanoseconds that a block of this many calls takes if the module does nothing, with outputs like
        ``metas``.

        Args:
            calls: how many.
            captured: whether it is a replay of a CUDA graph.
            again: measure it once more; otherwise a GPU uses earlier results.
            same_slot: whether all of them use the first slot.
        """
        return self.timed(calls, protocol.NULL, captured=captured, same_slot=same_slot).elapsed_ns

    def least_ns(self, calls: int, *, same_slot: bool = False) -> int:
        """Nanoseconds that a block of this many calls takes if the module only makes a tensor and returns it."""
        return self.timed(calls, protocol.LEAST, same_slot=same_slot).elapsed_ns

    def timed(
        self,
        calls: int,
        variant: str = "eager",
        *,
        threads: int | None = None,
        captured: bool = False,
        same_slot: bool = False,
        while_running: Callable[[], None] = lambda: None,
    ) -> Block:
        """One block of chained calls of a variant with fresh contents, as it is timed; see :meth:`block`."""
        slots = 1 if same_slot else calls
        self.ready(CALL_SECONDS, warm=variant, threads=threads, poison=0, captured=captured, calls=slots)
        self.fill(slots)
        return self.block(
            calls,
            variant=variant,
            chained=True,
            captured=captured,
            same_slot=same_slot,
            while_running=while_running,
        )

    def capture(self, variant: str, calls: int, deadline_s: float, *, same_slot: bool = False) -> None:
        """GPU only: has the process record this many chained calls of a variant as a CUDA graph.

        Raises:
            RoleReported: the variant cannot be captured.
        """
        request = {"shape": self.key, "variant": variant, "calls": calls, "same_slot": same_slot}
        self.process.request(protocol.CAPTURE, request, deadline_s)
        self.process.freeze()

    def ready(
        self,
        deadline_s: float,
        *,
        warm: str | None = None,
        threads: int | None = None,
        poison: int | None = None,
        keep: bool = False,
        captured: bool = False,
        calls: int = 1,
    ) -> None:
        """Has the process release the last outputs (all but two with ``keep``) before contents are written.

        Releasing memory takes as long as a short kernel, so it happens outside the clock. So do some calls of the
        variant ``warm`` on the slots' old contents: both sides begin a block in the same state, whatever ran
        between their turns. The process is frozen afterwards. Slots are made for ``calls`` or more (the exact
        number is sent when the clock runs). With ``captured`` (GPU only), the variant's CUDA graph is the next
        block, and waits for it behind the gate.
        """
        token = self._token(captured=captured)
        request = self._readiness(warm, threads, poison, keep=keep, token=token, calls=calls)
        self.ready_ns = -time.perf_counter_ns()
        self._announced = self.process.request(protocol.READY, request, deadline_s)
        self.ready_ns += time.perf_counter_ns()
        self.process.freeze()

    def _token(self, *, captured: bool) -> int:
        """The word that opens the gate for a captured block, 0 for none."""
        assert not captured, "only a GPU replays CUDA graphs"
        return 0

    def _readiness(
        self, warm: str | None, threads: int | None, poison: int | None, *, keep: bool, token: int, calls: int
    ) -> dict[str, Any]:
        return {
            "shape": self.key,
            "warm": warm,
            "threads": threads,
            "poison": poison,
            "keep": keep,
            "token": token,
            "held": list(self.kept.items()),
            "light": self.gpu and self.inputs.needs.large,
            "slots": min(self.slot_count, max(_FEWEST_SLOTS, 1 << (calls - 1).bit_length())),
        }

    def call(
        self,
        contents: list[list[Any]],
        deadline_s: float = CALL_SECONDS,
        *,
        poison: int | None = None,
        keep: bool = False,
        strict: bool = False,
        interleaved: bool = False,
    ) -> Block:
        """:meth:`ready`, :meth:`write` and :meth:`block` in a single request: one untimed call for each content."""
        self.process.freeze()
        for index, tensors in enumerate(contents):
            self.write(index, tensors)
        readiness = self._readiness(None, None, poison, keep=keep, token=0, calls=len(contents))
        return self.block(
            len(contents), deadline_s, strict=strict, readiness=readiness, interleaved=interleaved
        )

    def block(
        self,
        calls: int,
        deadline_s: float = CALL_SECONDS,
        *,
        variant: str = "eager",
        chained: bool = False,
        captured: bool = False,
        strict: bool = False,
        readiness: dict[str, Any] | None = None,
        same_slot: bool = False,
        interleaved: bool = False,
        while_running: Callable[[], None] = lambda: None,
    ) -> Block:
        """One call for each of the first ``calls`` slots, after :meth:`ready`.

        The process is frozen before and after.

        The clock starts before the process can read anything of the block (it is frozen while contents and request
        are written). It stops when the kernel reports that every thread of the process is stopped. From then on,
        the memory is the snapshot of its outputs.

        Args:
            calls: how many.
            deadline_s: for the whole block.
            variant: name of the form of the module that is called.
            chained: whether each call refreshes its inputs from the call before.
            captured: whether it is the CUDA graph that was made ready.
            strict: whether products are computed in full precision, whatever the task's tier allows.
            readiness: what :meth:`ready` would ask for, done on the clock; see :meth:`call`.
            same_slot: whether every call uses the first slot, whose contents the chain keeps refreshing.
            interleaved: whether all forwards come before the first backward (untimed; only calls with gradients).
            while_running: called once meanwhile; it must return before the answer comes.
        """
        process = self.process
        process.freeze()
        if captured:
            return self._replay(calls, deadline_s, variant)
        first_state = secrets.randbits(62) if chained and self.chained else NO_STATE
        request = {
            "shape": self.key,
            "calls": calls,
            "variant": variant,
            "state": first_state,
            "timed": chained,
            "chain": chained and self.chained,
            "strict": strict,
            "ready": readiness,
            "same_slot": same_slot,
            "interleaved": interleaved,
            "pooled": self.inputs.needs.large,
        }
        sequence = process.send(protocol.BLOCK, request)
        started = time.perf_counter_ns()
        process.thaw()
        while_running()
        payload = process.receive(protocol.BLOCK, sequence, deadline_s)
        elapsed_ns = process.freeze() - started
        report = self._report(payload, calls)
        return Block(report, calls, first_state, elapsed_ns, variant)

    def _replay(self, calls: int, deadline_s: float, variant: str) -> Block:
        """Replays the captured block. The process stays stopped."""
        raise NotImplementedError("only a GPU replays CUDA graphs")

    def outputs(self, block: Block, call: int) -> list[Any]:
        """Private copies of the outputs of one call: flat spans in memory order, in their carrier dtypes (here)."""
        return self._read(block.report.metas, block.report.addresses[call])

    def keep(self, call: int) -> int:
        """Has the process keep the outputs of a call of the last block alive. Returns their number."""
        self._last_kept += 1
        self.kept[self._last_kept] = call
        return self._last_kept

    def let_go(self, numbers: Sequence[int] | None = None) -> None:
        """Lets the process release these outputs (or all)."""
        for number in list(self.kept) if numbers is None else numbers:
            del self.kept[number]

    def kept_now(self, number: int, block: Block, call: int, deadline_s: float) -> list[Any]:
        """The current values of outputs kept under a number; see :meth:`outputs`."""
        return self.outputs(block, call)

    def outputs_later(self, earlier: list[Block], deadline_s: float) -> list[list[Any]]:
        """The current outputs of earlier one-call blocks: of the one before the last, the one before that and so
        on.
        """
        return [self.outputs(block, 0) for block in earlier]

    def aliased(self, block: Block) -> frozenset[int]:
        """Which outputs of the block's first call are in the memory of the inputs."""
        spans = [meta.span_bytes for meta in block.report.metas]
        return inside(self.process.pid, list(zip(block.report.addresses[0], spans, strict=True)), NAME)

    def oracle(
        self, kinds: list[dict[str, Any]], rows: tuple[int, int, list[int]] | None = None
    ) -> list[list[Any]]:
        """The float64 outputs of the reference for the first slot (flat, logical order), one list for each kind.

        Each kind has ``tier`` (other than ``strict``: operands of products are rounded to it) and ``move``, None
        or the fields of :class:`evaluator.roles.exact.Move`. With ``rows`` (first, end, indices of tensors) only
        these rows of these tensors are computed.
        """
        request = {"shape": self.key, "slot": 0, "kinds": kinds, "rows": rows}
        answer = self.process.request(protocol.ORACLE, request, CALL_SECONDS * len(kinds))
        report = self._report(answer, len(kinds))
        self.process.freeze()
        return [
            [
                dense(span, meta)
                for span, meta in zip(self._read(report.metas, row), report.metas, strict=True)
            ]
            for row in report.addresses
        ]

    def _oracle_room_bytes(self) -> int:
        return _ORACLE_BYTES

    def most_kinds(self, metas: tuple[TensorMeta, ...]) -> int:
        """For how many kinds :meth:`oracle` can be asked at once, with outputs like these; at least one."""
        each_bytes = sum(
            (16 if meta.dtype.startswith("complex") else 8) * meta.elements + _SPARE_BYTES for meta in metas
        )
        return max(1, self._oracle_room_bytes() // each_bytes)

    def _report(self, payload: bytes, calls: int) -> BlockReport:
        try:
            return frames.decode_report(payload, calls)
        except frames.FrameError as error:
            self.process.kill()
            raise ProtocolViolation(
                "contract_violation", f"its block report is invalid: {error}", role=self.process.name
            ) from None

    def _read(self, metas: tuple[TensorMeta, ...], addresses: tuple[int, ...]) -> list[Any]:
        """Private copies of outputs at the claimed addresses."""
        return [
            self.process.read_memory(address, meta.span_bytes).view(carrier(meta.dtype))
            for meta, address in zip(metas, addresses, strict=True)
        ]

    def follows(self, outputs: list[Any], state: int, claimed: int) -> bool:
        """Whether this is the chain's state after a call with these outputs; the same arithmetic as in the role."""
        return follows(self._chain, [(one.ctypes.data, one.nbytes) for one in outputs], state, claimed)

    def broken_links(self, block: Block) -> int:
        """After how many calls of a block the claimed state does not follow from their outputs.

        Checking one call and its links finds a candidate that computes something wrong. It rarely finds one that
        breaks the chain at a single place. The calls behind that place then do not depend on those before it, so
        both parts can run at the same time, and with one place among several hundred most blocks would pass.
        States can be overwritten, because they are in the process's own memory. Here some links, drawn now, are
        checked, which takes 0.2 ms.
        """
        each_bytes = sum(meta.span_bytes for meta in block.report.metas)
        count = min(_MOST_LINKS, block.calls, _MOST_LINKS_BYTES // max(each_bytes, 1))
        states = [block.first_state, *block.report.states]
        drawn = random.SystemRandom().sample(range(block.calls), count)
        return sum(not self.follows(self.outputs(block, at), states[at], states[at + 1]) for at in drawn)

    def agree(
        self,
        spans: list[Any],
        metas: tuple[TensorMeta, ...],
        own_spans: list[Any],
        own_metas: tuple[TensorMeta, ...],
        bounds: list[Bounds],
        *,
        thorough: bool = False,
    ) -> bool:
        """Whether outputs agree with the reference's own, see :func:`evaluator.oracle.glance.agree`."""
        return all(
            agree(
                dense(span, meta),
                dense(own, own_meta),
                meta.dtype,
                bound,
                own_meta.shape,
                thorough=thorough,
            )
            for span, meta, own, own_meta, bound in zip(
                spans, metas, own_spans, own_metas, bounds, strict=True
            )
        )

    def close(self, *, collect: bool = True) -> None:
        """Closes the shape on both ends.

        With ``collect``, also collects reference cycles there, which takes 0.2 s.
        """
        self.process.modules.pop(self.key, None)
        try:
            if not self.process.dead:
                self.process.request(protocol.CLOSE, {"shape": self.key, "collect": collect}, 30.0)
        finally:
            self.release()

    def release(self) -> None:
        """Releases the referee's end of the shared memory."""
        self.arena.close()
