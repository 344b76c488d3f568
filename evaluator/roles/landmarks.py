"""Lists words of this process's memory that never change while only trusted code runs: the harness itself.

A role reports them before it imports any user code. From then on the referee reads these words from outside, at
moments of its own choice, and compares them with their first values. Nothing that happens here later can influence
that. They are the pointers by which the interpreter gets from a request to the loop around the calls (where
modules and classes keep the harness's functions, and what a function consists of), and the machine code of that
loop. Python bytecode is not included, because the interpreter rewrites it as it warms up.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import struct
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from json import decoder
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from evaluator.devices import accelerator

_WORD_BYTES = 8
#: PyObject: reference count, type. PyDictObject: those, the number of entries, a version, the keys, the values.
_TYPE_AT, _USED_AT, _KEYS_AT, _VALUES_AT = 8, 16, 32, 40
#: What a request passes through on its way to the loop and back.
_MODULES = (
    "blocks", "calls", "chain", "dispatch", "frames", "module_host", "open_shape", "protocol", "runner", "turns",
)  # fmt: skip
#: The same for a GPU. Not read without one: it takes 0.1 ms.
_MODULES_GPU = ("exchange", "gate")
_DEVICES = "evaluator.devices"

#: Debuggers and loggers replace these.
_REPLACED_BY_HONEST = frozenset({"__import__", "breakpoint", "help", "input", "open", "print"})

Range = tuple[int, int]


@cache
def common(gpu: bool) -> frozenset[Range]:
    """(address, length in bytes) of every range that is the same in all processes forked from this one."""
    found = Found()
    package = __name__.rpartition(".")[0]
    names = (*_MODULES, *(_MODULES_GPU if gpu else ()))
    roles = [importlib.import_module(f"{package}.{name}") for name in names]
    for module in (*roles, accelerator, *(accelerator.TIMED_PATH if gpu else ())):
        # A warning would add it there, and might move all the others.
        vars(module).setdefault("__warningregistry__", {})
        found.names(vars(module))
        for value in list(vars(module).values()):
            if str(getattr(value, "__module__", "")).startswith((package, _DEVICES)):
                found.thing(value)
    # Few add names to these, and a dictionary of this size does not move for some.
    found.entries(vars(builtins), but=_REPLACED_BY_HONEST)
    for other in (decoder.JSONDecoder, decoder.JSONDecoder.decode):
        found.thing(other)
    return frozenset(found.ranges)


def report(host: Any, operations: dict[int, Callable[..., bytes]], library: str | None) -> bytes:
    """Pairs of address and length, 8 bytes each, of everything that must stay as it is now.

    Args:
        host: what serves requests; its data may change, except for its chain.
        operations: what serves which request.
        library: path of the compiled loop, if there is one.
    """
    found = Found()
    found.names(operations)
    for method in operations.values():
        found.thing(method)
    found.instance(host, kept=[host.chain])
    found.instance(host.chain)
    if library:
        found.machine_code(library)
    numbers = [
        number for pair in _joined(common(accelerator.on_gpu(host.device)) | found.ranges) for number in pair
    ]
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in as few ranges as possible: each costs the kernel half a microsecond."""
    joined: list[Range] = []
    for address, length_bytes in sorted(ranges):
        if joined and address <= joined[-1][0] + joined[-1][1]:
            begin, held_bytes = joined[-1]
            joined[-1] = (begin, max(held_bytes, address + length_bytes - begin))
        else:
            joined.append((address, length_bytes))
    return joined


class Found:
    """Collects (address, length in bytes) of what must not change."""

    def __init__(self) -> None:
        self.ranges: set[Range] = set()
        self._seen: set[int] = set()

    def thing(self, value: Any) -> None:
        """A function, a method or a class, with everything that it consists of."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, (staticmethod, classmethod)):
            self._pointers(value, {id(value.__func__)})
            self.thing(value.__func__)
        elif isinstance(value, property):
            self._pointers(value, {id(value.fget)})
            self.thing(value.fget)
        elif isinstance(value, MethodType):
            self._pointers(value, {id(value.__func__), id(value.__self__)})
            self.thing(value.__func__)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            # The visible `__dict__` of a class is a proxy of its names.
            (own, *_) = [each for each in gc.get_referents(value) if isinstance(each, dict)]
            self.names(own)
            for member in list(own.values()):
                if isinstance(member, (FunctionType, staticmethod, classmethod, property)):
                    self.thing(member)

    def names(self, held: dict[Any, Any]) -> None:
        """Where a dictionary keeps functions, classes, modules and integers, by their names.

        A new name could hide another.
        """
        self.ranges.add((id(held) + _USED_AT, _WORD_BYTES))
        self.entries(held)

    def entries(self, held: dict[Any, Any], but: frozenset[str] = frozenset()) -> None:
        """The same for a dictionary to which names may be added, except some of them."""
        self.ranges.add((id(held) + _KEYS_AT, _WORD_BYTES))
        keys_at = _word(id(held) + _KEYS_AT)
        names = {
            id(name): id(value)
            for name, value in held.items()
            if (callable(value) or isinstance(value, (int, ModuleType))) and name not in but
        }
        words = _words(keys_at, held.__sizeof__() - dict.__basicsize__)
        for index, (first, second) in enumerate(pairwise(words)):
            if names.get(first) == second:
                self.ranges.add((keys_at + index * _WORD_BYTES, 2 * _WORD_BYTES))

    def instance(self, value: Any, kept: Iterable[Any] = ()) -> None:
        """An object: its class, the absence of attributes that hide methods of its class, and its C functions by
        name.

        Args:
            value: the object.
            kept: other data of it that must stay.
        """
        self.ranges.add((id(value) + _TYPE_AT, _WORD_BYTES))
        held = vars(value)
        self.ranges |= {(id(held) + at, _WORD_BYTES) for at in (_USED_AT, _KEYS_AT, _VALUES_AT)}
        members = {id(member) for member in kept}
        for member in held.values():
            if isinstance(member, ctypes._CFuncPtr):  # type: ignore[attr-defined]
                self.ranges.add((ctypes.addressof(member), _WORD_BYTES))
                members.add(id(member))
        values_at = _word(id(held) + _VALUES_AT)
        if values_at:
            # Objects of a class share their names. The values are separate, from Python 3.13 on behind a word of
            # sizes.
            self._pointers_at(values_at, (len(held) + 1) * _WORD_BYTES, members)
        else:
            self._pointers_at(_word(id(held) + _KEYS_AT), held.__sizeof__() - dict.__basicsize__, members)

    def machine_code(self, library: str) -> None:
        """A library's code and constants, which are never written after loading."""
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            span, rights, _, _, _, *path = line.split(None, 5)
            if path and path[0] == library and "r" in rights and "w" not in rights:
                low, high = (int(word, 16) for word in span.split("-"))
                self.ranges.add((low, high - low))

    def _function(self, function: FunctionType) -> None:
        parts = {
            id(part)
            for part in (function.__code__, function.__globals__, function.__defaults__, function.__closure__)
            if part is not None
        }
        called = getattr(ctypes.pythonapi, "_PyFunction_Vectorcall", None)
        if called is not None:
            parts.add(ctypes.cast(called, ctypes.c_void_p).value or 0)
        self._pointers(function, parts)

    def _pointers(self, value: Any, targets: set[int]) -> None:
        self._pointers_at(id(value), object.__sizeof__(value), targets)

    def _pointers_at(self, address: int, length_bytes: int, targets: set[int]) -> None:
        for index, word in enumerate(_words(address, length_bytes)):
            if word in targets:
                self.ranges.add((address + index * _WORD_BYTES, _WORD_BYTES))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _words(address: int, length_bytes: int) -> list[int]:
    return list((ctypes.c_uint64 * (max(length_bytes, 0) // _WORD_BYTES)).from_address(address))
