"""Runs a block of calls with minimal overhead: refresh the next input from the last output, call, keep the output."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch._C._dynamo import guards
from torch.utils._pytree import tree_map

from evaluator.devices.accelerator import device_chain, on_gpu, torch_gpu
from evaluator.roles.chain import Chain, CompiledChain, Python, Refresh, marked, now, stirred
from evaluator.roles.exchange import span_elements
from evaluator.roles.gate import MOST_CALLS, Gated
from evaluator.roles.protocol import ContractError

_M_PERTURB = -6
_MAX_DEPTH = 16
#: torch's quickest way to a new tensor, made for the code that Inductor writes; not in every version.
_empty_strided = getattr(guards, "_empty_strided_cpu", None)


class Slot:
    """The arguments of one call at fixed addresses, and what the chain may replace in them.

    Args:
        arguments: what a call gets.
        views: the tensors among them, in order, in the memory shared with the referee.
        pools: per refreshed tensor its position among these, the pool of legal values, the stride, and whether
            zeros stay.
        table: what the chain does to them on a GPU; None on the host.
    """

    def __init__(
        self,
        arguments: list[Any],
        views: list[torch.Tensor],
        pools: list[tuple[int, torch.Tensor, int, int]],
        table: Any = None,
    ) -> None:
        self.arguments = tuple(arguments)
        self.table = table
        if table is not None:
            return
        self.count = len(pools)
        self.entries = (Refresh * max(self.count, 1))()
        self.address = ctypes.addressof(self.entries)
        # The entries hold bare addresses, so keep the tensors alive.
        self._alive = (views, pools)
        for entry, (position, pool, stride, keeps_zeros) in zip(self.entries, pools, strict=False):
            view = views[position]
            entry.data, entry.pool = view.data_ptr(), pool.data_ptr()
            entry.item_bytes = view.element_size()
            entry.count = _span_bytes(view) // view.element_size()
            entry.pool_count, entry.stride, entry.keeps_zeros = pool.numel(), stride, keeps_zeros


def tables(
    views: list[list[torch.Tensor]], pools: list[tuple[int, torch.Tensor, int, int]], device: torch.device
) -> list[Any]:
    """What the chain does on a GPU to the tensors of each slot; None for each on the host."""
    if not on_gpu(device):
        return [None] * len(views)

    return list(
        device_chain.tables(
            [
                [device_chain.row_of(_flat_span(slot[at]), pool, *how) for at, pool, *how in pools]
                for slot in views
            ]
        )
    )


def flatten(result: Any) -> list[torch.Tensor]:
    """The output tensors of a call, in order. Allows only plain tensors and numbers in plain containers.

    Numbers count as tensors without dimensions (float64, int64 or bool) and are compared like them. None and
    strings hold no values; :func:`structure` covers them.
    """
    if type(result) is torch.Tensor:
        return [result]
    found: list[Any] = []
    _collect(result, found)
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    if not tensors:
        raise ContractError(
            f"forward() returned {type(result).__name__}, not a tensor or a sequence of tensors"
        )
    return tensors if len(tensors) == len(found) else [_as_tensor(value, tensors[0]) for value in found]


def _as_tensor(value: Any, beside: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if type(value) is float else None, device=beside.device)


def _collect(result: Any, found: list[Any]) -> None:
    if type(result) is torch.Tensor or type(result) is torch.nn.Parameter:
        found.append(result)
    elif isinstance(result, (tuple, list)):
        for item in result:
            _collect(item, found)
    elif isinstance(result, dict):
        for key in sorted(result, key=str):
            _collect(result[key], found)
    elif type(result) in (bool, int, float):
        found.append(result)
    elif result is not None and not isinstance(result, str):
        raise ContractError(
            f"forward() returned {type(result).__name__}, not a tensor or a sequence of tensors"
        )


def structure(result: Any, depth: int = 0) -> str:
    """The containers of a result in words. They must be equal for a module to replace another.

    Each container counts by its type's name, with the fields of a named tuple. Keys, None, strings and the kinds
    of numbers count too.
    """
    if depth > _MAX_DEPTH:
        raise ContractError("forward() returned containers nested too deeply")
    if isinstance(result, torch.Tensor):
        return "tensor"
    kind = type(result).__name__
    if isinstance(result, (tuple, list)):
        fields = ", ".join(map(str, getattr(result, "_fields", ())))
        return f"{kind}({fields})[{', '.join(structure(item, depth + 1) for item in result)}]"
    if isinstance(result, dict):
        keys = sorted(result, key=str)
        items = ", ".join(f"{key!r}: {structure(result[key], depth + 1)}" for key in keys)
        return f"{kind}{{{items}}}"
    return type(result).__name__ if type(result) in (bool, int, float) else repr(result)


def tensors_in(arguments: Any) -> list[torch.Tensor]:
    """The tensors among arguments, in order, including those in containers."""
    found: list[torch.Tensor] = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found


def map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """A result with a function of each of its tensors in their places."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value


def only_rows(arguments: list[Any], first: int, end: int, tensors: list[int]) -> list[Any]:
    """The arguments with some rows of the tensors at these indices (in the order of :func:`tensors_in`)."""
    counter = iter(range(len(tensors_in(arguments))))

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value[first:end] if next(counter) in tensors else value

    return list(tree_map(cut, arguments))


def run(
    forward: Any,
    slots: list[Slot],
    chain: Chain,
    state: int,
    chained: bool,
    device: torch.device,
    gate: Gated | None = None,
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """Calls ``forward`` once per slot. Returns the outputs of every call, all alive, and the chain's states.

    On a GPU, ``gate``'s page replaces ``chain``. Garbage collection is off meanwhile: the process that holds the
    compiler has many more objects to traverse.
    """
    gc.disable()
    try:
        if on_gpu(device):
            return _run_on_gpu(forward, slots, state, gate if chained else None)
        return _run_on_cpu(forward, slots, chain, state, chained)
    finally:
        gc.enable()


def run_interleaved(
    forward: Any, slots: list[Slot], results: list[Any]
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """Like :func:`run` with :func:`recording`, but with all forwards before the first backward; ``forward`` is a
    :class:`calls.Call`.
    """
    results += forward.interleaved([slot.arguments for slot in slots])
    outputs = [flatten(one) for one in results]
    if any(tensor.is_cuda for row in outputs for tensor in row):
        torch_gpu.synchronize()
    return outputs, [0] * len(slots)


def _run_on_cpu(
    forward: Any, slots: list[Slot], chain: Chain, state: int, chained: bool
) -> tuple[list[list[torch.Tensor]], list[int]]:
    if isinstance(chain, CompiledChain):
        return _walk(forward, slots, chain, state, chained)
    outputs: list[list[torch.Tensor]] = []
    states: list[int] = []
    digest, refresh = chain.digest, chain.refresh
    with torch.no_grad():
        for slot in slots:
            if chained:
                refresh(slot.address, slot.count, state)
            row = flatten(forward(*slot.arguments))
            outputs.append(row)
            if chained:
                when = now()
                state = stirred(state, when)
                for tensor in row:
                    state = digest(tensor.data_ptr(), _span_bytes(tensor), state)
                state = marked(state, when)
            states.append(state)
    return outputs, states


class Fixed:
    """A call that uses its own arguments, whatever the slot holds.

    Args:
        function: called repeatedly.
        arguments: what it gets.
    """

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*self.arguments)


def constant(result: Any) -> Fixed:
    """A call without any Python that returns a result made before."""
    return Fixed(itemgetter(0), ((result,),))


class Least(nn.Module):
    """The variant that does next to nothing: makes one new tensor like its first output and returns it with the others, which were made before.

    Only one, and none if the outputs are views of the inputs: a native extension makes many in the time in which
    Python makes a few, and no honest module may be faster than this.
    """

    def __init__(self, outputs: list[torch.Tensor], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        first, *self._others = outputs
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(arguments)}
        self._made = first if first.untyped_storage().data_ptr() in given else None
        self._shape, self._strides = tuple(first.shape), tuple(first.stride())
        self._dtype, self._device = first.dtype, first.device

    def forward(self, *arguments: Any) -> Any:
        made = self._made
        if made is None:
            made = torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device=self._device)
        return [made, *self._others] if self._others else made

    def native(self) -> Fixed | None:
        """The first output alone, without any Python, on the host: a C extension may be called without any too."""
        if self._device.type != "cpu":
            return None
        if self._made is not None:
            return constant(self._made)
        if _empty_strided is None:
            return Fixed(torch.empty, (self._shape,))
        return Fixed(_empty_strided, (self._shape, self._strides, self._dtype))


def _walk(
    forward: Any, slots: list[Slot], chain: CompiledChain, state: int, chained: bool
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """The same, with the loop of loop.c."""
    calls = len(slots)
    outputs: list[Any] = [None] * calls
    states = (ctypes.c_uint64 * calls)()
    tables = (ctypes.c_void_p * calls)(*[slot.address for slot in slots]) if chained else None
    if isinstance(forward, Fixed):
        forward, arguments = forward.function, [forward.arguments] * calls
    else:
        arguments = [slot.arguments for slot in slots]
    with torch.no_grad():
        chain.walk(_PYTHON, forward, arguments, tables, slots[0].count, calls, state, outputs, states)
    return outputs, list(states)


def _flat_span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a strided tensor as a vector."""
    return tensor.detach().as_strided((_span_bytes(tensor) // tensor.element_size(),), (1,))


def _span_bytes(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous():
        return tensor.nbytes
    return span_elements(tensor) * tensor.element_size()


_PYTHON = Python(torch.Tensor, flatten, _span_bytes, "data_ptr", ContractError)


def _run_on_gpu(
    forward: Any, slots: list[Slot], state: int, gate: Gated | None
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """The same on the device: digest and refresh are device work, so the host never waits inside the block."""
    with torch.no_grad():
        if gate is None:
            outputs = [flatten(forward(*slot.arguments)) for slot in slots]
            torch_gpu.synchronize()
            return outputs, [0] * len(slots)
        gate.begin(state)
        outputs = _chain_on_gpu(forward, slots, device_chain.block_states(MOST_CALLS), gate)
        # Streams other than the current one must be done too.
        torch_gpu.synchronize()
        return outputs, gate.states(len(slots))


def _chain_on_gpu(forward: Any, slots: list[Slot], states: Any, gate: Gated) -> list[list[torch.Tensor]]:
    """Queues calls and links in turn, and the copy of the states to the host, on the current stream.

    A graph capture may record this.
    """
    stream = torch_gpu.current_stream().cuda_stream
    outputs: list[list[torch.Tensor]] = []
    states.start(slots[0].table, stream, gate.state_address)
    for call, slot in enumerate(slots):
        result = forward(*slot.arguments)
        row = [result] if type(result) is torch.Tensor else flatten(result)
        outputs.append(row)
        following = slots[call + 1].table if call + 1 < len(slots) else None
        states.link(call, [(tensor.data_ptr(), _span_bytes(tensor)) for tensor in row], following, stream)
    gate.copy_states(states.first_address, len(slots), stream)
    return outputs


def recording(forward: Any, results: list[Any]) -> Any:
    """``forward``, which also keeps what it returned (only in untimed blocks)."""

    def call(*arguments: Any) -> Any:
        result = forward(*arguments)
        results.append(result)
        return result

    return call


class Captured:
    """A block of chained calls as one CUDA graph: a call's cost without launches.

    Args:
        forward: captured once per slot.
        slots: the arguments of each call.
        pool: where outputs are allocated, see :attr:`evaluator.roles.exchange.Exchange.pool_id`.
        gate: opened by the referee.
        reported: tells the referee where the outputs of each call are; may queue copies of them.

    Attributes:
        report: what ``reported`` said. Outputs stay there until another graph runs: graphs of one pool share it.

    Raises:
        Exception: whatever the capture raises if ``forward`` waits for the device or allocates by itself.
    """

    def __init__(
        self,
        forward: Any,
        slots: list[Slot],
        pool: Any,
        gate: Gated,
        reported: Callable[[list[list[torch.Tensor]]], bytes],
    ) -> None:
        self._gate = gate
        # They stay in place as long as the graph exists.
        self._states = device_chain.States(len(slots))
        beside = torch_gpu.Stream()
        beside.wait_stream(torch_gpu.current_stream())
        with torch.no_grad(), torch_gpu.stream(beside):
            for slot in slots[:3]:
                forward(*slot.arguments)
        torch_gpu.current_stream().wait_stream(beside)
        torch_gpu.synchronize()
        self._graph = torch_gpu.CUDAGraph()
        with torch.no_grad(), torch_gpu.graph(self._graph, pool=pool):
            self.report = reported(_chain_on_gpu(forward, slots, self._states, gate))

    def run(self) -> None:
        """One replay without the gate, to warm up."""
        self._graph.replay()
        torch_gpu.synchronize()

    def arm(self, token: int) -> None:
        """Queues a replay behind the gate. The device must get no other work before the gate is opened."""
        stream = torch_gpu.current_stream().cuda_stream
        self._gate.wait(token, stream)
        self._graph.replay()
        self._gate.done(token, stream)


def poison_allocations(byte: int) -> None:
    """Fills fresh heap memory with garbage (0 switches it off), so that unwritten outputs cannot look right."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_PERTURB, byte)


def poison_device_memory(like: list[torch.Tensor], byte: int) -> None:
    """Leaves garbage in the device memory that such outputs would get next: NaN, or zeros if ``byte`` is 255.

    The byte is that of :func:`poison_allocations`, which leaves its complement.
    """
    left = 0x00 if byte == 0xFF else 0xFF
    junk = [torch.empty_like(tensor) for tensor in like for _ in range(2)]
    for tensor in junk:
        if tensor.is_contiguous() and tensor.numel():
            tensor.view(-1).view(torch.uint8).fill_(left)
    torch_gpu.synchronize()
