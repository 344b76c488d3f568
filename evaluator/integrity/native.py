"""A light parser of C++ and CUDA source: removes comments and literals, finds names of kernels and forbidden
tricks.
"""

from __future__ import annotations

import re

#: What a Python string must contain to count as C++ or CUDA.
_MARKS = re.compile(r"__global__|#\s*include\b|\btorch::Tensor\b|\bat::\w|extern\s+\"C\"|\bTORCH_LIBRARY\b")
#: Comments, then string and character literals. Raw strings are left alone (kernels have none).
_NOISE = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
#: A kernel's name is before the first parenthesis after `__global__`, except that of launch bounds.
_KERNEL = re.compile(
    r"__global__\s+(?:[\w:]+\s+){0,4}?(?:__launch_bounds__\s{0,4}\([^)]{0,80}\)\s*(?:[\w:]+\s+){0,3}?)?(?!__launch_bounds__)(\w{1,120})\s{0,4}\("
)


def looks_native(text: str) -> bool:
    """Whether a Python string looks like C++ or CUDA."""
    return _MARKS.search(text) is not None


def without_noise(text: str, *, literals: bool = False) -> str:
    """The source with comments blanked, line numbers unchanged; string literals too unless ``literals`` keeps
    them.
    """

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] != "/" and literals:
            return found
        return "\n" * found.count("\n") + " "

    return _NOISE.sub(blank, text)


def kernel_names(text: str) -> list[str]:
    """Names of the `__global__` functions that a source defines or declares."""
    return list(dict.fromkeys(_KERNEL.findall(without_noise(text))))
