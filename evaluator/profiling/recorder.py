"""Every operation of a call with its Python line, its module, its bytes, its arithmetic and its time, and what waits.

Runs beside the untrusted module, in its process.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as torch_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from evaluator.devices import is_accelerator
from evaluator.devices.accelerator import torch_gpu
from evaluator.profiling.measured import Operation

#: Operations after which the host knows something that the device computed: a number, or how many there are.
WAITING = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense equal nonzero is_nonzero masked_select _unique _unique2 unique_dim unique_consecutive "
        "unique_dim_consecutive bincount _linalg_check_errors"
    ).split()
)
#: Methods that read a tensor's memory on the host; on a CPU they leave no operation behind.
_READING = frozenset({"tolist", "numpy", "cpu", "__array__"})
_GATHERING = frozenset(
    {"aten::index", "aten::gather", "aten::embedding", "aten::index_select", "aten::select_scatter"}
)
_ALLOCATING = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"})
_TRANSCENDENTAL = re.compile(
    r"(?:^|_)(?:exp|expm1|exp2|log|log1p|log2|sin|cos|tan|tanh|sinh|cosh|sigmoid|silu|gelu|softmax|logsumexp|erf|pow|mish"
    r"|softplus|lgamma|digamma|erfinv)(?:_|$)"
)
#: Multiplications or a root.
_SIMPLE_POWERS = (1, 2, 3, 4, 0.5, -0.5, -1, -2)
#: Cycles that the device sleeps while operations are queued, so that times between events hold no waiting for the host.
_SLEEP_CYCLES_PER_S = 1.5e9
_LONGEST_SLEEP_S = 0.3


@dataclass
class Record:
    """One pass over a call."""

    operations: dict[tuple[str, int, str, str], Operation] = field(default_factory=dict)
    #: (line, what waits) -> how often.
    waits: dict[tuple[int, str], int] = field(default_factory=dict)
    #: (line, what) -> bytes between host and device.
    transfers: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all operations."""
        return sum(operation.seconds for operation in self.operations.values())


def record(call: Callable[[], Any], model: torch.nn.Module, path: str, device: str, guess_s: float) -> Record:
    """Runs a call once and notes its operations.

    Args:
        call: what runs.
        model: whose submodules are told apart.
        path: file whose lines are named.
        device: ``cpu`` or ``cuda``.
        guess_s: about how long a call takes the host.
    """
    taken = Record()
    with _modules(model) as stack:
        timed = _Operations(taken, stack, path, device)
        reads = _Reads(taken, path)
        if is_accelerator(device):
            torch_gpu.synchronize()
            sleep_s = min(_LONGEST_SLEEP_S, 10 * guess_s)
            torch_gpu._sleep(int(sleep_s * _SLEEP_CYCLES_PER_S))
        with reads, timed:
            call()
        timed.read_events()
    return taken


@contextmanager
def _modules(model: torch.nn.Module) -> Iterator[list[str]]:
    """A stack of the names of submodules whose forward runs."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def before(module: torch.nn.Module, args: Any) -> None:
        stack.append(names.get(id(module), type(module).__name__))

    def after(module: torch.nn.Module, args: Any, result: Any) -> None:
        if stack:
            stack.pop()

    handles = [
        torch_hooks.register_module_forward_pre_hook(before),
        torch_hooks.register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def line_of(path: str) -> int:
    """The innermost line of a file on the stack, 0 if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == path:
            return frame.f_lineno
        frame = frame.f_back
    return 0


class _Reads(TorchFunctionMode):
    """Notices the methods by which values reach the host without an operation."""

    def __init__(self, taken: Record, path: str) -> None:
        super().__init__()
        self._taken = taken
        self._path = path

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in _READING:
            # On a GPU what it does is seen as a copy, too; it is one wait.
            key = (line_of(self._path), f"Tensor.{name}()")
            self._taken.waits[key] = self._taken.waits.get(key, 0) + 1
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, taken: Record, stack: list[str], path: str, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._taken = taken
        self._stack = stack
        self._path = path
        self._cuda = is_accelerator(device)
        self._events: list[tuple[Operation, torch_gpu.Event, torch_gpu.Event]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        line = line_of(self._path)
        name = str(func._schema.name)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if self._cuda:
            begin, end = torch_gpu.Event(enable_timing=True), torch_gpu.Event(enable_timing=True)
            begin.record()
            result = func(*args, **kwargs)
            end.record()
            spent_s = 0.0
        else:
            started = time.perf_counter()
            result = func(*args, **kwargs)
            spent_s = time.perf_counter() - started
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._note_waits(name, line, args, given, made)
        moved = _moved_bytes(func, name, given, made)
        flops = _flops(func, args, kwargs, result)
        kind = _kind(given, self._cuda, name) if flops else ""
        key = (name, line, self._stack[-1] if self._stack else "", kind)
        operation = self._taken.operations.get(key)
        if operation is None:
            operation = self._taken.operations[key] = Operation(*key)
        operation.calls += 1
        operation.seconds += spent_s
        operation.moved_bytes += moved
        operation.flops += flops
        operation.elements += max((tensor.numel() for tensor in (*given, *made)), default=0) if moved else 0
        simple_power = (
            name.startswith("aten::pow")
            and not isinstance(args[1], torch.Tensor)
            and args[1] in _SIMPLE_POWERS
        )
        operation.transcendental = (
            bool(_TRANSCENDENTAL.search(name.removeprefix("aten::"))) and not simple_power
        )
        # Between the events of a view lies nothing but the events.
        if self._cuda and moved:
            self._events.append((operation, begin, end))
        return result

    def _note_waits(
        self, name: str, line: int, args: Any, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        what = ""
        if name in WAITING:
            what = {"aten::_local_scalar_dense": "a tensor's value as a Python number"}.get(
                name, name.removeprefix("aten::")
            )
        elif name == "aten::repeat_interleave" and not any(isinstance(arg, int) for arg in args[1:]):
            what = "repeat_interleave"
        elif name == "aten::index" and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:]):
            what = "indexing with a mask"
        elif self._cuda and name in ("aten::_to_copy", "aten::copy_"):
            places = {tensor.device.type for tensor in (*given, *made)}
            if len(places) > 1:
                to_host = bool(made) and made[0].device.type == "cpu"
                what = "a copy to the host" if to_host else ""
                key = (line, "to the host" if to_host else "to the device")
                self._taken.transfers[key] = self._taken.transfers.get(key, 0) + given[-1].nbytes
        if what and not any(seen[0] == line and seen[1].startswith("Tensor.") for seen in self._taken.waits):
            self._taken.waits[line, what] = self._taken.waits.get((line, what), 0) + 1

    def read_events(self) -> None:
        """Waits for the device and takes the times of all operations."""
        if self._events:
            torch_gpu.synchronize()
        for operation, begin, end in self._events:
            operation.seconds += begin.elapsed_time(end) / 1e3
        self._events.clear()


def _moved_bytes(func: Any, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> int:
    """Bytes that an operation must read and write, each tensor once; none for views and bare allocations."""
    if name in _ALLOCATING:
        return 0
    storages = {tensor.untyped_storage()._cdata for tensor in given}
    mutates = bool(func._schema.is_mutable)
    fresh = [tensor for tensor in made if tensor.untyped_storage()._cdata not in storages]
    if not fresh and not mutates and made:
        return 0
    written = made if mutates else fresh
    total = sum(_size_bytes(tensor) for tensor in written)
    most = total if name in _GATHERING and total else None
    for tensor in given:
        size = _size_bytes(tensor)
        total += size if most is None else min(size, most)
    return total


def _size_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements, those that an expanded tensor repeats counted once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size() if tensor.numel() else 0


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    try:
        return int(formula(*args, **kwargs, out_val=result))
    except (TypeError, ValueError, AssertionError, IndexError, AttributeError):
        return 0


def _kind(given: list[torch.Tensor], cuda: bool, name: str) -> str:
    dtype = next((tensor.dtype for tensor in given if tensor.is_floating_point()), None)
    if dtype is None:
        return "int8"
    if cuda and dtype == torch.float32:
        conv = "conv" in name and torch.backends.cudnn.allow_tf32
        return "tf32" if conv or torch.get_float32_matmul_precision() != "highest" else "float32"
    return "float8" if "float8" in str(dtype) else str(dtype).removeprefix("torch.")
