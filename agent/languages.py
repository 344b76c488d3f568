"""Languages of a candidate's kernels, as the search knows them. docs/extending.md says how to add one."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Literal

#: What prompts and lessons call a device.
DEVICES = {"cpu": "a CPU", "cuda": "an NVIDIA GPU"}
StartKind = Literal["candidate", "triton", "cuda", "c++", "python"]


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        name: shown in prompts and on pages.
        key: used in the front matter of notes.
        pattern: regular expression that matches every candidate in this language.
        devices: where it runs: names of `evaluator.devices.BACKENDS`.
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


def device_words(device: str, name: str = "") -> str:
    """What prompts call a device: "an NVIDIA H200" where its name is known, else as `DEVICES`."""
    return f"an {name}" if name.startswith("NVIDIA ") else DEVICES.get(device, device)


def language_of(source: str) -> Language | None:
    """The language of a candidate's kernels; None if it uses only PyTorch operations."""
    return next((one for one in LANGUAGES if re.search(one.pattern, source)), None)


def kind_of_start(source: str) -> StartKind:
    """What a job starts from, by its text: a complete candidate, or a kernel that must be wrapped or ported first."""
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
