"""What both kinds of generated kernels have in common once they are printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.compiler.calls import KernelCall

Printer = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Library:
    """Kernels in printed form.

    Attributes:
        imports: import lines that the parts need.
        parts: module-level code, in order.
        names: module-level names that the parts bind.
        printers: for each variant, how to print a call of each kernel.
        scratch: for each variant, the buffers that its kernels allocate themselves.
        guard: a condition that the module's constructor must see hold, or nothing.
    """

    imports: tuple[str, ...]
    parts: tuple[str, ...]
    names: frozenset[str]
    printers: tuple[Mapping[str, Printer], ...]
    scratch: tuple[frozenset[str], ...]
    guard: str = ""


def function_name(raw: str, position: int, count: int) -> str:
    """`cpp_fused_add_relu_0` becomes `fused_add_relu`, with its number when there are several kernels."""
    base = re.sub(r"_\d+$", "", re.sub(r"^(cpp|triton_(poi|red|per))_", "", raw))
    base = re.sub(r"_+", "_", base).strip("_") or "kernel"
    return base if count == 1 else f"{base}_{position}"


def fused_words(raw: str) -> str:
    """The operators that a kernel's name says are fused in it, in words."""
    words = re.sub(r"^(cpp|triton_(poi|red|per))_fused", "", re.sub(r"_\d+$", "", raw))
    return " ".join(words.replace("_", " ").split())


def names_of_arguments(parameters: Sequence[str], calls: Sequence[KernelCall]) -> dict[str, str]:
    """Names for a kernel's parameters: those of what it is called with, if it is called only once."""
    if len(calls) != 1 or len(parameters) != len(calls[0].base_names):
        return {}
    bases = [base.removesuffix("_") for base in calls[0].base_names]
    return {parameter: base for parameter, base in zip(parameters, bases, strict=True) if base.isidentifier()}
