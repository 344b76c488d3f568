"""Languages of a candidate's kernels. To add one, add an entry here and notes in ``agent/knowledge/notes``."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        name: shown in prompts and on pages.
        key: used in the front matter of notes.
        pattern: regular expression that matches every candidate in this language.
        devices: where it runs, "cpu" or "cuda".
    """

    name: str
    key: str
    pattern: str
    devices: tuple[str, ...]


#: The first match wins: a CUDA extension also contains C++.
LANGUAGES = (
    Language("CUDA C++", "cuda", r"__global__|cuda_sources", ("cuda",)),
    Language("Triton", "triton", r"@triton\.(jit|autotune)", ("cuda",)),
    Language("C++", "cpp", r"load_inline|cpp_sources|#include", ("cpu",)),
)


def language_of(source: str) -> Language | None:
    """The language of a candidate's kernels; None if it uses only PyTorch operations."""
    return next((one for one in LANGUAGES if re.search(one.pattern, source)), None)
