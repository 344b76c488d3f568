"""Classifies a job's starting file: a complete candidate, or a bare kernel that must be wrapped or ported first."""

from __future__ import annotations

import ast
import re
from typing import Literal

from agent.languages import language_of

Kind = Literal["candidate", "triton", "cuda", "c++", "python"]


def kind(source: str) -> Kind:
    """The kind of a file, from its text alone."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "cuda" if re.search(r"__global__|<<<|cuda_runtime|__device__", source) else "c++"
    if any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        return "candidate"
    return "triton" if re.search(r"\btriton\b", source) else "python"


def needs_port(source: str, device: str) -> bool:
    """Whether a file's language runs only on another kind of device."""
    written = language_of(source)
    return written is not None and device not in written.devices
