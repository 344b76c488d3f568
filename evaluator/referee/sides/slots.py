"""What one process shares with the referee at one shape: weights, and slots with the contents of a block's calls."""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluator.content import distributions
from evaluator.content.pools import Array
from evaluator.errors import RoleFailure
from evaluator.referee.sides.shape_inputs import ShapeInputs, bound
from evaluator.roles import protocol
from evaluator.roles.arena import Arena, Layouter
from evaluator.roles.chain import Chain, Refresh
from evaluator.roles.process import RoleProcess

_ALL_SLOTS_BYTES = 96 << 20
_MIN_SLOTS, _MAX_SLOTS = 6, 384
#: Two slots of this many bytes evict each other from any cache.
_LARGE_SLOT_BYTES, _LARGE_SLOTS = 64 << 20, 2
#: Per tensor, what was drawn for each slot; here :class:`evaluator.content.pools.Mixed`.
Drawn = list[Any]


class Slots:
    """The memory of one process at one shape, in the host's memory; the base of a side.

    Args:
        process: the role's process, with the user's file loaded.
        key: number of the shape in that process.
        inputs: what it gets.
        chain: the referee's own copy of the chain.
    """

    gpu = False

    def __init__(self, process: RoleProcess, key: int, inputs: ShapeInputs, chain: Chain) -> None:
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
            state.append({"name": entry.name, "offset": offset, "meta": asdict(entry.meta)})
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
