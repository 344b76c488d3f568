"""Names for the technique behind a change, from a closed list.

Memory passes sentences from one job to others, and a critic's own words may quote text from a user's reference module,
including instructions. Lessons therefore use only these names, matched against the changed lines.
"""

from __future__ import annotations

import re

_TECHNIQUES: tuple[tuple[str, str], ...] = (
    (r"_mm\d*_|__m\d{3}|\bomp simd\b|\bfloat4\b|\bint4\b|__restrict__", "explicit vector loads and arithmetic"),
    (r"\bomp\b.{0,80}\bparallel\b|num_threads|schedule\(", "another way to share work between threads"),
    (r"\b__shared__\b|extern __shared__", "staging in shared memory"),
    (r"\b(wmma|wgmma|mma_sync)\b|\btl\.dot\b|_tile_dp", "matrix units"),
    (r"CUDAGraph|make_graphed_callables", "replaying a CUDA graph"),
    (r"\bnum_warps\b|\bnum_stages\b|\bBLOCK\w*|\bTILE\w*|\bblockDim\b|\bUNROLL\w*|#pragma unroll", "other block sizes"),
    (r"__shfl|\btl\.(sum|max|reduce)\b|\bwarp\w*reduce", "another reduction"),
    (r"\b(bfloat16|float16|half|tf32|allow_tf32)\b", "lower precision"),
    (r"\bprogram_id\b|\bgrid\b|<<<", "another split of the work over blocks"),
    (r"\bload_inline\b|-O3|-march|-ffast-math|extra_c(uda_)?flags", "compiler settings"),
    (r"\b(data_ptr|ctypes|empty_like|torch\.empty|contiguous|view|stride)\b", "less overhead around the kernel"),
    (r"\b(exp|rsqrt|sqrt|log|tanh|erf)\w*\(", "cheaper elementwise arithmetic"),
    (r"\b(for|while)\b", "another order of loops"),
)  # fmt: skip


def technique(text: str) -> str:
    """The technique of a change: the first entry of the list that matches its lines, else "a change of code"."""
    for pattern, words in _TECHNIQUES:
        if re.search(pattern, text):
            return words
    return "a change of code"
