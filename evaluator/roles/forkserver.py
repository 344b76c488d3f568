"""The fork server of a role: enters the sandbox, imports torch once, then forks a child per request.

It never runs user code, never touches CUDA or OpenMP, and holds no seed and no key: every child knows what it
knows. Started by :mod:`evaluator.roles.spawn` as ``python -I -c ...`` with its own end of a socketpair.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from evaluator import allocator
from evaluator.roles import interpreted, protocol
from evaluator.sandbox import namespaces, syscalls
from evaluator.sandbox.layout import Layout

#: All outputs of a timed block stay alive. Without this each would be fresh memory, whose page faults take longer than many kernels
#: (LayerNorm, ReLU and add of 1024 x 1024: 3.4 to 4.9 ms instead of 1.4 to 1.8). They also vary with the heap's state, and penalize
#: modules with more allocations more than in a program that has run for a while. Both sides of a pair get the same settings.
_KEPT_BYTES = 2 << 30


def main(channel_descriptor: int, settings_json: str) -> None:
    """Runs until the referee closes the channel."""
    channel = socket.socket(fileno=channel_descriptor)
    settings: dict[str, Any] = json.loads(settings_json)
    tier = settings["tier"]
    if settings["cores"]:
        # Set it here, because libraries start threads at import, and the parent process may be on a timing core.
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
        return  # the referee was killed during the start; importing torch would outlive it by seconds
    allocator.keep_freed_memory(_KEPT_BYTES)
    sys.path[:0] = settings["import_roots"]
    _preload(settings)
    channel.sendall(json.dumps({"ready": True, "pid": os.getpid()}).encode() + b"\n")
    while True:
        message = protocol.receive_request(channel)
        if message is None:
            os._exit(0)
        request, descriptors = message
        if request["compiler"] and not settings["compiler"]:
            settings["compiler"] = True
            _preload_compiler(settings)
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


#: Drawing a task's inputs without memory needs half of the compiler.
_PRELOADED = ("numpy", "torch", "evaluator.roles.module_host", "torch._dynamo")
_PRELOADED_BY_DEVICE = {True: ("triton",), False: ("torch.utils.cpp_extension",)}
_COMPILER = "torch._inductor.compile_fx"


def _preload(settings: dict[str, Any]) -> None:
    """Imports what children need, so that a child is ready in milliseconds."""
    gc.disable()  # collections take a tenth of the time of importing torch and a quarter of the compiler's, and find little
    # Not at the top: it imports numpy, whose threads would prevent an ordinary user from creating a user
    # namespace.
    from evaluator.roles import chain

    # Read while the compiler is imported. With another number, each compiling child would start a pool of
    # processes.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if settings["interprets_triton"]:
        os.environ[interpreted.VARIABLE] = "1"
    with _without_devices():
        with suppress(ImportError):
            importlib.import_module("triton")
        for name in (*_PRELOADED, *_PRELOADED_BY_DEVICE[settings["gpu"]]):
            importlib.import_module(name)
    chain.load(settings["chain_library"])
    if settings["compiler"]:
        _preload_compiler(settings)
    else:
        _settle(settings)


def _preload_compiler(settings: dict[str, Any]) -> None:
    """Does what each compiling child would do first, 2 CPU seconds of imports and patterns."""
    gc.disable()
    with _without_devices():
        importlib.import_module(_COMPILER)
    if settings["gpu"]:
        _hash_triton()
    elif settings["interprets_triton"]:
        _begin_compiling()
    _settle(settings)


def _settle(settings: dict[str, Any]) -> None:
    """Finds the harness's words, which are the same in every child from now on, and hides what exists from children's
    garbage collectors: each would look at half a million objects, and get copies of their memory by that.
    """
    from evaluator.roles import landmarks

    landmarks.common.cache_clear()
    landmarks.common(settings["gpu"])
    gc.freeze()
    gc.enable()


@contextmanager
def _without_devices() -> Iterator[None]:
    """Hides GPUs from torch: a process that has queried the CUDA runtime cannot fork children that use a GPU.

    The compiler queries it while it is imported, and torch keeps the answer.
    """
    import torch

    from evaluator.devices import accelerator

    counted = getattr(torch._C, "_cuda_getDeviceCount", None)  # a CPU build has none
    if counted is None:
        yield
        return
    torch._C._cuda_getDeviceCount = lambda: 0
    try:
        yield
    finally:
        torch._C._cuda_getDeviceCount = counted
        accelerator.torch_gpu._cached_device_count = None
        kept = sys.modules.get("torch.utils._triton")
        for function in vars(kept).values() if kept is not None else ():
            if hasattr(function, "cache_clear"):
                function.cache_clear()


#: What the compiler imports only when it writes code.
_IMPORTED_LATE = ("sympy.physics.units", "torch.distributed.tensor.experimental")


class _Enough(Exception):
    """Ends a compilation."""


def _begin_compiling() -> None:
    """Does the one-time work of every process's first compilation once, for all children.

    Inductor traces its own patterns, hashes its own source and imports modules: 0.9 of the 1.2 CPU seconds that a
    first graph takes before the C++ compiler. Here a sum is compiled as far as code generation, so that nothing
    depends on the CPU, on settings or on a folder yet. If another version of torch stops earlier, children do the
    rest.
    """
    import torch
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch
    from torch._inductor import codecache
    from torch._inductor import config as inductor
    from torch._inductor.graph import GraphLowering

    def end(*arguments: Any) -> None:
        raise _Enough

    _without_monitor()
    generate, GraphLowering.codegen = GraphLowering.codegen, end  # type: ignore[method-assign,assignment]
    try:
        # Children may run by now. Nothing is loaded from a cache folder, which might hold what they wrote.
        with (
            suppress(Exception),
            torch.no_grad(),
            inductor.patch(fx_graph_cache=False),
            functorch.patch(enable_autograd_cache=False),
            dynamo.patch(automatic_dynamic_local_pgo=False),
        ):
            codecache.torch_key()  # the hash of its source, a part of what children's files are named by
            torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(1))
    finally:
        GraphLowering.codegen = generate  # type: ignore[method-assign]
        torch._dynamo.reset()
    for name in _IMPORTED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)


def _without_monitor() -> None:
    """Disables the progress bar that Inductor draws while it traces: its thread would be missing in children."""
    with suppress(ImportError):
        importlib.import_module("tqdm").tqdm.monitor_interval = 0


def _hash_triton() -> None:
    """Computes the hash of Triton's library (416 MB), on which every name in its cache depends, once for all
    children.
    """
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return  # another version keeps it elsewhere
    triton_key()


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
