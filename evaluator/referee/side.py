"""One process at one shape: its arena, the contents of its slots, and blocks of calls on the referee's clock."""

from __future__ import annotations

import ctypes
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from evaluator.content import distributions
from evaluator.content.pools import Array, TensorInput
from evaluator.errors import ProtocolViolation
from evaluator.oracle.numbers import is_inexact
from evaluator.roles import frames, runner
from evaluator.roles.arena import Arena, Layouter, carrier
from evaluator.roles.chain import Chain, Refresh
from evaluator.roles.frames import BlockReport, TensorMeta
from evaluator.roles.process import RoleProcess

_SLOT_BYTES = 96 << 20
_MIN_SLOTS, _MAX_SLOTS = 6, 384
_NO_STATE = 0


@dataclass(frozen=True)
class PlainInput:
    """An argument that is no tensor, in its encoded form; ``tensors`` are those within it, which it names by number."""

    value: Any
    tensors: tuple[TensorInput, ...] = ()


@dataclass(frozen=True)
class StateEntry:
    """One entry of a state dict with its (re-drawn) values, flat in the carrier dtype."""

    name: str
    meta: TensorMeta
    values: Array


@dataclass(frozen=True)
class CallPlan:
    """What one call is, as :class:`evaluator.roles.calls.CallSpec` has it: names and places of what is more than forward."""

    training: bool = False
    backward: bool = False
    differentiable: tuple[int, ...] = ()
    gradients: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShapeInputs:
    """What both sides get at one shape.

    Attributes:
        init: encoded arguments of the constructor.
        arguments: of forward.
        state: the weights.
        upstream: gradients of the outputs, where a call is forward and backward; tensors like the inputs.
        call: what a call is.
    """

    init: list[Any]
    arguments: list[TensorInput | PlainInput]
    state: list[StateEntry]
    upstream: tuple[TensorInput, ...] = ()
    call: CallPlan = field(default_factory=CallPlan)

    @property
    def given(self) -> list[TensorInput]:
        """The tensors among the arguments of forward."""
        found: list[TensorInput] = []
        for argument in self.arguments:
            found += [argument] if isinstance(argument, TensorInput) else argument.tensors
        return found

    @property
    def tensors(self) -> list[TensorInput]:
        return [*self.given, *self.upstream]

    def name_of(self, output: int, count: int) -> str:
        """What an output of a call is, in words, empty where there is only one."""
        leaves = [
            number for number, tensor in enumerate(self.given, 1) if is_inexact(tensor.meta.dtype)
        ] * self.call.backward
        first_buffer = count - len(self.call.buffers)
        first_parameter = first_buffer - len(self.call.gradients)
        first_input = first_parameter - len(leaves)
        if output >= first_buffer:
            return f"buffer {self.call.buffers[output - first_buffer]!r} after the call"
        if output >= first_parameter:
            return f"gradient of parameter {self.call.gradients[output - first_parameter]!r}"
        if output >= first_input:
            return f"gradient of input {leaves[output - first_input]}"
        return f"output {output + 1}" if first_input > 1 or count > first_input else ""

    @property
    def input_bytes(self) -> int:
        return sum(tensor.meta.span_bytes for tensor in self.tensors)


@dataclass
class Block:
    """A finished block: what was claimed and how long it took."""

    report: BlockReport
    slots: list[int]
    first_state: int
    elapsed_ns: int
    variant: str


class Side:
    """One process at one shape.

    Args:
        process: the role's process, with the user's file loaded.
        key: number of the shape in that process.
        inputs: what it gets.
        chain: the referee's own copy of the chain.
        gpu: whether the role runs on the GPU.
    """

    def __init__(
        self, process: RoleProcess, key: int, inputs: ShapeInputs, chain: Chain, *, gpu: bool
    ) -> None:
        self.process = process
        self.key = key
        self.inputs = inputs
        self.gpu = gpu
        self._chain = chain
        tensors = inputs.tensors
        count = _SLOT_BYTES // max(inputs.input_bytes, 64)
        self.slot_count = min(max(count, _MIN_SLOTS), _MAX_SLOTS)
        layouter = Layouter()
        self._state_offsets = [layouter.take(entry.meta.span_bytes) for entry in inputs.state]
        self._pool_offsets = [
            layouter.take(tensor.pool.nbytes) if tensor.rollable else -1 for tensor in tensors
        ]
        # All slots are alike and one after the other: what slot 0 holds at x, slot i holds at x + i * slot_bytes.
        before_bytes = layouter.used_bytes
        self._offsets = [layouter.take(tensor.meta.span_bytes) for tensor in tensors]
        self._slot_bytes = layouter.used_bytes - before_bytes
        self.arena = Arena(before_bytes + self.slot_count * self._slot_bytes)
        #: Per tensor what :meth:`fill` drew for each slot: indices of draws, and offsets in elements.
        self._drawn: list[tuple[Array, Array]] = []
        self._generator = np.random.default_rng(secrets.randbits(128))
        self.chained = any(tensor.rollable for tensor in tensors)

    def _target(self, index: int, position: int) -> Array:
        """The memory of one tensor of a slot, flat."""
        offset = self._offsets[position] + index * self._slot_bytes
        return self.arena.tensor(offset, self.inputs.tensors[position].meta)

    def _targets(self, index: int) -> list[Array]:
        return [self._target(index, position) for position in range(len(self._offsets))]

    def open(self, deadline_s: float) -> float:
        """Loads the weights and binds the slots; returns the seconds that constructing the module took."""
        state = []
        for entry, offset in zip(self.inputs.state, self._state_offsets, strict=True):
            self.arena.tensor(offset, entry.meta)[:] = entry.values
            state.append({"name": entry.name, "offset": offset, "meta": _meta_json(entry.meta)})
        request = {
            "shape": self.key,
            "state": state,
            "arena_bytes": self.arena.size_bytes,
            "call": asdict(self.inputs.call),
        }
        started = time.perf_counter()
        self.process.request(runner.IMPORT, request, deadline_s, (self.arena.descriptor,))
        setup_s = time.perf_counter() - started
        refresh = []
        for position, (tensor, offset) in enumerate(
            zip(self.inputs.tensors, self._pool_offsets, strict=True)
        ):
            if tensor.rollable:
                self.arena.view(offset, tensor.pool.nbytes).view(carrier(tensor.meta.dtype))[:] = tensor.pool
                refresh.append([position, offset, tensor.meta.dtype, tensor.pool.size, tensor.refresh_stride])
        leaves = len(self.inputs.given) if self.inputs.call.backward else 0
        tensors = [
            {"meta": _meta_json(tensor.meta), "offset": offset, "leaf": position < leaves}
            for position, (tensor, offset) in enumerate(zip(self.inputs.tensors, self._offsets, strict=True))
        ]
        binding = {
            "shape": self.key,
            "tensors": tensors,
            "arguments": _numbered(self.inputs),
            "refresh": refresh,
            "slots": self.slot_count,
            "slot_bytes": self._slot_bytes,
        }
        self.process.request(runner.BIND, binding, deadline_s)
        return setup_s

    # -- contents ----------------------------------------------------------------------------------------------

    def fill(self, count: int) -> None:
        """Writes fresh contents of the task's own distribution into the first ``count`` slots."""
        assert count <= self.slot_count
        self._drawn = [tensor.draw(count, self._generator) for tensor in self.inputs.tensors]
        for position, (tensor, (draws, offsets)) in enumerate(
            zip(self.inputs.tensors, self._drawn, strict=True)
        ):
            first = self._target(0, position).ctypes.data
            tensor.write_all(self._chain, first, self._slot_bytes, draws, offsets)

    def fill_from(self, distribution: str) -> None:
        """Writes fresh contents of a named distribution into the first slot."""
        for tensor, target in zip(self.inputs.tensors, self._targets(0), strict=True):
            distributions.fill(distribution, tensor, target)

    def contents(self, index: int) -> list[Array]:
        """Private copies of a slot's tensors as they are now, in memory order."""
        return [target.copy() for target in self._targets(index)]

    def write(self, index: int, contents: list[Array]) -> None:
        """Writes given contents into a slot."""
        for target, content in zip(self._targets(index), contents, strict=True):
            target[:] = content

    def holds(self, index: int, contents: list[Array]) -> bool:
        """Whether a slot still holds exactly these contents (bit for bit)."""
        return all(
            np.array_equal(target.view(np.uint8), content.view(np.uint8))
            for target, content in zip(self._targets(index), contents, strict=True)
        )

    def refreshed(self, index: int, state: int) -> list[Array]:
        """What a slot must hold after the chain has refreshed it in state ``state``."""
        contents, entries = [], []
        for tensor, (draws, offsets) in zip(self.inputs.tensors, self._drawn, strict=True):
            content = tensor.rebuild(int(draws[index]), int(offsets[index]))
            contents.append(content)
            if tensor.rollable:
                entries.append((content, tensor))
        if self.gpu:
            for content, tensor in entries:
                places = np.arange(0, content.size, tensor.refresh_stride)
                content[places] = tensor.pool[
                    (np.arange(places.size) + state % tensor.pool.size) % tensor.pool.size
                ]
            return contents
        table = (Refresh * max(len(entries), 1))()
        for entry, (content, tensor) in zip(table, entries, strict=False):
            entry.data, entry.pool = content.ctypes.data, tensor.pool.ctypes.data
            entry.item_bytes, entry.count = content.itemsize, content.size
            entry.pool_count, entry.stride = tensor.pool.size, tensor.refresh_stride
        self._chain.refresh(ctypes.addressof(table), len(entries), state)
        return contents

    # -- blocks ------------------------------------------------------------------------------------------------

    def ready(
        self,
        deadline_s: float,
        *,
        warm: str | None = None,
        threads: int | None = None,
        poison: int | None = None,
        keep: bool = False,
    ) -> None:
        """Has the process forget the last outputs (all but two with ``keep``) before contents are written.

        Giving memory back takes as long as a short kernel, so it is kept off the clock, and so are some calls of the
        variant ``warm`` on what the slots still hold: both sides begin a block in the same state, whatever ran between
        their turns. The process is frozen after.
        """
        request = {"shape": self.key, "warm": warm, "threads": threads, "poison": poison, "keep": keep}
        self.process.request(runner.READY, request, deadline_s)
        self.process.freeze()

    def block(
        self,
        slots: list[int],
        deadline_s: float,
        *,
        variant: str = "eager",
        chained: bool = False,
        strict: bool = False,
    ) -> Block:
        """One call per slot, after :meth:`ready`. The process is frozen before and after.

        The clock starts before the process can read anything of the block (it is frozen while contents and request
        are written) and stops when the kernel says that every thread of it is stopped: from then on its memory is
        the snapshot of its outputs.

        Args:
            slots: which.
            deadline_s: for the whole block.
            variant: name of the form of the module that is called.
            chained: whether each call refreshes its inputs from the call before.
            strict: whether products are computed in full precision, whatever the task's tier allows.
        """
        process = self.process
        if self.gpu:
            process.request(runner.UPLOAD, {"shape": self.key, "slots": slots}, deadline_s)
        process.freeze()
        first_state = secrets.randbits(62) if chained and self.chained else _NO_STATE
        request = {
            "shape": self.key,
            "slots": slots,
            "variant": variant,
            "state": first_state,
            "chain": chained and self.chained,
            "strict": strict,
        }
        sequence = process.send(runner.BLOCK, request)
        started = time.perf_counter_ns()
        process.thaw()
        payload = process.receive(runner.BLOCK, sequence, deadline_s)
        elapsed_ns = process.freeze() - started
        try:
            report = frames.decode_report(payload, len(slots))
        except frames.FrameError as error:
            process.kill()
            raise ProtocolViolation(
                "contract_violation", f"its block report is invalid: {error}", role=process.name
            ) from None
        return Block(report, slots, first_state, elapsed_ns, variant)

    def outputs(self, block: Block, call: int, deadline_s: float) -> list[Array]:
        """Private copies of the outputs of one call: flat spans in their carrier dtypes, in memory order."""
        metas, addresses = block.report.metas, block.report.addresses[call]
        if self.gpu:
            payload = self.process.request(runner.FETCH, {"shape": self.key, "call": call}, deadline_s)
            metas, addresses = self._host_report(payload)
            self.process.freeze()
        return self._read(metas, addresses)

    def oracle(
        self, index: int, deadline_s: float, *, tier: str = "fp32", move: dict[str, Any] | None = None
    ) -> list[Array]:
        """The float64 outputs of the reference for the contents of a slot (flat, logical order).

        Below ``fp32`` the operands of its products are rounded as in that tier; ``move`` holds the fields of
        :class:`evaluator.roles.exact.Move`.
        """
        if self.gpu:
            self.process.request(runner.UPLOAD, {"shape": self.key, "slots": [index]}, deadline_s)
        payload = self.process.request(
            runner.ORACLE, {"shape": self.key, "slot": index, "tier": tier, "move": move}, deadline_s
        )
        metas, addresses = self._host_report(payload)
        values = self._read(metas, addresses)
        self.process.freeze()
        return values

    def _host_report(self, payload: bytes) -> tuple[tuple[TensorMeta, ...], tuple[int, ...]]:
        try:
            report = frames.decode_report(payload, 1)
        except frames.FrameError as error:
            self.process.kill()
            raise ProtocolViolation(
                "contract_violation", f"its report is invalid: {error}", role=self.process.name
            ) from None
        return report.metas, report.addresses[0]

    def _read(self, metas: tuple[TensorMeta, ...], addresses: tuple[int, ...]) -> list[Array]:
        return [
            self.process.read_memory(address, meta.span_bytes).view(carrier(meta.dtype))
            for meta, address in zip(metas, addresses, strict=True)
        ]

    def digest(self, outputs: list[Array], state: int) -> int:
        """The chain's state after a call with these outputs; the same arithmetic as in the role."""
        if self.gpu:
            state *= 31
            for output in outputs:
                raw = output.view(np.uint8)
                whole = raw.size // 4 * 4
                state += int(raw[:whole].view(np.uint32).sum(dtype=np.uint64)) + int(
                    raw[whole:].sum(dtype=np.uint64)
                )
            return state & ((1 << 64) - 1)
        for output in outputs:
            state = self._chain.digest(output.ctypes.data, output.nbytes, state)
        return state

    def close(self) -> None:
        """Forgets the shape on both ends."""
        if not self.process.dead:
            self.process.request(runner.CLOSE, {"shape": self.key}, 30.0)
        self.arena.close()


def _meta_json(meta: TensorMeta) -> dict[str, Any]:
    return {"dtype": meta.dtype, "shape": list(meta.shape), "strides": list(meta.strides)}


def _numbered(inputs: ShapeInputs) -> list[Any]:
    """The encoded arguments of a call, in which tensors are numbered through."""
    encoded: list[Any] = []
    used = 0
    for argument in inputs.arguments:
        if isinstance(argument, TensorInput):
            encoded.append({"tensor": used})
            used += 1
        else:
            encoded.append(_shifted(argument.value, used))
            used += len(argument.tensors)
    return encoded + [{"tensor": used + number} for number in range(len(inputs.upstream))]


def _shifted(value: Any, by: int) -> Any:
    """An encoded value with ``by`` added to the numbers of its tensors."""
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tensor":
        return {tag: content + by}
    if tag in ("list", "tuple"):
        return {tag: [_shifted(item, by) for item in content]}
    if tag == "dict":
        return {tag: {key: _shifted(item, by) for key, item in content.items()}}
    return value
