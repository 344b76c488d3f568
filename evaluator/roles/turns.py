"""What a role does when it is its turn: binds inputs, gets ready, runs a block of calls, says where the outputs are."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import nn

from evaluator.roles import blocks, calls, chain, device_memory, exact, frames, variants
from evaluator.roles.exchange import INPUT_MEMORY, Exchange
from evaluator.roles.open_shape import Shape, form_of, leaf, meta_of, read_meta, typed
from evaluator.roles.runner import LEAST, NULL, ContractError
from evaluator.roles.values import decode_value

_WARM_CALLS, _WARM_SECONDS = 16, 0.0005


class _Least(nn.Module):
    """Makes one new tensor like its first output and returns it with the others, which were made before.

    Only one, and none where the outputs are views of the inputs: a native extension makes many in the time in which
    Python makes a few, and nobody honest may be quicker than this.
    """

    def __init__(self, outputs: list[torch.Tensor], arguments: list[Any]) -> None:
        super().__init__()
        first, *self._others = outputs
        given = {tensor.untyped_storage().data_ptr() for tensor in blocks.tensors_in(arguments)}
        self._made = first if first.untyped_storage().data_ptr() in given else None
        self._shape, self._strides = tuple(first.shape), tuple(first.stride())
        self._dtype, self._device = first.dtype, first.device

    def forward(self, *arguments: Any) -> Any:
        made = self._made
        if made is None:
            made = torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device=self._device)
        return [made, *self._others] if self._others else made


class Turns:
    """The part of a role that is the same for reference and candidate, so that both pay exactly the same per call.

    Args:
        device: where the module runs.
        chain_library: path of the compiled chain, or None.
    """

    def __init__(self, device: torch.device, chain_library: str | None) -> None:
        self.device = device
        self.chain = chain.load(chain_library)
        self.module: ModuleType | None = None
        self.shapes: dict[int, Shape] = {}
        self._host_outputs: list[torch.Tensor] = []
        self._exchange: Exchange | None = None
        #: GPU only: where the slots of all shapes lie.
        self._slots: torch.Tensor | None = None

    def bind(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Creates the arguments of every slot as views of the arena."""
        shape = self.shapes[request["shape"]]
        metas = [read_meta(item["meta"]) for item in request["tensors"]]
        pools = [
            (position, shape.view(offset, frames.TensorMeta(dtype, (count,), (1,))), stride)
            for position, offset, dtype, count, stride in request["refresh"]
        ]
        shape.slots = []
        for start in range(0, request["slots"] * request["slot_bytes"], request["slot_bytes"]):
            views, tensors = [], []
            for item, meta in zip(request["tensors"], metas, strict=True):
                view = self._slot_view(shape, item["offset"] + start, request["slots_from"], meta)
                views.append(view)
                tensors.append(leaf(view) if item["leaf"] else view)
            arguments = [decode_value(item, tensors) for item in request["arguments"]]
            shape.slots.append(blocks.Slot(arguments, views, pools, self.device))
        return b""

    def exchange(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: takes the memory in which the referee will read this process's outputs."""
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()
        self._exchange = Exchange(
            descriptors[0], request["outputs_bytes"], request["pool_bytes"], request["library"]
        )
        address = device_memory.attach(device_memory.adopt(descriptors[1]), request["inputs_bytes"])
        os.close(descriptors[1])
        self._slots = device_memory.as_bytes(address, request["inputs_bytes"])
        return b""

    def ready(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """What must not be on the clock: forgets the outputs of the last block, sets threads and poison, warms up.

        The referee fills the slots afterwards, so that nothing of the next block can be seen meanwhile.
        """
        shape = self.shapes[request["shape"]]
        threads = request["threads"]
        if threads and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if request["poison"] is not None:
            blocks.poison_allocations(request["poison"])
        if request["poison"] and self._exchange is not None:
            blocks.poison_device_memory([tensor for row in shape.outputs[-1:] for tensor in row])
        shape.outputs = shape.outputs[-2:] if request["keep"] else []
        if self._exchange is not None:
            self._exchange.forget()
        gc.collect(0)
        warm = request["warm"]
        with self._pool(timed=warm is not None):
            if warm == NULL:
                self._make_null(shape)
            elif warm == LEAST:
                self._make_least(shape)
            if warm is not None and request["captured"]:
                shape.captured[warm].run(0)
            elif warm is not None:
                self._warm_up(shape, shape.forwards[warm])
        return b""

    @staticmethod
    def _make_least(shape: Shape) -> None:
        """Adds the variant that does next to nothing."""
        if LEAST not in shape.forwards:
            arguments = shape.slots[0].arguments
            shape.forwards[LEAST] = _Least(blocks.flatten(shape.forwards["eager"](*arguments)), arguments)

    @staticmethod
    def _make_null(shape: Shape) -> None:
        """Adds the variant that returns an output made before."""
        if NULL not in shape.forwards:
            result = shape.forwards["eager"](*shape.slots[0].arguments)
            eager = shape.forwards["eager"]
            shape.forwards[NULL] = (
                eager.null(result) if isinstance(eager, calls.Call) else lambda *arguments: result
            )

    def _warm_up(self, shape: Shape, forward: Any) -> None:
        until = time.perf_counter() + _WARM_SECONDS
        for slot in shape.slots[:_WARM_CALLS]:
            forward(*slot.arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            if time.perf_counter() > until:
                break

    def _pool(self, *, timed: bool) -> AbstractContextManager[Any]:
        """Where a timed call's outputs are allocated. Not that of a first call, which may capture a graph of its own."""
        return self._exchange.pool() if timed and self._exchange is not None else nullcontext()

    def capture(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: records so many chained calls of a variant as one CUDA graph, in place of an earlier one."""
        assert self._exchange is not None
        shape, variant = self.shapes[request["shape"]], request["variant"]
        shape.captured.pop(variant, None)
        shape.outputs = []
        slots = _slots_of(shape, request)
        if variant == NULL:
            with self._exchange.pool():
                self._make_null(shape)
        shape.captured[variant] = blocks.Captured(shape.forwards[variant], slots, self._exchange.pool_id)
        return b""

    def block(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Runs one block of calls and reports where the outputs are."""
        shape = self.shapes[request["shape"]]
        variant = request["variant"]
        results: list[Any] = []
        if request["captured"]:
            outputs, states = shape.captured[variant].run(request["state"])
        else:
            slots = _slots_of(shape, request)
            chained = bool(request["chain"])
            forward = shape.forwards[variant]
            if not chained:
                forward = _recording(forward, results)
            strict = request["strict"] and self.device.type == "cuda"
            with self._pool(timed=chained), variants.full_precision() if strict else nullcontext():
                outputs, states = blocks.run(
                    forward, slots, self.chain, request["state"], chained, self.device
                )
        if request["chain"] and self._exchange is not None and self._exchange.overflowed:
            # Copies on the clock would make whoever pays for them look slow.
            raise torch.OutOfMemoryError(
                "the memory for the outputs of timed calls is too small for this shape"
            )
        shape.outputs = shape.outputs + outputs
        structure = blocks.structure(results[0]).encode() if results else b""
        digest = int.from_bytes(hashlib.sha256(structure).digest()[:8], "little") if results else 0
        return self._report(shape, outputs, states, digest)

    def _report(
        self, shape: Shape, outputs: list[list[torch.Tensor]], states: list[int], structure: int = 0
    ) -> bytes:
        """Where outputs are. The clock runs, so of all rows only the last is compared with the first."""
        addresses = [[tensor.data_ptr() for tensor in row] for row in outputs]
        metas = tuple(meta_of(tensor) for tensor in outputs[0])
        if [form_of(tensor) for tensor in outputs[-1]] != [form_of(tensor) for tensor in outputs[0]]:
            raise ContractError("the outputs' shapes, dtypes or strides change from call to call")
        if self._exchange is not None:
            if not self._exchange.holds_all(addresses):
                placed = [[self._exchange.place(tensor) for tensor in row] for row in outputs]
                torch.cuda.synchronize()
                addresses = [
                    [self._offset(tensor, at) for tensor, at in zip(row, placed_row, strict=True)]
                    for row, placed_row in zip(outputs, placed, strict=True)
                ]
            else:
                addresses = self._exchange.offsets(addresses)
        return frames.encode_report(metas, addresses, states, structure)

    def _offset(self, tensor: torch.Tensor, placed: torch.Tensor) -> int:
        """Where the copy of an output is, or that the output lies in the memory of the inputs."""
        assert self._exchange is not None and self._slots is not None
        inside = tensor.data_ptr() - self._slots.data_ptr()
        if tensor.numel() and 0 <= inside < self._slots.numel():
            return INPUT_MEMORY + inside
        return self._exchange.offset(placed)

    def fetch(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: says again where the outputs of an earlier call are, as they are now (-1 is the last call)."""
        shape = self.shapes[request["shape"]]
        return self._report(shape, [shape.outputs[request["call"]]], [0])

    def _on_host(self, outputs: list[torch.Tensor]) -> bytes:
        self._host_outputs = [tensor.detach().cpu() for tensor in outputs]
        metas = tuple(meta_of(tensor) for tensor in self._host_outputs)
        return frames.encode_report(metas, [[tensor.data_ptr() for tensor in self._host_outputs]], [0])

    def oracle(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: the result of a slot's inputs as exactly as it is known, kept; answers where."""
        shape = self.shapes[request["shape"]]
        slot = shape.slots[request["slot"]]
        own = getattr(self.module, "oracle", None)
        own = own if callable(own) else None
        move = exact.Move(**request["move"]) if request["move"] else None
        outputs = exact.outputs(shape, slot.arguments, own, request["tier"], move)
        if self._exchange is not None:
            self._exchange.forget()
            return self._report(shape, [[tensor.detach().contiguous() for tensor in outputs]], [0])
        return self._on_host(outputs)

    def variant(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: prepares a baseline (compiles it for exactly this shape and warms it up)."""
        shape = self.shapes[request["shape"]]
        torch.set_num_threads(request["threads"])
        autocast = getattr(torch, request["autocast"]) if request["autocast"] else None
        variants.prepare(
            shape, request["variant"], request["mode"], request["threads"], self.device, autocast
        )
        return b""

    def _slot_view(self, shape: Shape, offset: int, slots_from: int, meta: frames.TensorMeta) -> torch.Tensor:
        if self._slots is None:
            return shape.view(offset, meta)
        return typed(self._slots, offset - slots_from, meta)


def _slots_of(shape: Shape, request: dict[str, Any]) -> list[blocks.Slot]:
    """The slot of each call of a block: one after the other, or the first one again and again."""
    calls: int = request["calls"]
    return shape.slots[:1] * calls if request["same_slot"] else shape.slots[:calls]


def _recording(forward: Any, results: list[Any]) -> Any:
    """``forward``, which also keeps what it returned (in blocks that no clock is looking at)."""

    def call(*arguments: Any) -> Any:
        result = forward(*arguments)
        results.append(result)
        return result

    return call
