"""Main loop of a confined child: takes requests, runs user code, answers in frames.

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
from evaluator.roles import frames, wire

(
    LOAD,
    DESCRIBE,
    SIZES,
    BUILD,
    IMPORT,
    BIND,
    READY,
    BLOCK,
    ORACLE,
    VARIANT,
    CLOSE,
    EXCHANGE,
    CAPTURE,
    FETCH,
    TOOL,
    PROBE,
    KERNELS,
    MUTE,
    ASKED,
    WAKE,
    KEEP,
    LANDMARKS,
    INSPECT,
    COSTS,
    HAND_OVER,
    RENEW,
    LIMITS,
) = range(1, 28)

#: Variant that returns an output made before: a block of it takes what the harness itself takes.
NULL = "null"
#: Variant that does the least that any module does: it is called, makes a new tensor and returns it.
LEAST = "least"

#: In the message of an error of a compiled baseline that would be eager under another name.
NOTHING_COMPILED = "torch.compile compiled nothing of it"

#: Answer to a change of weights by a module that shows it; one that `from_reference` made need not.
RENEWED = b"renewed"

#: In place of a precision tier: the module's own result.
OWN_RESULT = "own"
#: The same in its tier instead of full precision, widened.
OWN_IN_TIER = "own in tier"

#: In the message of an error that more shared memory would mend.
TOO_SMALL = "the memory shared with the referee is too small"

#: Before the name of a kernel of the candidate's own in a profile of its process.
OWN = "kernelwright_own::"

#: First byte of an error payload; the words they stand for are in :mod:`evaluator.roles.process`.
RUNTIME, MEMORY, CONTRACT, COMPILE = range(4)
_MAX_TEXT_BYTES = 6000
#: By the names of their classes, of which none need be there.
_COMPILERS = {"BuildError", "CompilationError", "PTXASError", "BackendCompilerFailed", "CppCompileError"}
_BEGINNING, _MOST_CAUSES = 80, 16


class ContractError(Exception):
    """User code does not keep the contract of its file format; the message is for the user."""


class BuildError(Exception):
    """A compiler refused the user's source; the message carries its output."""


def serve(channel: socket.socket, settings: dict[str, Any]) -> None:
    """Answers requests until the referee closes the channel."""
    operations = _operations(settings)
    # The first bytes carry our credentials, from which the kernel tells the referee our process id outside.
    channel.sendall(b"H")
    while True:
        message = wire.receive_request(channel)
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

        return {TOOL: tool.run, PROBE: tool.probe}
    from evaluator.roles import landmarks, limits, module_host

    host = module_host.ModuleHost(settings)
    operations: dict[int, Callable[[dict[str, Any], list[int]], bytes]] = {
        LOAD: host.load,
        DESCRIBE: host.describe,
        SIZES: host.sizes,
        BUILD: host.build,
        HAND_OVER: host.hand_over,
        RENEW: host.renew,
        IMPORT: host.import_state,
        BIND: host.bind,
        READY: host.ready,
        BLOCK: host.block,
        ORACLE: host.oracle,
        VARIANT: host.variant,
        CLOSE: host.close,
        EXCHANGE: host.exchange,
        CAPTURE: host.capture,
        FETCH: host.fetch,
        KERNELS: host.kernels,
        MUTE: host.mute,
        ASKED: host.asked,
        WAKE: host.wake,
        KEEP: host.keep,
        INSPECT: host.inspect,
        LIMITS: lambda request, descriptors: limits.answer(host.shapes, request),
        COSTS: host.costs,
        LANDMARKS: lambda request, descriptors: landmarks.report(host, operations, settings["chain_library"]),
    }
    return operations


def _describe(error: BaseException) -> bytes:
    """An exception as a kind byte and capped text: the message first, then the innermost frames."""
    kind = RUNTIME
    name = type(error).__name__
    message = str(error)
    memory = ("can't allocate memory", "CUDA error: out of memory")
    # A compiler that ran out of memory says so at the beginning of its own error.
    full = "OutOfMemory" in f"{name}: {message[:_BEGINNING]}" or any(words in message for words in memory)
    if isinstance(error, MemoryError) or full:
        kind = MEMORY
    elif isinstance(error, ContractError):
        kind = CONTRACT
    elif _is_of_a_compiler(error):
        kind = COMPILE
        message = "\n".join([message, *map(str, _causes(error))])
        told = headline(message)
        message = message if message.partition("\n")[0] == told else f"{told}\n{message}"
    try:
        text = message if kind in (CONTRACT, COMPILE) else f"{name}: {message}"
        if kind in (RUNTIME, COMPILE) and not isinstance(error, BuildError):
            text += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
    except Exception as formatting:
        text = f"{name} (its text could not be formatted: {type(formatting).__name__})"
    return bytes([kind]) + text.encode("utf-8", "replace")[:_MAX_TEXT_BYTES]


def _is_of_a_compiler(error: BaseException) -> bool:
    """Whether a compiler refused the user's source: Triton, NVRTC, Inductor, or those that build extensions."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _COMPILERS) or str(error).startswith("Kernel compilation failed:")


def _causes(error: BaseException) -> list[BaseException]:
    """What a compiler's error was raised from, outermost first: Triton names the wrong line of a helper only there."""
    causes: list[BaseException] = []
    while (cause := error.__cause__) is not None and len(causes) < _MOST_CAUSES:
        error = cause
        if _is_of_a_compiler(error):
            causes.append(error)
    return causes
