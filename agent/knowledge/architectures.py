"""Names of the architectures that notes and memory speak of, and how a device's is found."""

from __future__ import annotations

import re
from pathlib import Path

ARCHITECTURES = ("cpu-avx2", "cpu-avx512", "cpu-amx", "ampere", "ada", "hopper", "blackwell")

# Names as NVML gives them. Order matters: "RTX 6000 Ada" is no "A6000", and "RTX PRO 6000 Blackwell" neither.
_GPU_NAMES = (
    ("blackwell", r"\bG?B[123]00\b|Blackwell|RTX 50\d\d|\bGB10\b"),
    ("hopper", r"\bG?H(100|200|800|20)\b"),
    ("ada", r"\bL(4|20|40S?)\b|\bAda\b|RTX 40\d\d"),
    ("ampere", r"\bA(100|800|10|10G|16|2|30|40)\b|RTX A\d{4}|RTX 30\d\d"),
)


def architecture_of_gpu(name: str) -> str:
    """Of a GPU by its name, for example "NVIDIA H200"; "" where the name is not known."""
    return next((arch for arch, form in _GPU_NAMES if re.search(form, name)), "")


def architecture_of_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Of this machine's CPU by its flags; "" where it has not even AVX2, or is no x86."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    if {"amx_tile", "amx_bf16"} <= flags:
        return "cpu-amx"
    if {"avx512f", "avx512bw", "avx512vl"} <= flags:
        return "cpu-avx512"
    return "cpu-avx2" if {"avx2", "fma"} <= flags else ""
