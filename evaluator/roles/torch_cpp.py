"""`load_inline` inside the sandbox: the compile role records requests, every role loads what it is given.

Nothing is compiled here, beside the candidate's Python. The compile role imports the candidate and records the
calls (:mod:`evaluator.building.extension_call`). The referee has each compiled elsewhere, from its sources alone,
and starts the candidate again with the libraries. Whatever the candidate does to the functions below in its own
process only affects the libraries that it requests for itself.

Code that NVRTC compiles (``torch.cuda._compile_kernel``) does not pass through here: torch gives the source to
NVRTC in the candidate's own process at the first call. That takes half a second, as part of set-up and of the
first call. Every shape is checked for correctness before it is timed, so no timed block waits for it. A kernel
that is still compiled in a timed block is the candidate's own loss.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import json
import os
import struct
from typing import Any

import torch

from evaluator.building.extension_call import CallRefused, ExtensionCall, from_arguments
from evaluator.roles.frames import MAX_FRAME_BYTES
from evaluator.roles.protocol import BuildError, ContractError

_LENGTH = struct.Struct("<I")
_ROOM_FOR_THE_REST = 4096


def pack(libraries: dict[str, bytes], failures: dict[str, str]) -> bytes:
    """The referee's half of :meth:`Extensions.give`: results by the digest of their call."""
    index = json.dumps([[[d, len(b)] for d, b in libraries.items()], list(failures.items())]).encode()
    return _LENGTH.pack(len(index)) + index + b"".join(libraries.values())


class Extensions:
    """Replaces ``torch.utils.cpp_extension.load_inline`` in one process.

    Args:
        recording: whether calls without a result are recorded; otherwise they fail.
    """

    def __init__(self, *, recording: bool) -> None:
        self.recording = recording
        self.folder = os.path.join(os.environ["TMPDIR"], "extensions")
        self._original: Any = None
        self._given: dict[str, bytes] = {}
        self._failures: dict[str, str] = {}
        self._asked: dict[str, ExtensionCall] = {}
        self._imported = False
        self._late = False

    def give(self, results: bytes) -> None:
        """Takes what the referee had built."""
        if not results:
            return
        (length,) = _LENGTH.unpack_from(results)
        at = _LENGTH.size + length
        sizes, failures = json.loads(results[_LENGTH.size : at])
        for digest, size in sizes:
            self._given[digest] = results[at : at + size]
            at += size
        self._failures = dict(failures)

    def install(self) -> None:
        """Replaces the function in torch's module.

        Imported names see it because user code is loaded afterwards.
        """
        import torch.utils.cpp_extension as cpp_extension

        if self._original is None:
            self._original = cpp_extension.load_inline
            cpp_extension.load_inline = self.load_inline
            cpp_extension.load = self._refuse_load
            if self.recording:
                ctypes.CDLL = _RecordingCDLL  # type: ignore[misc]

    def imported(self) -> None:
        """The user's file has been imported: calls from now on are late ones."""
        self._imported = True

    def asked(self) -> bytes:
        """Calls that have no result yet, and whether any call came after the import, as JSON.

        As many as fit into an answer; the others are asked for again when these are built.
        """
        calls: list[Any] = []
        room = MAX_FRAME_BYTES - _ROOM_FOR_THE_REST
        for call in self._asked.values():
            room -= len(call.canonical)
            if room > 0:
                calls.append(json.loads(call.canonical))
        return json.dumps({"calls": calls, "late": self._late}).encode()

    @staticmethod
    def _refuse_load(*arguments: Any, **keywords: Any) -> Any:
        raise ContractError("torch.utils.cpp_extension.load() is not available here: use load_inline()")

    def load_inline(self, *arguments: Any, **keywords: Any) -> Any:
        """Same signature as torch's function; see there."""
        bound = inspect.signature(self._original).bind(*arguments, **keywords)
        bound.apply_defaults()
        try:
            call = from_arguments(bound.arguments)
        except CallRefused as refused:
            raise ContractError(f"load_inline: {refused}") from None
        self._late = self._late or self._imported
        if call.digest in self._failures:
            raise BuildError(self._failures[call.digest])
        path = os.path.join(self.folder, call.digest, f"{call.name}.so")
        if call.digest not in self._given:
            if not self.recording:
                raise BuildError(
                    "this extension was not built in the compile step: a candidate gets those that it requests while "
                    "it is imported, constructed and first called, so call load_inline at import time; a task cannot have any"
                )
            self._asked[call.digest] = call
            return _Unbuilt() if call.is_python_module else path
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path))
            with open(path, "wb") as file:
                file.write(self._given[call.digest])
            os.chmod(path, 0o555)
        return _load(call.name, path, call.is_python_module)


class _Unbuilt:
    """What a recording process gets in place of a library: it can be passed on, not called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unbuilt()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise BuildError("the code calls an extension that is not built yet")


class _RecordingCDLL(ctypes.CDLL):
    """`ctypes.CDLL` for a process in which some libraries are not built yet, so that loading them does not fail."""

    def __new__(cls, name: Any, *arguments: Any, **keywords: Any) -> Any:
        unbuilt = isinstance(name, str) and f"{os.sep}extensions{os.sep}" in name and not os.path.exists(name)
        return _Unbuilt() if unbuilt else super().__new__(cls)


def _load(name: str, library: str, is_python_module: bool) -> Any:
    if not is_python_module:
        torch.ops.load_library(library)
        return library
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
