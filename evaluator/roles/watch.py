"""Watches a candidate's own kernels from inside its disposable process, or replaces them by nothing.

Own kernels are what the candidate builds itself: functions of a `load_inline` library (through Python, ctypes or
torch.ops), Triton functions, and kernels of torch's raw-kernel compiler. Never loaded in a timed process. The
results only describe: the candidate shares this process and may lie.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.autograd import profiler
from torch.utils._python_dispatch import TorchDispatchMode

from evaluator.devices.accelerator import GPU_TYPE, on_gpu, torch_gpu
from evaluator.roles.protocol import OWN

_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_WARM_CALLS = 2
_MAX_ROWS = 256


class Watch:
    """Hooks around every way to call an own kernel.

    Args:
        folder: where libraries that were built for the candidate are.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder) + os.sep
        self._own_operators: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.muted = False
        #: What each kernel returned, call by call, in one normal call of the module; used while muted.
        self._learnt: dict[str, list[Any]] = {}
        self._next: Counter[str] = Counter()

    def install(self, text: bytes, *, interpret: bool) -> None:
        """Hooks everything.

        Call it before the candidate's file is imported and after `load_inline` is replaced.
        """
        from torch.utils import cpp_extension

        inner: Any = cpp_extension.load_inline

        def load_inline(*arguments: Any, **keywords: Any) -> Any:
            before = set(torch._C._dispatch_get_all_op_names())
            built = inner(*arguments, **keywords)
            new = set(torch._C._dispatch_get_all_op_names()) - before
            self._own_operators |= {name.partition(".")[0] for name in new}
            return built if isinstance(built, str) else self._watch_module(built)

        cpp_extension.load_inline = load_inline
        self._watch_ctypes()
        self._watch_operators()
        if b"triton" in text:
            if interpret:
                os.environ.setdefault("TRITON_INTERPRET", "1")
            self._watch_triton()
        if hasattr(torch_gpu, "_compile_kernel"):
            self._watch_raw_kernels()

    def _call(self, name: str, function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """One call of a kernel: counted, and either run and recorded, or not run at all."""
        self.calls[name] += 1
        if self.muted:
            return self._nothing(name, arguments)
        with profiler.record_function(OWN + name):
            result = function(*arguments, **keywords)
        self._learnt.setdefault(name, []).append(_outline(result, arguments))
        return result

    def _nothing(self, name: str, arguments: Any) -> Any:
        """What an empty kernel would return: arguments unchanged, new tensors full of zeros."""
        outlines = self._learnt.get(name)
        if not outlines:
            return None
        at = min(self._next[name], len(outlines) - 1)
        self._next[name] += 1
        return _fill(outlines[at], arguments)

    # -- the ways to call a kernel -----------------------------------------------------------------------------

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self._call(name, function, arguments, keywords)

        return call

    def _watch_module(self, module: Any) -> Any:
        for name in dir(module):
            function = getattr(module, name)
            if not name.startswith("__") and callable(function) and not isinstance(function, type):
                setattr(module, name, self._watched(name, function))
        return module

    def _watch_ctypes(self) -> None:
        """Functions of libraries from that folder get a subclass of ctypes' function type."""
        watch, inner = self, ctypes.CDLL.__init__

        def init(library: Any, name: Any, *arguments: Any, **keywords: Any) -> None:
            inner(library, name, *arguments, **keywords)
            if not (
                isinstance(name, (str, os.PathLike)) and os.path.realpath(name).startswith(watch._folder)
            ):
                return

            class Function(library._FuncPtr):
                _flags_ = library._FuncPtr._flags_
                _restype_ = library._FuncPtr._restype_

                def __call__(self, *given: Any) -> Any:
                    label = getattr(self, "__name__", "function")
                    return watch._call(str(label), super().__call__, given, {})

            library._FuncPtr = Function

        cast(Any, ctypes.CDLL).__init__ = init

    def _watch_operators(self) -> None:
        """Operators that a built library registered, called through torch.ops."""
        from torch._ops import OpOverload, OpOverloadPacket

        watch = self
        for kind in (OpOverload, OpOverloadPacket):
            inner = kind.__call__

            def call(op: Any, /, *arguments: Any, _inner: Any = inner, **keywords: Any) -> Any:
                name = _operator_name(op) if watch._own_operators else ""
                if name not in watch._own_operators:
                    return _inner(op, *arguments, **keywords)
                return watch._call(name, lambda *a, **k: _inner(op, *a, **k), arguments, keywords)

            kind.__call__ = call  # type: ignore[method-assign]

    def _watch_triton(self) -> None:
        try:
            from triton.runtime.interpreter import InterpretedFunction
            from triton.runtime.jit import JITFunction
        except ImportError:
            return
        watch = self
        for kind in (JITFunction, InterpretedFunction):
            inner = kind.run

            def run(function: Any, *arguments: Any, _inner: Any = inner, **keywords: Any) -> Any:
                if keywords.get("warmup"):
                    return _inner(function, *arguments, **keywords)
                name = str(getattr(function.fn, "__name__", "triton"))
                return watch._call(name, lambda *a, **k: _inner(function, *a, **k), arguments, keywords)

            kind.run = run

    def _watch_raw_kernels(self) -> None:
        inner, watch = torch_gpu._compile_kernel, self

        class Kernel:
            def __init__(self, name: str, kernel: Any) -> None:
                self._name, self._kernel = name, kernel

            def __call__(self, *arguments: Any, **keywords: Any) -> Any:
                return watch._call(self._name, self._kernel, arguments, keywords)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._kernel, name)

        def compile_kernel(source: str, name: str, *arguments: Any, **keywords: Any) -> Any:
            return Kernel(name, inner(source, name, *arguments, **keywords))

        cast(Any, torch_gpu)._compile_kernel = compile_kernel

    # -- looking -----------------------------------------------------------------------------------------------

    def observe(self, forward: Any, arguments: list[Any], device: torch.device) -> dict[str, Any]:
        """One profiled call: operations on a CPU, kernels on a GPU, each with time in microseconds and calls."""
        gpu = on_gpu(device)
        self.mute(False)
        with torch.no_grad():
            for _ in range(_WARM_CALLS):
                forward(*arguments)
            self.calls.clear()
            self._learnt.clear()
            with profiler.profile(use_device=GPU_TYPE if gpu else None, use_kineto=True) as profile:
                forward(*arguments)
                if gpu:
                    torch_gpu.synchronize()
            events = profile.key_averages()
            own, learnt = dict(self.calls.most_common(_MAX_ROWS)), self._learnt
            self._learnt = {}
            compiled = any(
                "CompiledFxGraph" in event.key or "Torch-Compiled" in event.key for event in events
            )
            narrow = not compiled and self._narrow(forward, arguments)
            self._learnt = learnt
        rows: list[tuple[str, bool, float, int]] = []
        for event in events:
            on_device = "CUDA" in str(event.device_type)
            time_us = event.self_device_time_total if on_device else event.self_cpu_time_total
            rows.append((str(event.key)[:400], on_device, float(time_us), int(event.count)))
        rows.sort(key=lambda row: -row[2])
        graphs = sum(row[3] for row in rows if row[0] in ("cudaGraphLaunch", "cuGraphLaunch"))
        return {
            "rows": rows[:_MAX_ROWS],
            "own": own,
            "graphs": graphs,
            "compiled": compiled,
            "narrow": narrow,
        }

    @staticmethod
    def _narrow(forward: Any, arguments: list[Any]) -> bool:
        """Whether an operation returned a floating type narrower than every input's.

        Compiled code cannot be inspected.
        """
        given = [
            value.dtype
            for value in arguments
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        if not given or any(dtype in _NARROW for dtype in given):
            return False
        mode = _Types()  # type: ignore[no-untyped-call]
        with mode:
            forward(*arguments)
        return mode.narrow

    def mute(self, muted: bool) -> int:
        """Switches own kernels off or on. Returns how often they were called since the last switch."""
        count = self.calls.total()
        self.calls.clear()
        self._next.clear()
        self.muted = muted
        return count


class _Types(TorchDispatchMode):
    """Records the types of operations' results."""

    narrow = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.dtype in _NARROW:
                self.narrow = True
        return result


def _operator_name(op: Any) -> str:
    """``namespace::name`` of an operator or of one of its overloads."""
    schema = getattr(op, "_schema", None)
    return str(op._qualified_op_name if schema is None else schema.name)


def _outline(value: Any, arguments: Any) -> Any:
    """The form of a result, without its contents: an argument (or a view of one), or a new tensor."""
    if isinstance(value, torch.Tensor):
        form = (tuple(value.shape), tuple(value.stride()), value.storage_offset())
        for index, argument in enumerate(arguments):
            if isinstance(argument, torch.Tensor) and _storage(argument) == _storage(value):
                return ("view", index, form)
        return ("new", form, value.dtype, value.device)
    if isinstance(value, (tuple, list)):
        return ("many", type(value), [_outline(one, arguments) for one in value])
    return ("value", value)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _fill(outline: Any, arguments: Any) -> Any:
    kind = outline[0]
    if kind == "view":
        argument, (shape, stride, offset) = arguments[outline[1]], outline[2]
        return argument.as_strided(shape, stride, offset)
    if kind == "new":
        (shape, stride, _), dtype, device = outline[1:]
        return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
    if kind == "many":
        return outline[1](_fill(one, arguments) for one in outline[2])
    return outline[1]
