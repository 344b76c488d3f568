"""The languages that kernels of a candidate are written in. A new one is an entry here and notes in ``agent/knowledge/notes``."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        name: in prompts and on pages.
        key: in the front matter of notes.
        pattern: found in every candidate that uses it.
        devices: where it runs, "cpu" or "cuda".
    """

    name: str
    key: str
    pattern: str
    devices: tuple[str, ...]


#: The first one whose pattern is found counts: a CUDA extension holds C++, too.
LANGUAGES = (
    Language("CUDA C++", "cuda", r"__global__|cuda_sources", ("cuda",)),
    Language("Triton", "triton", r"@triton\.(jit|autotune)", ("cuda",)),
    Language("C++", "cpp", r"load_inline|cpp_sources|#include", ("cpu",)),
)


def language_of(source: str) -> Language | None:
    """The language of a candidate's kernels; None where it uses PyTorch's operations alone."""
    return next((one for one in LANGUAGES if re.search(one.pattern, source)), None)
