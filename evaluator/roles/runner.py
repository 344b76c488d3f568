"""Main loop of a sandboxed child: takes requests, runs user code, answers in frames.

Everything in this file runs in a process that the user's code shares and may have subverted. Nothing here is a
defense; the referee believes only what it measures, reads and recomputes itself.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

from evaluator.compiler_words import headline
from evaluator.roles import frames, protocol
from evaluator.roles.protocol import BuildError, ContractError

_MAX_TEXT_BYTES = 6000
#: By class name, because these classes need not be importable.
_COMPILERS = {"BuildError", "CompilationError", "PTXASError", "BackendCompilerFailed", "CppCompileError"}
_BEGINNING, _MOST_CAUSES = 80, 16


def serve(channel: socket.socket, settings: dict[str, Any]) -> None:
    """Answers requests until the referee closes the channel."""
    operations = _operations(settings)
    # The first bytes carry this process's credentials, from which the kernel gives the referee its process id
    # outside.
    channel.sendall(b"H")
    while True:
        message = protocol.receive_request(channel)
        if message is None:
            os._exit(0)
        request, descriptors = message
        operation, sequence = request["op"], request["seq"]
        try:
            payload = operations[operation](request, descriptors)
            status = frames.STATUS_OK
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                # A candidate that calls sys.exit() inside forward has failed, not finished.
                error = RuntimeError(f"{type(error).__name__} raised inside the module: {error}")
            payload, status = _describe(error), frames.STATUS_ERROR
        channel.sendall(frames.encode(operation, status, sequence, payload))


def _operations(
    settings: dict[str, Any],
) -> dict[int, Callable[[dict[str, Any], list[int]], bytes]]:
    if settings["role"] == "tool":
        from evaluator.roles import tool

        return {protocol.TOOL: tool.run, protocol.PROBE: tool.probe}
    from evaluator.roles import landmarks, limits, module_host

    host = module_host.ModuleHost(settings)
    operations: dict[int, Callable[[dict[str, Any], list[int]], bytes]] = {
        protocol.LOAD: host.load,
        protocol.DESCRIBE: host.describe,
        protocol.SIZES: host.sizes,
        protocol.BUILD: host.build,
        protocol.HAND_OVER: host.hand_over,
        protocol.RENEW: host.renew,
        protocol.IMPORT: host.import_state,
        protocol.BIND: host.bind,
        protocol.READY: host.ready,
        protocol.BLOCK: host.block,
        protocol.ORACLE: host.oracle,
        protocol.VARIANT: host.variant,
        protocol.CLOSE: host.close,
        protocol.EXCHANGE: host.exchange,
        protocol.CAPTURE: host.capture,
        protocol.FETCH: host.fetch,
        protocol.KERNELS: host.kernels,
        protocol.MUTE: host.mute,
        protocol.ASKED: host.asked,
        protocol.WAKE: host.wake,
        protocol.KEEP: host.keep,
        protocol.INSPECT: host.inspect,
        protocol.LIMITS: lambda request, descriptors: limits.answer(host.shapes, request),
        protocol.COSTS: host.costs,
        protocol.LANDMARKS: lambda request, descriptors: landmarks.report(
            host, operations, settings["chain_library"]
        ),
    }
    return operations


def _describe(error: BaseException) -> bytes:
    """An exception as a kind byte and capped text: the message first, then the innermost frames."""
    kind = protocol.RUNTIME
    name = type(error).__name__
    message = str(error)
    # The last is of cuBLAS and cuDNN, whose handles and workspaces need memory, too.
    memory = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
    # A compiler that ran out of memory says so at the beginning of its own error.
    full = "OutOfMemory" in f"{name}: {message[:_BEGINNING]}" or any(words in message for words in memory)
    if isinstance(error, MemoryError) or full:
        kind = protocol.MEMORY
    elif isinstance(error, ContractError):
        kind = protocol.CONTRACT
    elif _is_of_a_compiler(error):
        kind = protocol.COMPILE
        message = "\n".join([message, *map(str, _causes(error))])
        told = headline(message)
        message = message if message.partition("\n")[0] == told else f"{told}\n{message}"
    try:
        text = message if kind in (protocol.CONTRACT, protocol.COMPILE) else f"{name}: {message}"
        if kind in (protocol.RUNTIME, protocol.COMPILE) and not isinstance(error, BuildError):
            text += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
    except Exception as formatting:
        text = f"{name} (its text could not be formatted: {type(formatting).__name__})"
    return bytes([kind]) + text.encode("utf-8", "replace")[:_MAX_TEXT_BYTES]


def _is_of_a_compiler(error: BaseException) -> bool:
    """Whether a compiler refused the user's source: Triton, NVRTC, Inductor, or those that build extensions."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _COMPILERS) or str(error).startswith("Kernel compilation failed:")


def _causes(error: BaseException) -> list[BaseException]:
    """The causes of a compiler's error, outermost first: for a helper, only a cause names the right line."""
    causes: list[BaseException] = []
    while (cause := error.__cause__) is not None and len(causes) < _MOST_CAUSES:
        error = cause
        if _is_of_a_compiler(error):
            causes.append(error)
    return causes
