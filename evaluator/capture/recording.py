"""Records what each submodule was called with and how long it took, through hooks.

The hooks are torch's global ones, which every module call runs. Hooks on the modules themselves would change what
runs, because torch uses its fast paths (nn.TransformerEncoderLayer) only if no module has any. They return
nothing, so no result changes. Their own time is measured and subtracted.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_hooks

from evaluator.capture.signature import CaptureError, Signature, Values, signature_of, values_of
from evaluator.devices.accelerator import torch_gpu

#: How many distinct calls of one module have their values inspected; only shapes of further ones are recorded.
_LOOKED_AT = 3


@dataclass
class Call:
    """Calls of one module that looked alike.

    Attributes:
        count: how many.
        total_s: seconds in them, including everything that they called; on a GPU the device's.
        training: the module was in training mode.
        values: of each tensor, if they were inspected.
    """

    count: int = 0
    total_s: float = 0.0
    training: bool = False
    values: list[Values] = field(default_factory=list)


@dataclass
class Watched:
    """One submodule and its calls.

    Attributes:
        names: where it is found in the model; several if it is shared.
        module: the module itself.
        calls: by what they were called with.
        self_s: seconds outside of watched modules that it called.
    """

    names: list[str]
    module: nn.Module
    calls: dict[Signature, Call] = field(default_factory=dict)
    self_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds in all calls."""
        return sum(call.total_s for call in self.calls.values())

    @property
    def count(self) -> int:
        """How many calls."""
        return sum(call.count for call in self.calls.values())


@dataclass(frozen=True)
class ModuleCost:
    """A line of the ranking.

    Attributes:
        name: of the submodule, "" for the model itself.
        type_name: its class.
        calls: how many.
        shapes: number of distinct arguments it was called with.
        total_s: seconds in it and in what it called.
        self_s: seconds in it alone.
        share: `total_s` as a share of the model's time, 0 to 1.
    """

    name: str
    type_name: str
    calls: int
    shapes: int
    total_s: float
    self_s: float
    share: float


@dataclass
class _Frame:
    """A call that is running."""

    watched: Watched
    raised: BaseException | None
    children_s: float = 0.0
    hooks_s: float = 0.0
    began_s: float = 0.0
    event: torch_gpu.Event | None = None


class Watch:
    """Hooks over one model, from `install` to `remove`."""

    def __init__(self, model: nn.Module) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise CaptureError(
                "a TorchScript module cannot be watched; capture the nn.Module it was made from"
            )
        if hasattr(model, "_orig_mod"):
            raise CaptureError("capture the module that was given to torch.compile, not what it returned")
        self.watched: dict[int, Watched] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self.watched.setdefault(id(module), Watched([], module)).names.append(name)
        #: Seconds that the hooks themselves took.
        self.overhead_s = 0.0
        self._running = threading.local()
        self._lock = threading.Lock()
        #: Calls on a GPU whose events have not been read yet, oldest first.
        self._pending: deque[tuple[Watched, Watched | None, Call, torch_gpu.Event, torch_gpu.Event]] = deque()
        self._handles: list[Any] = []

    def install(self) -> None:
        """Starts watching."""
        self._handles = [
            torch_hooks.register_module_forward_pre_hook(self._before),
            torch_hooks.register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        """Stops watching and reads the remaining GPU events."""
        for handle in self._handles:
            handle.remove()
        if self._pending:
            torch_gpu.synchronize()
            self._read_events()

    # -- hooks -------------------------------------------------------------------------------------------------

    @property
    def _frames(self) -> list[_Frame]:
        frames: list[_Frame] | None = getattr(self._running, "frames", None)
        if frames is None:
            frames = self._running.frames = []
        return frames

    def _before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        entered_s = time.perf_counter()
        watched = self.watched.get(id(module))
        if watched is None:
            return
        frame = _Frame(watched, sys.exception())
        frames = self._frames
        frames.append(frame)
        frame.event = _event(args)
        frame.began_s = time.perf_counter()
        if len(frames) > 1:
            frames[-2].hooks_s += frame.began_s - entered_s
        with self._lock:
            self.overhead_s += frame.began_s - entered_s

    def _after(self, module: nn.Module, args: Any, kwargs: Any, result: Any = None) -> None:
        # Up to torch 2.13, after an exception a global hook is called without the keyword arguments.
        if torch.compiler.is_compiling():
            return
        ended_s = time.perf_counter()
        watched = self.watched.get(id(module))
        frames = self._frames
        if watched is None or all(frame.watched is not watched for frame in frames):
            return
        # Frames above it are left over from an interrupt.
        while (frame := frames.pop()).watched is not watched:
            pass
        event = None if frame.event is None else _event(args)
        with self._lock:
            spent_s = ended_s - frame.began_s - frame.hooks_s
            # After an exception there is no result, but an exception that was not there before.
            if result is not None or sys.exception() is frame.raised:
                self._note(frame, frames[-1] if frames else None, spent_s, event, args, kwargs)
            left_s = time.perf_counter()
            self.overhead_s += left_s - ended_s
        if frames:
            frames[-1].hooks_s += frame.hooks_s + (left_s - ended_s)
            if event is None:
                frames[-1].children_s += spent_s

    def _note(
        self,
        frame: _Frame,
        parent: _Frame | None,
        spent_s: float,
        event: torch_gpu.Event | None,
        args: Any,
        kwargs: dict[str, Any],
    ) -> None:
        watched = frame.watched
        signature, tensors = signature_of(args, kwargs)
        call = watched.calls.get(signature)
        if call is None:
            call = watched.calls[signature] = Call(training=watched.module.training)
            if len(watched.calls) <= _LOOKED_AT and not _is_capturing():
                call.values = [values_of(tensor) for tensor in tensors]
        call.count += 1
        if event is None or frame.event is None:
            call.total_s += spent_s
            watched.self_s += spent_s - frame.children_s
            return
        self._pending.append((watched, parent.watched if parent else None, call, frame.event, event))
        self._read_events()

    def _read_events(self) -> None:
        """Takes the times of calls that the device has finished."""
        while self._pending and self._pending[0][4].query():
            watched, parent, call, began, ended = self._pending.popleft()
            spent_s = began.elapsed_time(ended) / 1e3
            call.total_s += spent_s
            watched.self_s += spent_s
            if parent is not None:
                parent.self_s -= spent_s


def _is_capturing() -> bool:
    return torch_gpu.is_available() and torch_gpu.is_current_stream_capturing()


def _event(args: Any) -> torch_gpu.Event | None:
    """An event in the current stream if a GPU is in use; None on a CPU and while a CUDA graph is captured."""
    if not torch_gpu.is_initialized() or _is_capturing():
        return None
    event = torch_gpu.Event(enable_timing=True)
    event.record()
    return event
