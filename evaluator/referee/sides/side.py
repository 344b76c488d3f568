"""One process at one shape: its arena, the contents of its slots, and blocks of calls on the referee's clock."""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluator.content import distributions
from evaluator.content.pools import Array
from evaluator.errors import ProtocolViolation, RoleFailure
from evaluator.oracle.compare import dense
from evaluator.oracle.glance import agree
from evaluator.oracle.tolerance import Bounds
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.kept_calls import KeptCalls
from evaluator.referee.sides.shape_inputs import ShapeInputs, bound, meta_json
from evaluator.roles import frames, protocol
from evaluator.roles.arena import NAME, Arena, Layouter, carrier
from evaluator.roles.chain import Chain, Refresh, follows
from evaluator.roles.frames import BlockReport, TensorMeta
from evaluator.roles.kernel_view import inside
from evaluator.roles.process import RoleProcess

_ALL_SLOTS_BYTES = 96 << 20
_MIN_SLOTS, _MAX_SLOTS = 6, 384
#: Two slots of this many bytes evict each other from any cache.
_LARGE_SLOT_BYTES, _LARGE_SLOTS = 64 << 20, 2
#: A process makes at least this many at once.
_FEWEST_SLOTS = 16
NO_STATE = 0
#: Per tensor, what was drawn for each slot; here :class:`evaluator.content.pools.Mixed`.
Drawn = list[Any]
#: Most bytes of oracle results at once in host memory, and the gap between two results.
_ORACLE_BYTES, _SPARE_BYTES = 512 << 20, 512


class Side(KeptCalls):
    """One process at one shape.

    Memory here is the host's. :class:`evaluator.referee.sides.device_side.DeviceSide` is the same on a GPU.

    Args:
        process: the role's process, with the user's file loaded.
        key: number of the shape in that process.
        inputs: what it gets.
        chain: the referee's own copy of the chain.
    """

    gpu = False

    def __init__(self, process: RoleProcess, key: int, inputs: ShapeInputs, chain: Chain) -> None:
        super().__init__()
        self.process = process
        self.key = key
        self.inputs = inputs
        self._chain = chain
        tensors = inputs.tensors
        self.slot_count = self._count_slots()
        #: A shape that is open in this process and calls the same module.
        self._like = next(
            (known for known, other in process.modules.items() if other.state is inputs.state), None
        )
        layouter = Layouter()
        self._state = inputs.state if self._like is None else []
        self._state_offsets = [layouter.take(entry.meta.span_bytes) for entry in self._state]
        self._state_bytes = layouter.used_bytes
        if self.gpu:
            layouter = Layouter()  # weights do not stay in shared memory
        self._pool_offsets = [
            layouter.take(tensor.pool.nbytes) if tensor.rollable else -1 for tensor in tensors
        ]
        # All slots are alike and consecutive: what slot 0 holds at x, slot i holds at x + i * slot_bytes.
        self._slots_from = layouter.used_bytes
        self._offsets = [layouter.take(tensor.meta.span_bytes) for tensor in tensors]
        self._slot_bytes = layouter.used_bytes - self._slots_from
        self._allocate(self._slots_from, self.slot_count * self._slot_bytes)
        self.drawn: Drawn = []  #: What :meth:`fill` drew last; a new list each time.
        #: GPU only: measured after contents were written, see :class:`evaluator.referee.memory.device_work.Look`.
        self.look: Any = None
        self._generator = np.random.default_rng(secrets.randbits(128))
        self._last_common = secrets.randbelow(1 << 30)
        self.chained = any(tensor.rollable for tensor in tensors)
        self._announced = b""  #: What the process last said when it was ready.
        self.ready_ns = 0  #: How long it last took to get ready.

    # -- memory ------------------------------------------------------------------------------------------------

    def _count_slots(self) -> int:
        if self.inputs.input_bytes >= _LARGE_SLOT_BYTES:
            return _LARGE_SLOTS
        count = _ALL_SLOTS_BYTES // max(self.inputs.input_bytes, 64)
        return min(max(count, _MIN_SLOTS), _MAX_SLOTS)

    def _allocate(self, fixed_bytes: int, slots_bytes: int) -> None:
        """Memory for what stays (weights, pools) and, behind it, for the slots."""
        self.arena = Arena(fixed_bytes + slots_bytes)

    def _shared(self) -> tuple[int, int]:
        """Descriptor and size of the memory that the role is given."""
        return self.arena.descriptor, self.arena.size_bytes

    def _put(self, offset: int, values: Array) -> None:
        """Writes values to the shared memory."""
        self.arena.view(offset, values.nbytes)[:] = values.reshape(-1).view(np.uint8)

    def _targets(self, index: int) -> list[Array]:
        """The memory of a slot's tensors, each flat."""
        return [
            self.arena.tensor(offset + index * self._slot_bytes, tensor.meta)
            for offset, tensor in zip(self._offsets, self.inputs.tensors, strict=True)
        ]

    def open(self, deadline_s: float) -> float:
        """Loads the weights and binds the slots. Returns the seconds that constructing the module took."""
        state = []
        for entry, offset in zip(self._state, self._state_offsets, strict=True):
            state.append({"name": entry.name, "offset": offset, "meta": meta_json(entry.meta)})
        _, length_bytes = self._shared()
        request = {
            "shape": self.key,
            "state": state,
            "arena_bytes": length_bytes,
            "call": asdict(self.inputs.call),
            "like": self._like,
        }
        started = time.perf_counter()
        self._load_state(request, deadline_s)
        setup_s = time.perf_counter() - started
        for tensor, offset in zip(self.inputs.tensors, self._pool_offsets, strict=True):
            if tensor.rollable:
                self._put(offset, tensor.pool)
        binding = {
            "shape": self.key,
            **bound(self.inputs, self._offsets, self._pool_offsets),
            "slots_from": self._slots_from,
            "slot_bytes": self._slot_bytes,
        }
        self.process.request(protocol.BIND, binding, deadline_s)
        self.process.modules[self.key] = self.inputs
        return setup_s

    def _load_state(self, request: dict[str, Any], deadline_s: float) -> None:
        """Puts the weights where the process finds them, and has it construct and load its module."""
        for entry, offset in zip(self._state, self._state_offsets, strict=True):
            self._put(offset, entry.values)
        self.process.request(protocol.IMPORT, request, deadline_s, (self._shared()[0],))

    def grows_for(self, failure: RoleFailure) -> bool:
        """GPU only: gives the process more memory if outputs of timed calls did not fit. False if there is none.

        Its contents are lost: slots must be filled again.
        """
        return False

    # -- contents ----------------------------------------------------------------------------------------------

    def own(self) -> None:
        """Makes every slot hold contents of this shape (here they always do, once filled)."""

    def fill(self, count: int) -> None:
        """Writes fresh contents of the task's own distribution into the first ``count`` slots."""
        assert count <= self.slot_count
        common = self._common_draws(count)
        self.drawn = [
            tensor.draw_mixed(count, self._generator, common=common) for tensor in self.inputs.tensors
        ]
        targets = self._targets(0)
        for target, tensor, drawn in zip(targets, self.inputs.tensors, self.drawn, strict=True):
            tensor.write_all(self._chain, target.ctypes.data, self._slot_bytes, drawn)

    def fill_from(self, distribution: str, *, signs: bool = False) -> None:
        """Writes fresh contents of a named distribution into the first slot.

        With ``signs``, of both signs, if no draw is negative but the task allows negative values.
        """
        common = self._common_draws(1)
        self.write(
            0,
            [
                distributions.draw(distribution, one, signs=signs, common=common)
                for one in self.inputs.tensors
            ],
        )

    def _common_draws(self, count: int) -> Array:
        """Random numbers for all inputs of ``count`` calls, see :meth:`TensorInput.draw`.

        Each is one or two more than the one before it, and there are three draws: no call gets those of the call
        before it, so a result that was kept from there is wrong.
        """
        common: Array = self._last_common + np.cumsum(self._generator.integers(1, 3, count))
        self._last_common = int(common[-1])
        return common

    def contents(self, index: int) -> list[Any]:
        """Private copies of a slot's tensors as they are now, in memory order."""
        return [target.copy() for target in self._targets(index)]

    def write(self, index: int, contents: list[Any]) -> None:
        """Writes given contents into a slot."""
        for target, content in zip(self._targets(index), contents, strict=True):
            target[:] = content

    def holds(self, index: int, contents: list[Any]) -> bool:
        """Whether a slot still holds exactly these contents (bit for bit)."""
        return self.same(self._targets(index), contents)

    def same(self, held: list[Any], contents: list[Any]) -> bool:
        """Whether two copies of contents are equal (bit for bit)."""
        pairs = zip(held, contents, strict=True)
        return all(np.array_equal(one.view(np.uint8), other.view(np.uint8)) for one, other in pairs)

    def refreshed(self, drawn: Drawn, index: int, states: Sequence[int]) -> list[Any]:
        """What a slot must hold that got what was drawn for it and was refreshed in each of these states in turn."""
        contents, entries = [], []
        for tensor, mixed in zip(self.inputs.tensors, drawn, strict=True):
            content = tensor.rebuild_mixed(self._chain, mixed, index)
            contents.append(content)
            if tensor.rollable:
                entries.append((content, tensor))
        table = (Refresh * max(len(entries), 1))()
        for entry, (content, tensor) in zip(table, entries, strict=False):
            entry.data, entry.pool = content.ctypes.data, tensor.pool.ctypes.data
            entry.item_bytes, entry.count = content.itemsize, content.size
            entry.pool_count, entry.stride = tensor.pool.size, tensor.refresh_stride
            entry.keeps_zeros = tensor.keeps_zeros
        for state in states:
            self._chain.refresh(ctypes.addressof(table), len(entries), state)
        return contents

    # -- blocks ------------------------------------------------------------------------------------------------

    def most_calls(self, metas: tuple[TensorMeta, ...]) -> int:
        """The longest block: as many calls as there are slots, if all their outputs can be kept."""
        return self.slot_count

    def null_ns(
        self,
        calls: int,
        metas: tuple[TensorMeta, ...],
        deadline_s: float,
        *,
        captured: bool,
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
        return self._takes_ns(protocol.NULL, calls, deadline_s, captured=captured, same_slot=same_slot)

    def least_ns(self, calls: int, deadline_s: float, *, same_slot: bool = False) -> int:
        """Nanoseconds that a block of this many calls takes if the module only makes a tensor and returns it."""
        return self._takes_ns(protocol.LEAST, calls, deadline_s, captured=False, same_slot=same_slot)

    def _takes_ns(self, variant: str, calls: int, seconds: float, *, captured: bool, same_slot: bool) -> int:
        slots = 1 if same_slot else calls
        self.ready(seconds, warm=variant, poison=0, captured=captured, calls=slots)
        self.fill(slots)
        return self.block(
            calls, seconds, variant=variant, chained=True, captured=captured, same_slot=same_slot
        ).elapsed_ns

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
        deadline_s: float,
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
        deadline_s: float,
        *,
        variant: str = "eager",
        chained: bool = False,
        captured: bool = False,
        strict: bool = False,
        readiness: dict[str, Any] | None = None,
        same_slot: bool = False,
        interleaved: bool = False,
        glance: Callable[[], None] = lambda: None,
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
            glance: called once while the process runs; it must return before the answer comes.
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
        glance()
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
        self,
        index: int,
        kinds: list[dict[str, Any]],
        deadline_s: float,
        rows: tuple[int, int, list[int]] | None = None,
    ) -> list[list[Any]]:
        """The float64 outputs of the reference for the contents of a slot (flat, logical order), one list for each
        kind.

        Each kind has ``tier`` (other than ``strict``: operands of products are rounded to it) and ``move``, None
        or the fields of :class:`evaluator.roles.exact.Move`. The deadline is for all of them. With ``rows``
        (first, end, indices of tensors) only these rows of these tensors are computed.
        """
        request = {"shape": self.key, "slot": index, "kinds": kinds, "rows": rows}
        report = self._report(self.process.request(protocol.ORACLE, request, deadline_s), len(kinds))
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
