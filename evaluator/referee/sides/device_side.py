"""A side on a GPU: the referee's own kernels write contents and read outputs in shared device memory."""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch

from evaluator.content import distributions
from evaluator.content.pools import Mixed
from evaluator.devices.accelerator import GPU_TYPE
from evaluator.errors import ProtocolViolation, RoleFailure, RoleReported
from evaluator.referee.memory.device_draws import DeviceDraws, parts_of
from evaluator.referee.memory.device_work import Keeper, upload
from evaluator.referee.memory.lending import ProcessMemory, Region
from evaluator.referee.memory.poisoning import poison
from evaluator.referee.memory.sizes import MemorySize, slot_bytes
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.shape_inputs import ShapeInputs
from evaluator.referee.sides.side import NO_STATE, Side
from evaluator.referee.sides.slots import Drawn
from evaluator.roles import protocol
from evaluator.roles.chain import Chain, when_of
from evaluator.roles.exchange import INPUT_MEMORY
from evaluator.roles.frames import TensorMeta
from evaluator.roles.gate import NeverDone
from evaluator.roles.process import RoleProcess

_EXCHANGE_SECONDS = 60.0
#: How long a replay may run while its process is stopped.
_REPLAY_SECONDS = 5.0
_NULLS = 15
#: Memory for outputs that was too small for a baseline grows by this factor, if this much stays free.
_GROWTH, _MOST_GROWTH, _GROWTH_SPARE_BYTES = 1.5, 8, 2 << 30
#: Owner of slots that may hold contents of more than one shape.
_NO_OWNER = 0


class DeviceSide(Side):
    """A side on a GPU, see :class:`evaluator.referee.sides.side.Side`.

    Spans and contents of timed calls stay there as flat bytes.
    """

    gpu = True

    def __init__(
        self,
        process: RoleProcess,
        key: int,
        inputs: ShapeInputs,
        chain: Chain,
        keeper: Keeper,
        size: MemorySize,
        usual_size: MemorySize,
    ) -> None:
        self._keeper = keeper
        #: What the process must have, and what blocks of ordinary shapes fit into.
        self._size, self._usual_size = size, usual_size
        self._nulls_ns: dict[tuple[int, bool, bool], deque[int]] = {}
        super().__init__(process, key, inputs, chain)

    # -- memory ------------------------------------------------------------------------------------------------

    def _memory(self) -> ProcessMemory:
        """What this process shares with the referee over all shapes."""
        assert isinstance(self.process.memory, ProcessMemory)
        return self.process.memory

    def _lend(self, size: MemorySize, *, keeps: bool = False) -> None:
        """Gives the process memory of at least this size, replacing a smaller one.

        With ``keeps``, tables that its module has allocated there stay mapped.
        """
        process = self.process
        if process.memory is not None:
            if process.memory.size.holds(size):
                return
            size = size.or_larger(process.memory.size)
            process.request(protocol.EXCHANGE, {"leave": True, "keeps": keeps}, _EXCHANGE_SECONDS)
            before, process.memory = process.memory, None
            before.gate.close()
            before.free()
        process.memory, request = self._keeper.process_memory(size)
        process.memory.ended = process.watch_end()
        code = self._keeper.code()
        memory = process.memory
        descriptors = (memory.outputs.descriptor, memory.inputs.descriptor, code, memory.gate.descriptor)
        try:
            process.request(protocol.EXCHANGE, request, _EXCHANGE_SECONDS, descriptors)
        finally:
            os.close(code)

    def _count_slots(self) -> int:
        """As many slots as fit: rotating over them evicts an input from the L2 cache before its turn comes again."""
        self._lend(self._size)
        return self._memory().size.slots(slot_bytes(self.inputs.tensors))

    def _allocate(self, fixed_bytes: int, slots_bytes: int) -> None:
        self._region = self._keeper.region(fixed_bytes)
        assert slots_bytes <= self._slots.length_bytes and self.slot_count > 0

    @property
    def _slots(self) -> Region:
        """Slots of all shapes overlap: contents are written anew before every block."""
        return self._memory().inputs

    def _shared(self) -> tuple[int, int]:
        return self._region.descriptor, self._region.length_bytes

    def _put(self, offset: int, values: Any) -> None:
        source = values if isinstance(values, torch.Tensor) else upload(values)
        self._region.bytes[offset : offset + source.numel()].copy_(source)
        self._keeper.wait()

    def _slot_offset(self, index: int, position: int) -> int:
        return self._offsets[position] - self._slots_from + index * self._slot_bytes

    def _span(self, index: int, position: int) -> torch.Tensor:
        """The memory of one tensor of a slot."""
        offset = self._slot_offset(index, position)
        return self._slots.bytes[offset : offset + self.inputs.tensors[position].meta.span_bytes]

    def release(self) -> None:
        """Releases the referee's end of the shared memory."""
        self._region.close()

    def most_calls(self, metas: tuple[TensorMeta, ...]) -> int:
        """See :meth:`Side.most_calls`: the exchange must hold all outputs, with the gaps between them."""
        each_bytes = sum(meta.span_bytes for meta in metas)
        fits = min(self.slot_count, self._memory().size.calls(each_bytes))
        return min(fits, self.inputs.needs.most_calls(self._usual_size, each_bytes))

    def grows_for(self, failure: RoleFailure) -> bool:
        """See :meth:`Side.grows_for`. At most eight times the first estimate for its shape."""
        if protocol.TOO_SMALL not in failure.sentence:
            return False
        size, free_bytes = self._memory().size, self._keeper.free_bytes()[0]
        # Either may have been too small: outputs that are allocated elsewhere, as by a thread of the module's own, are copied.
        more = replace(
            size,
            pool_bytes=int(size.pool_bytes * _GROWTH),
            copies_bytes=int(size.copies_bytes * _GROWTH),
        )
        # The current memory may stay mapped.
        if more.outputs_bytes + _GROWTH_SPARE_BYTES > free_bytes:
            return False
        if more.pool_bytes > _MOST_GROWTH * self._size.pool_bytes:
            return False
        self._lend(more, keeps=True)
        return True

    def _load_state(self, request: dict[str, Any], deadline_s: float) -> None:
        """See :meth:`Side._load_state`. The role copies weights from memory that is released afterwards."""
        if not self._state:
            return super()._load_state(request, deadline_s)
        region = self._keeper.region(self._state_bytes)
        try:
            for entry, offset in zip(self._state, self._state_offsets, strict=True):
                source = entry.values if isinstance(entry.values, torch.Tensor) else upload(entry.values)
                source = source.view(torch.uint8).reshape(-1)
                region.bytes[offset : offset + source.numel()].copy_(source)
            self._keeper.wait()
            descriptors = (self._region.descriptor, region.descriptor)
            request = {**request, "state_bytes": region.length_bytes}
            self.process.request(protocol.IMPORT, request, deadline_s, descriptors)
        finally:
            region.close()

    # -- contents ----------------------------------------------------------------------------------------------

    def own(self) -> None:
        """Fills every slot if another shape's contents are there: used as indices they could point anywhere."""
        if self._memory().owner != self.key:
            self.fill(self.slot_count)

    def _note(self, count: int) -> None:
        """The first ``count`` slots are about to be written; others may hold another shape's contents."""
        memory = self._memory()
        if memory.owner != self.key:
            memory.owner = self.key if count == self.slot_count else _NO_OWNER

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
        """See :meth:`Side.ready`."""
        if warm is not None:
            self.own()
        super().ready(
            deadline_s, warm=warm, threads=threads, poison=poison, keep=keep, captured=captured, calls=calls
        )

    def capture(self, variant: str, calls: int, deadline_s: float, *, same_slot: bool = False) -> None:
        """See :meth:`Side.capture`. One replay shows whether it runs without the host."""
        self.own()
        self._memory().gate.release()
        super().capture(variant, calls, deadline_s, same_slot=same_slot)
        self.ready(deadline_s, warm=variant, captured=True)
        self.block(calls, deadline_s, variant=variant, chained=True, captured=True)

    def _token(self, *, captured: bool) -> int:
        gate = self._memory().gate
        if captured:
            return gate.shut()
        gate.release()
        return 0

    def _replay(self, calls: int, deadline_s: float, variant: str) -> Block:
        """See :meth:`Side.block`. It runs while its process is stopped, see :mod:`evaluator.roles.gate`.

        Raises:
            RoleReported: it did not end, because it failed or waits for the host.
        """
        gate = self._memory().gate
        first_state = secrets.randbits(62) if self.chained else NO_STATE
        try:
            elapsed_ns = gate.run(first_state, min(deadline_s, _REPLAY_SECONDS))
        except NeverDone:
            # If the device has failed, its error says so.
            self.process.request(protocol.WAKE, {}, deadline_s)
            sentence = "its replay does not end while its process is stopped"
            raise RoleReported("runtime_error", sentence, role=self.process.name) from None
        report = replace(self._report(self._announced, calls), states=gate.states(calls))
        return Block(report, calls, first_state, elapsed_ns, variant)

    def fill(self, count: int, *, mixed: bool = True) -> None:
        """Writes fresh contents of the task's own distribution into the first ``count`` slots; single windows
        unless ``mixed``.
        """
        assert count <= self.slot_count
        self._note(count)
        common = self._common_draws(count)
        self.drawn = [
            tensor.draw_mixed(count, self._generator, self._keeper.draw_bits, common)
            if mixed
            else Mixed(*tensor.draw(count, self._generator, common))
            for tensor in self.inputs.tensors
        ]
        targets = [
            (tensor, self._slots.pointer + self._slot_offset(0, position))
            for position, tensor in enumerate(self.inputs.tensors)
        ]
        began_ns = time.perf_counter_ns()
        self._keeper.fill(targets, self._slot_bytes, self.drawn)
        # Slots that all fit into a cache would still be there when the clock starts.
        self._keeper.chill()
        self._keeper.wait()
        self.look = self._keeper.look(began_ns)

    def contents(self, index: int) -> list[Any]:
        """Private copies of a slot's tensors as they are now, as bytes on the device."""
        copies = [self._span(index, position).clone() for position in range(len(self.inputs.tensors))]
        self._keeper.wait()
        return copies

    # -- in pieces, see :mod:`evaluator.referee.checking.large` ----------------------------------------------------------

    def slot(self, index: int) -> list[torch.Tensor]:
        """The memory of a slot's tensors, flat bytes."""
        return [self._span(index, position) for position in range(len(self.inputs.tensors))]

    def claimed(self, block: Block, call: int) -> list[torch.Tensor]:
        """The memory of a call's outputs, flat bytes. The process's next call changes it."""
        row = list(zip(block.report.addresses[call], block.report.metas, strict=True))
        spans = [self._claimed(address, meta) for address, meta in row]
        self._memory().returned = [s for s, (at, _) in zip(spans, row, strict=True) if not at & INPUT_MEMORY]
        return spans

    def take_slot(self, other: DeviceSide) -> None:
        """Copies the first slot of another process into this one's."""
        self._note(1)
        for target, source in zip(self.slot(0), other.slot(0), strict=True):
            target.copy_(source)
        self._keeper.wait()

    def rebuild(self, drawn: Drawn, states: Sequence[int]) -> None:
        """Writes what was drawn for the first slot of another process, refreshed in each of these states in turn."""
        self._note(1)
        targets = self.slot(0)
        of_slot = [one.only(0) for one in drawn]
        pairs = [(tensor, t.data_ptr()) for tensor, t in zip(self.inputs.tensors, targets, strict=True)]
        self._keeper.fill(pairs, 0, of_slot)
        self._keeper.refresh(self._refresh_rows(targets), states)
        self._keeper.wait()

    def poison(self, *, at_first: bool = False) -> None:
        """Before a call: see :func:`evaluator.referee.memory.poisoning.poison`."""
        poison(self._memory(), at_first=at_first)
        self._keeper.wait()

    def call_slot(self, deadline_s: float, *, strict: bool = False) -> Block:
        """One untimed call on the first slot. Earlier outputs are released."""
        self.process.freeze()
        readiness = self._readiness(None, None, None, keep=False, token=0, calls=1)
        return self.block(1, deadline_s, strict=strict, readiness=readiness)

    def fill_from(self, distribution: str, *, signs: bool = False) -> None:
        """See :meth:`Side.fill_from`."""
        self.fill(1, mixed=False)
        for position, tensor in enumerate(self.inputs.tensors):
            if distributions.changes(distribution, tensor):
                meta = tensor.meta
                elements = self._span(0, position).view(getattr(torch, meta.dtype))
                elements = elements.as_strided(meta.shape, meta.strides)
                wide = torch.complex128 if elements.is_complex() else torch.float64
                for part in parts_of(elements):
                    rows = part.to(wide).reshape(-1, meta.shape[-1])
                    values = distributions.transformed(distribution, rows, tensor, DeviceDraws(), signs=signs)
                    part.copy_(values.reshape(part.shape))
        self._keeper.wait()

    def write(self, index: int, contents: list[Any]) -> None:
        """Writes given contents (of the host or the device) into a slot."""
        self._note(1)
        for position, content in enumerate(contents):
            source = content if isinstance(content, torch.Tensor) else upload(content)
            self._span(index, position).copy_(source)
        self._keeper.wait()

    def holds(self, index: int, contents: list[Any]) -> bool:
        """Whether a slot still holds exactly these contents (bit for bit)."""
        return self.same([self._span(index, position) for position in range(len(contents))], contents)

    def same(self, held: list[Any], contents: list[Any]) -> bool:
        """Whether contents are equal (bit for bit); the second ones may be on the host."""
        return all(
            torch.equal(one, other if isinstance(other, torch.Tensor) else upload(other))
            for one, other in zip(held, contents, strict=True)
        )

    def refreshed(self, drawn: Drawn, index: int, states: Sequence[int]) -> list[Any]:
        """What a slot must hold after the chain has refreshed it in each of these states in turn; on the device."""
        contents = [
            torch.empty(tensor.meta.span_bytes, dtype=torch.uint8, device=GPU_TYPE)
            for tensor in self.inputs.tensors
        ]
        of_slot = [one.only(index) for one in drawn]
        targets = [
            (tensor, content.data_ptr())
            for tensor, content in zip(self.inputs.tensors, contents, strict=True)
        ]
        self._keeper.fill(targets, 0, of_slot)
        self._keeper.refresh(self._refresh_rows(contents), states)
        return contents

    def _refresh_rows(self, contents: list[torch.Tensor]) -> list[tuple[int, ...]]:
        """What the chain replaces in contents stored as flat bytes."""
        return [
            (
                content.data_ptr(),
                self._region.pointer + self._pool_offsets[position],
                tensor.pool.itemsize,
                content.numel() // tensor.pool.itemsize,
                tensor.pool.size,
                tensor.refresh_stride,
                int(tensor.keeps_zeros),
            )
            for position, (tensor, content) in enumerate(zip(self.inputs.tensors, contents, strict=True))
            if tensor.rollable
        ]

    # -- the harness's own time ----------------------------------------------------------------------------------

    def null_ns(
        self,
        calls: int,
        metas: tuple[TensorMeta, ...],
        *,
        captured: bool = False,
        again: bool = True,
        same_slot: bool = False,
    ) -> int:
        """See :meth:`Side.null_ns`.

        Between eager calls, the host's part of a link overlaps with the device's work or the reverse. Only the
        device's time for a link is subtracted, since it never overlaps and the host's part is larger. This
        subtracts too little rather than too much.
        """
        counted = calls if captured else 1
        seen = self._nulls_ns.setdefault((counted, captured, same_slot), deque(maxlen=_NULLS))
        if again or not seen:
            seen.append(super().null_ns(counted, metas, captured=captured, same_slot=same_slot))
        # It is constant, and its noise should not enter the figure.
        ends_ns = int(statistics.median(seen))
        if captured:
            return ends_ns
        return ends_ns + round((calls - 1) * self._link_us(metas, same_slot=same_slot) * 1e3)

    def _link_us(self, metas: tuple[TensorMeta, ...], *, same_slot: bool) -> float:
        """Device time of one link of the chain in us, measured by the referee's own process once per kind of
        shape.
        """
        count = 64 if same_slot else min(self.slot_count, 64)
        refreshed = [tensor for tensor in self.inputs.tensors if tensor.rollable]
        like = (
            same_slot,
            count,
            tuple(meta.span_bytes for meta in metas),
            tuple((t.pool.itemsize, t.size, t.pool.size, t.refresh_stride, t.keeps_zeros) for t in refreshed),
        )
        if like not in self._keeper.links_us:
            slots = [0] * count if same_slot else range(count)
            rows = [self._refresh_rows(self.slot(index)) for index in slots]
            outputs_bytes = [meta.span_bytes for meta in metas]
            self._keeper.links_us[like] = self._keeper.link_us(rows, outputs_bytes)
        return self._keeper.links_us[like]

    # -- outputs -----------------------------------------------------------------------------------------------

    def _claimed(self, address: int, meta: TensorMeta) -> torch.Tensor:
        region = self._slots if address & INPUT_MEMORY else self._memory().outputs
        address &= ~INPUT_MEMORY
        if address + meta.span_bytes > region.length_bytes:
            self._claims_wrongly()
        return region.bytes[address : address + meta.span_bytes]

    def _claims_wrongly(self) -> NoReturn:
        self.process.kill()
        raise ProtocolViolation(
            "contract_violation",
            "the claimed output does not lie in the memory that is shared for it",
            role=self.process.name,
        )

    def _read(self, metas: tuple[TensorMeta, ...], addresses: tuple[int, ...]) -> list[Any]:
        """Private copies on the device, as bytes.

        They are complete when this returns, so nothing can change them.
        """
        copies = [
            self._claimed(address, meta).clone() for address, meta in zip(addresses, metas, strict=True)
        ]
        self._keeper.wait()
        return copies

    def outputs_later(self, earlier: list[Block], deadline_s: float) -> list[list[Any]]:
        """See :meth:`Side.outputs_later`.

        Copies that the process made for the referee do not count, so it is asked again.
        """
        calls = [-2 - age for age in range(len(earlier))]
        # A report describes outputs once, for all calls.
        together = all(block.report.metas == earlier[0].report.metas for block in earlier)
        needed_bytes = sum(meta.span_bytes + (1 << 10) for block in earlier for meta in block.report.metas)
        together &= needed_bytes <= self._memory().size.copies_bytes
        later = []
        for asked in [calls] if together and calls else [[call] for call in calls]:
            request = {"shape": self.key, "calls": asked}
            report = self._report(self.process.request(protocol.FETCH, request, deadline_s), len(asked))
            later += [self._read(report.metas, row) for row in report.addresses]
        self.process.freeze()
        return later

    def kept_now(self, number: int, block: Block, call: int, deadline_s: float) -> list[Any]:
        """See :meth:`Side.kept_now`. The process copies only outputs that are outside the pool's memory."""
        row, pool_bytes = block.report.addresses[call], self._memory().pool_bytes
        if all(address < pool_bytes or address & INPUT_MEMORY for address in row):
            return self.outputs(block, call)
        # For the last block: the process has not got ready since, so it does not know yet what it has to keep.
        request = {"shape": self.key, "held": number, "calls": [call]}
        report = self._report(self.process.request(protocol.FETCH, request, deadline_s), 1)
        self.process.freeze()
        return self._read(report.metas, report.addresses[0])

    def _oracle_room_bytes(self) -> int:
        """See :meth:`Side.most_kinds`: what the exchange has for copies, less the gaps between them."""
        return self._memory().size.copies_bytes * 3 // 4

    def aliased(self, block: Block) -> frozenset[int]:
        """Which outputs of the block's first call are in the memory of the inputs."""
        return frozenset(
            index for index, address in enumerate(block.report.addresses[0]) if address & INPUT_MEMORY
        )

    def follows(self, outputs: list[Any], state: int, claimed: int) -> bool:
        """Whether this can be the chain's state after a call with these outputs.

        Its last bits say when the link began.
        """
        return self._keeper.digest(outputs, state, when_of(claimed)) == claimed

    def broken_links(self, block: Block) -> int:
        """See :meth:`Side.broken_links`. One kernel checks all of them."""
        lengths_bytes = [meta.span_bytes for meta in block.report.metas]
        lengths = np.array(lengths_bytes, dtype=np.uint64)
        claimed = np.array(block.report.addresses, dtype=np.uint64)
        in_slots = claimed & np.uint64(INPUT_MEMORY) != 0
        offsets = claimed & ~np.uint64(INPUT_MEMORY)
        outputs = self._memory().outputs
        most = np.where(in_slots, self._slots.length_bytes, outputs.length_bytes).astype(np.uint64)
        # A sum alone could start again at 0.
        if ((offsets > most) | (offsets + lengths > most)).any():
            self._claims_wrongly()
        pointers = offsets + np.where(in_slots, np.uint64(self._slots.pointer), np.uint64(outputs.pointer))
        return self._keeper.broken(pointers, lengths_bytes, [block.first_state, *block.report.states])
