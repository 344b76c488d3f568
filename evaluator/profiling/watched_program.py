"""Runs a Python program with its modules, its data loading, its optimizer and its waits watched; writes JSON at the end.

    python -m evaluator.profiling.watched_program REPORT script.py ARGUMENTS

The program is the user's own and runs as it would have run, in a process of its own, outside any sandbox.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from evaluator.capture.recording import Watch
from evaluator.devices.accelerator import BACKEND, torch_gpu

_TORCH = os.path.dirname(torch.__file__)
_OURS = os.path.dirname(os.path.dirname(__file__))
#: Methods after which the host has what the device computed.
_WAITING = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "nonzero")
_MOST_ROWS = 100


class _AnyModel(Watch):
    """Watches whatever model the program calls, without being told of it."""

    def __init__(self) -> None:
        super().__init__(nn.Module())
        self.watched.clear()
        self.roots: list[str] = []
        #: When the first module was called.
        self.first_s: float | None = None

    def _before(self, module: nn.Module, args: Any) -> None:
        if id(module) not in self.watched and not self._frames and not torch.compiler.is_compiling():
            try:
                found = Watch(module).watched
            except Exception:  # a scripted module, say: its caller is timed all the same
                found = {}
            root = type(module).__name__
            if found:
                self.roots.append(root)
            for key, watched in found.items():
                watched.names = [f"{root}.{name}" if name else root for name in watched.names]
                self.watched.setdefault(key, watched)
        if self.first_s is None:
            self.first_s = time.perf_counter()
        super()._before(module, args)


class Spans:
    """Seconds, calls and bytes by what was done and where."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = {}
        #: When the first of them began.
        self.first_s: float | None = None

    def add(self, kind: str, where: str, seconds: float, size_bytes: int = 0) -> None:
        """Notes one call."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - seconds
        row = self.rows.setdefault((kind, where), [0, 0.0, 0])
        row[0] += 1
        row[1] += seconds
        row[2] += size_bytes

    def around(self, kind: str, inner: Callable[..., Any], *, placed: bool = False) -> Callable[..., Any]:
        """A function that does the same and is timed."""

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return inner(*args, **kwargs)
            where = _caller() if placed else ""
            if placed and not where:
                return inner(*args, **kwargs)
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.add(kind, where, time.perf_counter() - started)

        return call


def _caller() -> str:
    """File and line that called; "" where torch or this package did so for its own ends."""
    frame = sys._getframe(2)
    name = frame.f_code.co_filename
    return "" if name.startswith((_TORCH, _OURS)) else f"{name}:{frame.f_lineno}"


def _watch(spans: Spans) -> None:
    tensor: Any = torch.Tensor
    for name in _WAITING:
        setattr(tensor, name, spans.around(f"wait:{name}", getattr(tensor, name), placed=True))
    torch.autograd.backward = spans.around("backward", torch.autograd.backward)
    loading: Any = dataloader._BaseDataLoaderIter
    loading.__next__ = spans.around("data", loading.__next__)
    began: list[float] = []
    optimizers.register_optimizer_step_pre_hook(lambda *_: began.append(time.perf_counter()))
    optimizers.register_optimizer_step_post_hook(
        lambda *_: spans.add("optimizer", "", time.perf_counter() - began.pop()) if began else None
    )
    inner = tensor.to

    @functools.wraps(inner)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = inner(self, *args, **kwargs)
        if not torch.compiler.is_compiling() and result.device != self.device:
            spans.add("transfer", _caller(), time.perf_counter() - started, self.nbytes)
        return result

    tensor.to = to


def main(report: str, argv: list[str]) -> None:
    """Runs the program and writes the report, also when it ends by an exception or by sys.exit."""
    spans, watch = Spans(), _AnyModel()
    _watch(spans)
    module, sys.argv = argv[0] == "-m", argv[1:] if argv[0] == "-m" else argv
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(sys.argv[0])))
    watch.install()
    started = time.perf_counter()
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        watch.remove()
        ended = time.perf_counter()
        first = min((at for at in (watch.first_s, spans.first_s) if at is not None), default=started)
        modules = [
            {
                "name": watched.names[0],
                "type": type(watched.module).__name__,
                "calls": watched.count,
                "total_s": watched.total_s,
                "self_s": max(watched.self_s, 0.0),
            }
            for watched in watch.watched.values()
            if watched.count
        ]
        modules.sort(key=lambda row: -float(str(row["total_s"])))
        written = {
            "startup_s": first - started,
            "wall_s": ended - first,
            "watching_s": watch.overhead_s,
            "device": BACKEND.name if torch_gpu.is_initialized() else "cpu",
            "roots": watch.roots[:_MOST_ROWS],
            "modules": modules[:_MOST_ROWS],
            "spans": [
                {"kind": kind, "where": where, "calls": row[0], "seconds": row[1], "bytes": row[2]}
                for (kind, where), row in sorted(spans.rows.items(), key=lambda item: -item[1][1])
            ][:_MOST_ROWS],
        }
        Path(report).write_text(json.dumps(written), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
