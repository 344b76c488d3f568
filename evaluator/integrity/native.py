"""A light reading of C++ and CUDA text: comments and literals away, names of kernels, forbidden tricks left visible."""

from __future__ import annotations

import re

#: What a Python string must contain to be taken for C++ or CUDA.
_MARKS = re.compile(r"__global__|#\s*include\b|\btorch::Tensor\b|\bat::\w|extern\s+\"C\"|\bTORCH_LIBRARY\b")
#: Comments, then string and character literals; raw strings are left alone (kernels have none).
_NOISE = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
#: A kernel's name stands before the first parenthesis after `__global__`, less those of launch bounds.
_KERNEL = re.compile(
    r"__global__\s+(?:[\w:]+\s+){0,4}?(?:__launch_bounds__\s{0,4}\([^)]{0,80}\)\s*(?:[\w:]+\s+){0,3}?)?(?!__launch_bounds__)(\w{1,120})\s{0,4}\("
)


def looks_native(text: str) -> bool:
    """Whether a Python string holds C++ or CUDA, as far as a glance can tell."""
    return _MARKS.search(text) is not None


def without_noise(text: str, *, literals: bool = False) -> str:
    """The text with comments blanked, line numbers unchanged; string literals as well, unless they are asked for."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] != "/" and literals:
            return found
        return "\n" * found.count("\n") + " "

    return _NOISE.sub(blank, text)


def kernel_names(text: str) -> list[str]:
    """Names of the `__global__` functions that a text defines or declares."""
    return list(dict.fromkeys(_KERNEL.findall(without_noise(text))))
