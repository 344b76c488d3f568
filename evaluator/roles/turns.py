"""A role's turn: binds inputs, gets ready, runs a block of calls, reports where the outputs are."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch

from evaluator.devices.accelerator import GPU_TYPE, device_chain, device_memory, on_gpu, torch_gpu
from evaluator.roles import (
    blocks,
    calls,
    chain,
    dispatch,
    exact,
    frames,
    variants,
)
from evaluator.roles.exchange import INPUT_MEMORY, Exchange
from evaluator.roles.gate import MOST_CALLS, Gated
from evaluator.roles.open_shape import Shape, form_of, leaf, meta_of, read_meta, typed
from evaluator.roles.protocol import LEAST, NULL, OWN_IN_TIER, OWN_RESULT, TOO_SMALL, ContractError
from evaluator.roles.values import decode_value

_WARM_CALLS, _WARM_SECONDS = 16, 0.0005


class Turns:
    """The part of a role that reference and candidate share, so that both have exactly the same cost per call.

    Args:
        device: where the module runs.
        chain_library: path of the compiled chain, or None.
    """

    def __init__(self, device: torch.device, chain_library: str | None) -> None:
        self.device = device
        self.chain = chain.load(chain_library)
        self.module: ModuleType | None = None
        self.shapes: dict[int, Shape] = {}
        self._exact_outputs: list[list[torch.Tensor]] = []
        self._exchange: Exchange | None = None
        self._left: list[Exchange] = []  #: Earlier ones, in which a module may have made tables.
        self._gate: Gated | None = None
        #: The shape of the last timed blocks, and whether they were replays of a graph.
        self._timed: tuple[Shape, bool] | None = None
        #: GPU only: where the slots of all shapes are.
        self._slots: torch.Tensor | None = None
        self._slots_place = (0, 0, 0)
        #: The large shape that was called last.
        self._pooled: Shape | None = None
        #: What its module overrides of torch's own call, once it was seen to run hooks.
        self._own_call: dict[str, Any] = {}

    def bind(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Learns where the arguments of every slot are in the arena; only the first slot is made."""
        shape = self.shapes[request["shape"]]
        shape.slots, shape.binding = [], request
        self._make_slots(shape, 1)
        return b""

    def _make_slots(self, shape: Shape, count: int) -> None:
        """Makes the first ``count`` slots' arguments, as views of the arena.

        Hundreds of them take 18 ms, and without timing only the first is ever used.
        """
        if len(shape.slots) >= count:
            return
        binding = shape.binding
        metas = [read_meta(item["meta"]) for item in binding["tensors"]]
        pools = [
            (position, shape.view(offset, frames.TensorMeta(dtype, (pool_count,), (1,))), stride, keeps_zeros)
            for position, offset, dtype, pool_count, stride, keeps_zeros in binding["refresh"]
        ]
        starts = [index * binding["slot_bytes"] for index in range(len(shape.slots), count)]
        views = [
            [
                self._slot_view(shape, item["offset"] + start, binding["slots_from"], meta)
                for item, meta in zip(binding["tensors"], metas, strict=True)
            ]
            for start in starts
        ]
        for slot, table in zip(views, blocks.tables(views, pools, self.device), strict=True):
            tensors = [
                leaf(view) if item["leaf"] else view
                for item, view in zip(binding["tensors"], slot, strict=True)
            ]
            arguments = [decode_value(item, tensors) for item in binding["arguments"]]
            shape.slots.append(blocks.Slot(arguments, slot, pools, table))

    def _slots_of(self, shape: Shape, request: dict[str, Any]) -> list[blocks.Slot]:
        """The slot of each call of a block: consecutive ones, or the first one repeatedly."""
        calls: int = request["calls"]
        if request["same_slot"]:
            return shape.slots[:1] * calls
        self._make_slots(shape, calls)
        return shape.slots[:calls]

    def wake(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: makes a context, the slowest part before a first call."""
        torch_gpu.init()
        torch.zeros(1, device=GPU_TYPE)
        torch_gpu.synchronize()
        return b""

    def exchange(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: takes the memory in which the referee will read this process's outputs, and the gate.

        It may come again with larger pieces. Before that, a request to ``leave`` releases what is in the old ones.
        """
        if request.get("leave"):
            self._leave_exchange(keeps=bool(request["keeps"]))
            return b""
        self.wake(request, [])
        with os.fdopen(descriptors[2], "rb") as code:
            code.seek(0)
            if self._gate is None:  # once for a process
                device_chain.load(code.read())
                device_chain.block_states(MOST_CALLS)
        self._gate = Gated(descriptors[3])
        self._exchange = Exchange(
            descriptors[0], request["outputs_bytes"], request["pool_bytes"], request["library"]
        )
        handle = device_memory.adopt(descriptors[1])
        address = device_memory.attach(handle, request["inputs_bytes"])
        os.close(descriptors[1])
        self._slots = device_memory.as_bytes(address, request["inputs_bytes"])
        self._slots_place = (address, handle, request["inputs_bytes"])
        return b""

    def _leave_exchange(self, *, keeps: bool) -> None:
        """Unmaps the shared memory that larger pieces will replace.

        With ``keeps``, the outputs' memory, where a module may have made a table in a call, stays mapped until the
        process ends.
        """
        assert self._exchange is not None
        torch_gpu.synchronize()
        for shape in self.shapes.values():
            self._forget(shape)
            shape.slots = []  # made anew when they are needed
        self._exact_outputs, self._timed, self._slots = [], None, None
        gc.collect()
        if keeps:
            self._exchange.leave()
            self._left.append(self._exchange)
        else:
            self._exchange.close()
        device_memory.detach(*self._slots_place)
        self._exchange = None
        if self._gate is not None:
            self._gate.close()

    def ready(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Does what must not be timed: releases the outputs of the last block, sets threads and poison, warms up.

        The referee fills the slots afterwards, so that nothing of the next block is visible meanwhile. With a
        token, the next block is the variant's CUDA graph, which waits behind the gate from now on.
        """
        shape = self.shapes[request["shape"]]
        self._make_slots(shape, 1)
        threads = request["threads"]
        if threads and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if request["poison"] is not None:
            blocks.poison_allocations(request["poison"])
        if request["poison"] and self._exchange is not None:
            tensors = [tensor for row in shape.outputs[-1:] for tensor in row]
            blocks.poison_device_memory(tensors, request["poison"])
        shape.held = {
            number: shape.held[number] if number in shape.held else shape.outputs[call]
            for number, call in request["held"]
        }
        shape.outputs = shape.outputs[-2:] if request["keep"] else []
        if self._exchange is not None:
            self._exchange.forget()
        else:
            # The referee has read what it needed from these.
            self._exact_outputs = []
            for other in self.shapes.values():
                other.outputs = other.outputs if other is shape else []
        gc.collect(0)
        warm = request["warm"]
        if request["light"]:
            self._make_way(shape)
        if warm is not None:
            self._turn_to(shape, captured=bool(request["token"]))
            # The next block will be timed.
            self._make_slots(shape, request["slots"])
        with self._pool(timed=warm is not None):
            if warm == NULL:
                self._make_null(shape, light=request["light"])
            elif warm == LEAST:
                self._make_least(shape)
            if warm is not None and not request["token"]:
                self._warm_up(shape, shape.forwards[warm])
        if not request["token"]:
            return b""
        captured = shape.captured[warm]
        captured.run()
        captured.arm(request["token"])
        return captured.report

    def _make_way(self, shape: Shape) -> None:
        """A large shape's calls get all of the pool: what other shapes returned there is released."""
        before, self._pooled = self._pooled, shape
        if before is shape or self._exchange is None:
            return
        for other in self.shapes.values():
            if other is not shape:
                self._forget(other)
        self._exchange.renew()

    @staticmethod
    def _forget(shape: Shape) -> None:
        """Releases what was recorded and kept for timed blocks of a shape; all of it is in the pool."""
        shape.captured.clear()
        shape.outputs, shape.held = [], {}
        for made in (NULL, LEAST):
            shape.forwards.pop(made, None)

    def _turn_to(self, shape: Shape, *, captured: bool) -> None:
        """Timed blocks of another shape or regime begin: releases what was recorded and kept for the last one."""
        before, self._timed = self._timed, (shape, captured)
        if before is None or before == self._timed or self._exchange is None:
            return
        self._forget(before[0])
        self._exchange.renew()

    @staticmethod
    def _make_least(shape: Shape) -> None:
        """Adds the variant that does next to nothing."""
        if LEAST not in shape.forwards:
            arguments = shape.slots[0].arguments
            least = blocks.Least(blocks.flatten(shape.forwards["eager"](*arguments)), arguments)
            shape.forwards[LEAST] = least.native() or least

    @staticmethod
    def _make_null(shape: Shape, *, light: bool = False) -> None:
        """Adds the variant that returns an output made before.

        With ``light``, a small one, if a real one takes gigabytes.
        """
        if NULL not in shape.forwards and light:
            shape.forwards[NULL] = blocks.constant(torch.zeros(1, device=GPU_TYPE))
        elif NULL not in shape.forwards:
            result = shape.forwards["eager"](*shape.slots[0].arguments)
            eager = shape.forwards["eager"]
            shape.forwards[NULL] = (
                eager.null(result) if isinstance(eager, calls.Call) else blocks.constant(result)
            )

    def _warm_up(self, shape: Shape, forward: Any) -> None:
        until = time.perf_counter() + _WARM_SECONDS
        for slot in shape.slots[:_WARM_CALLS]:
            forward(*slot.arguments)
            if on_gpu(self.device):
                torch_gpu.synchronize()
            if time.perf_counter() > until:
                break

    def _pool(self, *, timed: bool) -> AbstractContextManager[Any]:
        """Where a timed call's outputs are allocated.

        Not for a first call, which may capture a graph of its own.
        """
        return self._exchange.pool() if timed and self._exchange is not None else nullcontext()

    def capture(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: records this many chained calls of a variant as one CUDA graph, replacing an earlier one."""
        assert self._exchange is not None and self._gate is not None
        shape, variant = self.shapes[request["shape"]], request["variant"]
        shape.captured.pop(variant, None)
        self._turn_to(shape, captured=True)
        shape.outputs = []
        slots = self._slots_of(shape, request)
        if variant == NULL:
            with self._exchange.pool():
                self._make_null(shape)
        self._exchange.forget()

        def report(outputs: list[list[torch.Tensor]]) -> bytes:
            self._check_room(outputs)
            return _report(outputs, self._located(outputs)[0], [0] * len(outputs))

        shape.captured[variant] = blocks.Captured(
            shape.forwards[variant],
            slots,
            self._exchange.pool_id,
            self._gate,
            report,
        )
        return b""

    def block(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Runs one block of calls and reports where the outputs are."""
        if request["ready"]:
            self.ready(request["ready"], [])
        shape = self.shapes[request["shape"]]
        if request["pooled"]:
            self._make_way(shape)
        variant = request["variant"]
        results: list[Any] = []
        slots = self._slots_of(shape, request)
        timed = bool(request["timed"])
        forward = shape.forwards[variant]
        if not timed:
            if shape.model is not None:
                given = slots[0].arguments[: len(slots[0].arguments) - len(shape.spec.differentiable)]
                self._own_call = dispatch.refuse_without_hooks(shape.model, given, self._own_call)
            forward = blocks.recording(forward, results)
        strict = request["strict"] and on_gpu(self.device)
        with (
            self._pool(timed=timed or request["pooled"]),
            variants.full_precision() if strict else nullcontext(),
        ):
            if request["interleaved"]:
                outputs, states = blocks.run_interleaved(shape.forwards[variant], slots, results)
            else:
                chained = bool(request["chain"])
                outputs, states = blocks.run(
                    forward, slots, self.chain, request["state"], chained, self.device, self._gate
                )
        if timed or request["pooled"]:
            self._check_room(outputs)
        shape.outputs = shape.outputs + outputs
        structure = blocks.structure(results[0]).encode() if results else b""
        digest = int.from_bytes(hashlib.sha256(structure).digest()[:8], "little") if results else 0
        addresses, placed = self._located(outputs)
        if placed:
            torch_gpu.synchronize()
        return _report(outputs, addresses, states, digest)

    def _check_room(self, outputs: list[list[torch.Tensor]]) -> None:
        """After timed calls: checks that outputs needed no copies on the clock, which would make the module look
        slow.

        Temporaries (a library's workspace, say) may be anywhere.

        Raises:
            torch.OutOfMemoryError: the pool was full, and some of these outputs were allocated elsewhere.
        """
        if self._exchange is None or not self._exchange.overflowed:
            return
        addresses = [tensor.data_ptr() for row in outputs for tensor in row if tensor.numel()]
        if not all(self._is_ours(address) for address in addresses):
            raise torch.OutOfMemoryError(
                f"{TOO_SMALL} for the outputs of timed calls at this shape: a call needs more than {self._exchange.pool_mib} MiB, "
                f"{torch_gpu.memory_allocated() >> 20} MiB are allocated"
            )

    def _is_ours(self, address: int) -> bool:
        """Whether memory is or was shared with the referee: an output there is an input or a table, not a sign of
        a full pool.
        """
        slots = self._slots
        in_slots = slots is not None and 0 <= address - slots.data_ptr() < slots.numel()
        return in_slots or any(at.holds(address) for at in (self._exchange, *self._left) if at is not None)

    def _located(self, outputs: list[list[torch.Tensor]]) -> tuple[frames.Addresses, bool]:
        """Where the referee finds outputs, and whether copies have been queued for that."""
        addresses = np.array([[tensor.data_ptr() for tensor in row] for row in outputs], dtype=np.uint64)
        if self._exchange is None:
            return addresses, False
        if self._exchange.holds_all(addresses):
            return self._exchange.offsets(addresses), False
        placed = [[self._exchange.place(tensor) for tensor in row] for row in outputs]
        offsets = [
            [self._offset(tensor, at) for tensor, at in zip(row, placed_row, strict=True)]
            for row, placed_row in zip(outputs, placed, strict=True)
        ]
        return np.array(offsets, dtype=np.uint64), True

    def _offset(self, tensor: torch.Tensor, placed: torch.Tensor) -> int:
        """Where the copy of an output is, or that the output is in the memory of the inputs."""
        assert self._exchange is not None and self._slots is not None
        inside = tensor.data_ptr() - self._slots.data_ptr()
        if tensor.numel() and 0 <= inside < self._slots.numel():
            return INPUT_MEMORY + inside
        return self._exchange.offset(placed)

    def fetch(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: reports again where the outputs of earlier calls are, as they are now.

        Either of ``calls`` of the last blocks (-1 is the last call), or of the one that is ``held`` under a
        number, if it already is. The referee has copied earlier outputs, so the old copies here are discarded.
        """
        shape = self.shapes[request["shape"]]
        held = shape.held.get(request.get("held", 0))
        rows = [held] if held is not None else [shape.outputs[call] for call in request["calls"]]
        assert self._exchange is not None
        self._exchange.forget()
        addresses, _ = self._located(rows)
        torch_gpu.synchronize()
        return _report(rows, addresses, [0] * len(rows))

    def oracle(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: results for a slot's inputs as exactly as they are known, one row for each kind.

        Answers where.

        With ``rows`` (first, end, tensors) only these rows of the named tensors among the arguments are used. The
        kind ``own`` is the module's own result, in full precision; with a move, for inputs moved in their own dtypes.
        """
        shape = self.shapes[request["shape"]]
        self._make_slots(shape, request["slot"] + 1)
        arguments = list(shape.slots[request["slot"]].arguments)
        if request["rows"]:
            arguments = blocks.only_rows(arguments, *request["rows"])
        own = getattr(self.module, "oracle", None)
        own = own if callable(own) else None
        if self._exchange is not None:
            self._exchange.forget()
        rows: list[list[torch.Tensor]] = []
        try:
            for kind in request["kinds"]:
                rows.append([self._kept(tensor) for tensor in self._exactly(shape, arguments, own, kind)])
        finally:
            if self._exchange is not None:
                torch_gpu.synchronize()
                # In float64 a module takes twice its memory, which others need now.
                torch_gpu.empty_cache()
        for row in rows[1:]:
            if [form_of(tensor) for tensor in row] != [form_of(tensor) for tensor in rows[0]]:
                raise ContractError("the oracle's outputs differ in shape or dtype")
        self._exact_outputs = rows
        return _report(rows, self._located(rows)[0], [0] * len(rows))

    @staticmethod
    def _exactly(shape: Shape, arguments: list[Any], own: Any, kind: dict[str, Any]) -> list[torch.Tensor]:
        """One result, see :meth:`oracle`."""
        if kind["tier"] == OWN_IN_TIER:
            with torch.no_grad():
                return [exact.widened(one) for one in blocks.flatten(shape.forwards["eager"](*arguments))]
        move = exact.Move(**kind["move"]) if kind["move"] else None
        if kind["tier"] != OWN_RESULT:
            return exact.outputs(shape, arguments, own, kind["tier"], move)
        with torch.no_grad(), variants.full_precision():
            if move is None:
                return blocks.flatten(shape.forwards["eager"](*arguments))
            arguments = exact.prepared(arguments, move, widen=False)
            return [exact.readable(one) for one in blocks.flatten(shape.forwards["eager"](*arguments))]

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy that the next result cannot change, where the referee reads it."""
        return tensor.clone() if self._exchange is None else self._exchange.place(tensor)

    def variant(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: prepares a baseline (compiles it for exactly this shape and warms it up).

        Reports its code's digest.
        """
        shape = self.shapes[request["shape"]]
        self._make_slots(shape, 1)
        torch.set_num_threads(request["threads"])
        autocast = getattr(torch, request["autocast"]) if request["autocast"] else None
        code = variants.prepare(
            shape, request["variant"], request["mode"], request["threads"], self.device, autocast
        )
        if on_gpu(self.device):
            # First calls are made outside of the pool; others need that memory now.
            torch_gpu.empty_cache()
        return json.dumps({"code": code, "made": variants.made.get(request["mode"])}).encode()

    def _slot_view(self, shape: Shape, offset: int, slots_from: int, meta: frames.TensorMeta) -> torch.Tensor:
        if self._slots is None:
            return shape.view(offset, meta)
        return typed(self._slots, offset - slots_from, meta)


def _report(
    outputs: list[list[torch.Tensor]], addresses: frames.Addresses, states: list[int], structure: int = 0
) -> bytes:
    """Where outputs are. The clock may run, so of all rows only the last is compared with the first."""
    if [form_of(tensor) for tensor in outputs[-1]] != [form_of(tensor) for tensor in outputs[0]]:
        raise ContractError("the outputs' shapes, dtypes or strides change from call to call")
    metas = tuple(meta_of(tensor) for tensor in outputs[0])
    return frames.encode_report(metas, addresses, states, structure)
