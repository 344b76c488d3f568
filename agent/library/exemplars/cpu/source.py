"""The C++ text of an exemplar, read from the files beside this one. Candidates carry it as a literal."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def cpp_source(file_name: str) -> str:
    """The text of a C++ file with `simd.h` in front."""
    return "".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("simd.h", file_name))
