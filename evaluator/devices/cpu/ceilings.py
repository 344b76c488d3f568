"""What a CPU reaches at best: memory, caches, vector arithmetic, matrix units, and what an operation of torch costs.

Library calls alone: a copy in torch streams memory at its speed, and a large product keeps the vector or matrix units busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evaluator.devices.sizes import Tried

_ROUNDS = 5
_LEAST_S = 0.02
_MIB = 1 << 20
_PRODUCT_SIZES = (512, 1024, 2048)
_LONGEST_S = 0.2


def best_s(call: Callable[[], object], least_s: float = _LEAST_S, rounds: int = _ROUNDS) -> float:
    """Seconds that a call takes in the best of several rounds, each long enough for the clock."""
    call()
    started = time.perf_counter()
    call()
    count = max(1, round(least_s / max(time.perf_counter() - started, 1e-7)))
    rates = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            call()
        rates.append((time.perf_counter() - started) / count)
    return min(rates)


def cache_bytes() -> dict[str, int]:
    """Sizes of one core's data caches by level; a level that all share counts whole."""
    sizes: dict[str, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = (folder / "level").read_text().strip()
            text = (folder / "size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction" and text.endswith("K"):
            sizes[f"L{level}"] = int(text[:-1]) << 10
    return sizes


def measure() -> dict[str, Any]:
    """All ceilings of this CPU with all of torch's threads, by name (``rates``), and the sizes ``tried``.

    See :mod:`evaluator.profiling.ceilings`.
    """
    caches = cache_bytes()
    last = max(caches.values(), default=32 * _MIB)
    tried = Tried()
    least = max(4 * last, 128 * _MIB)
    memory = [least, *(size for size in (2 * least, 4 * least) if size <= 1024 * _MIB)]
    found: dict[str, Any] = {"dram_bytes_per_s": tried.best("dram_bytes_per_s", memory, _copy_rate)}
    for level, size in caches.items():
        # An operation of torch costs more than it takes to copy a first-level cache.
        if level != "L1":
            found[f"{level.lower()}_bytes_per_s"] = _on_each_core(partial(_copy_rate, size // 2))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        name = f"{str(dtype).removeprefix('torch.')}_flops_per_s"
        found[name] = tried.best(name, _PRODUCT_SIZES, partial(_product_rate, dtype), _LONGEST_S)
    values = torch.randn(32768)
    out = torch.empty_like(values)
    found["exp_per_s"] = _on_each_core(lambda: values.numel() / best_s(lambda: torch.exp(values, out=out)))
    one = torch.ones(1)
    found["operation_s"] = best_s(lambda: one + one)
    found["cache_bytes"] = last
    found["threads"] = torch.get_num_threads()
    found["vector"] = torch.backends.cpu.get_cpu_capability()
    found["matrix_units"] = "amx" if _flag("amx_bf16") else "avx512_bf16" if _flag("avx512_bf16") else "none"
    return {"rates": found, "tried": tried.as_json}


def _on_each_core(rate: Callable[[], float]) -> float:
    """A rate of one thread, times the threads: so short a call would measure how threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return threads * rate()
    finally:
        torch.set_num_threads(threads)


def _copy_rate(total_bytes: int) -> float:
    """Bytes read and written per second by a copy whose source and target take ``total_bytes`` together."""
    source = torch.ones(total_bytes // 8)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_s(lambda: target.copy_(source))


def _product_rate(dtype: torch.dtype, size: int) -> float | None:
    """Operations per second of a product of square matrices; None where it is not supported."""
    try:
        a = torch.randn(size, size).to(dtype)
        started = time.perf_counter()
        a @ a
        slow = time.perf_counter() - started > 0.5
        return 2 * size**3 / best_s(lambda: a @ a, 0.05, 1 if slow else 3)
    except RuntimeError:
        return None


def _flag(name: str) -> bool:
    try:
        return name in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("processor", 2)[1].split()
    except (OSError, IndexError):
        return False
