"""The fork server of a role: enters the sandbox, imports torch once, then forks a child per request.

It never runs user code, never touches CUDA or OpenMP and holds no seed and no key: what it knows, every child knows.
Started by :mod:`evaluator.roles.spawn` as ``python -I -c ...`` with its own end of a socketpair.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from evaluator.roles import interpreted, wire
from evaluator.sandbox import namespaces, syscalls
from evaluator.sandbox.layout import Layout

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def main(channel_descriptor: int, settings_json: str) -> None:
    """Runs until the referee closes the channel."""
    channel = socket.socket(fileno=channel_descriptor)
    settings: dict[str, Any] = json.loads(settings_json)
    tier = settings["tier"]
    if settings["cores"]:
        # Here, since libraries start threads when they are imported, and whoever started us may be on a timing core.
        os.sched_setaffinity(0, settings["cores"])
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    layout = Layout(**{**settings["layout"], "writable": tuple(map(tuple, settings["layout"]["writable"]))})
    try:
        if tier == "namespaces":
            namespaces.enter_outer(layout)
    except OSError as error:
        channel.sendall(json.dumps({"ready": False, "error": str(error)}).encode() + b"\n")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if _is_gone(channel):
        return  # the referee was killed while we started; importing torch would outlive it by seconds
    _quiet_allocator()
    sys.path[:0] = settings["import_roots"]
    _preload(settings)
    channel.sendall(json.dumps({"ready": True, "pid": os.getpid()}).encode() + b"\n")
    while True:
        message = wire.receive_request(channel)
        if message is None:
            os._exit(0)
        request, descriptors = message
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become_child(request, descriptors, tier)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.sendall(json.dumps({"forked": pid}).encode() + b"\n")


def _is_gone(channel: socket.socket) -> bool:
    try:
        return not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


#: The compiler takes 6 s to import (H200), which every child that compiles would pay.
_PRELOADED = ("numpy", "torch", "evaluator.roles.module_host", "torch._dynamo", "torch._inductor.compile_fx")
_PRELOADED_BY_DEVICE = {True: ("triton",), False: ("torch.utils.cpp_extension",)}


def _preload(settings: dict[str, Any]) -> None:
    """Imports what children need, so that a child is ready in milliseconds."""
    # Not at the top: it imports numpy, whose threads would keep an ordinary user out of a user namespace of its own.
    from evaluator.roles import chain, landmarks

    # Read while the compiler is imported, here; with another number each child that compiles would start a pool of processes.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if settings["interprets_triton"]:
        os.environ[interpreted.VARIABLE] = "1"
    with _without_devices():
        for name in (*_PRELOADED, *_PRELOADED_BY_DEVICE[settings["gpu"]]):
            importlib.import_module(name)
    if settings["gpu"]:
        _hash_triton()
    elif settings["interprets_triton"]:
        _begin_compiling()
    chain.load(settings["chain_library"])
    landmarks.common(settings["gpu"])


@contextmanager
def _without_devices() -> Iterator[None]:
    """Meanwhile torch finds no GPU: a process that has asked the CUDA runtime for its devices cannot fork children that use one.

    The compiler asks while it is imported, and torch keeps the answer.
    """
    import torch

    counted = getattr(torch._C, "_cuda_getDeviceCount", None)  # a build for the CPU has none
    if counted is None:
        yield
        return
    torch._C._cuda_getDeviceCount = lambda: 0
    try:
        yield
    finally:
        torch._C._cuda_getDeviceCount = counted
        torch.cuda._cached_device_count = None
        kept = sys.modules.get("torch.utils._triton")
        for function in vars(kept).values() if kept is not None else ():
            if hasattr(function, "cache_clear"):
                function.cache_clear()


#: What the compiler imports only when it writes code.
_IMPORTED_LATE = ("sympy.physics.units", "torch.distributed.tensor.experimental")


class _Enough(Exception):
    """Ends a compilation."""


def _begin_compiling() -> None:
    """What the first compilation of every process works out, whatever it compiles: here once, for all children.

    Inductor traces its own patterns, hashes its own text and imports: 0.9 of the 1.2 processor seconds that a first graph takes before
    the C++ compiler. A compilation of a sum gets as far as its code, so that nothing depends on the processor, on settings or on a
    folder yet. Where another version of torch stops earlier, children do the rest themselves.
    """
    import torch
    from torch._inductor.graph import GraphLowering

    def end(*arguments: Any) -> None:
        raise _Enough

    _without_monitor()
    generate, GraphLowering.codegen = GraphLowering.codegen, end  # type: ignore[method-assign,assignment]
    try:
        with suppress(Exception), torch.no_grad():
            torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(1))
    finally:
        GraphLowering.codegen = generate  # type: ignore[method-assign]
        torch._dynamo.reset()
    for name in _IMPORTED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)


def _without_monitor() -> None:
    """The progress bar that Inductor draws while it traces starts a thread, of which children would get no copy."""
    with suppress(ImportError):
        importlib.import_module("tqdm").tqdm.monitor_interval = 0


def _hash_triton() -> None:
    """Every name in Triton's cache depends on a hash of its whole library (416 MB): once here, not in every child."""
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return  # another version keeps it elsewhere
    triton_key()


def _quiet_allocator() -> None:
    """Keeps freed memory in the heap, so that a timed call does not pay for page faults that the previous one caused.

    All outputs of a block stay alive; each would otherwise be fresh memory, whose page faults take longer than many
    kernels (LayerNorm, ReLU and add of 1024 x 1024: 3.4 to 4.9 ms instead of 1.4 to 1.8), come and go with the heap's
    mood, and punish whoever allocates more often than in a program that has run for a while. Both sides of a pair get
    the same settings.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        libc.mallopt(_M_TOP_PAD, 64 << 20)


def _become_child(request: dict[str, Any], descriptors: list[int], tier: str) -> None:
    """In the forked child: sandbox, limits, then the role's main loop. Never returns."""
    from evaluator.roles import confinement

    status = 70
    try:
        channel, control, output = descriptors
        confinement.redirect_output(output)
        confinement.enter(request, socket.socket(fileno=control), tier)
        from evaluator.roles import runner

        runner.serve(socket.socket(fileno=channel), request)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)
