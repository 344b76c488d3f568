"""What a job starts from: a whole candidate, or a kernel alone that has to be wrapped or ported first."""

from __future__ import annotations

import ast
import re
from typing import Literal

Kind = Literal["candidate", "triton", "cuda", "c++", "python"]


def kind(source: str) -> Kind:
    """What a file is, by its text alone."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "cuda" if re.search(r"__global__|<<<|cuda_runtime|__device__", source) else "c++"
    if any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        return "candidate"
    return "triton" if re.search(r"\btriton\b", source) else "python"


def language(source: str) -> str:
    """In what a candidate's kernels are written, for a prompt: "Triton", "CUDA C++", "C++" or "PyTorch"."""
    if re.search(r"__global__|cuda_sources", source):
        return "CUDA C++"
    if re.search(r"@triton\.(jit|autotune)", source):
        return "Triton"
    if re.search(r"load_inline|cpp_sources|#include", source):
        return "C++"
    return "PyTorch"


def needs_port(source: str, device: str) -> bool:
    """Whether a file is written for the other kind of device."""
    written = language(source)
    return written in ("CUDA C++", "Triton") if device == "cpu" else written == "C++"
