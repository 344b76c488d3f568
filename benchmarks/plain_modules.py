"""KernelBench modules run plainly, in a process of their own: how much memory a call takes, and how long it takes.

    python -m benchmarks.plain_modules fits cuda FILE...               a JSON line for each module
    python -m benchmarks.plain_modules times cuda FILE [CANDIDATE]     one JSON line

:mod:`benchmarks.real_modules` starts it. Nothing confines what runs here, so it is for modules and candidates of one's own choosing.
Everything is as a user has it: PyTorch's default precision, eval mode, no gradients, inputs on the device.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.shared import module_from

_SHARE = 0.5
_CPU_SECONDS = 0.5


def opened(path: Path, device: str) -> tuple[Any, list[Any]]:
    """A module of KernelBench and its inputs, on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        file = module_from(path.read_text(encoding="utf-8"), "reference")
        model = file.Model(*file.get_init_inputs()).to(device).eval()
        inputs = file.get_inputs()
    return model, tree_map(
        lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, inputs
    )


def fits(path: Path, device: str) -> dict[str, Any]:
    """Whether one eager call, with its inputs and weights, takes at most half of the device's memory."""
    gpu = device == "cuda"
    found: dict[str, Any] = {"path": str(path), "fits": False, "error": ""}
    total = torch.cuda.mem_get_info()[1] if gpu else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        model, inputs = opened(path, device)
        model(*inputs)
        if gpu:
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever a module raises is its row
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    # A CPU's peak is that of the process, the libraries that it imported included.
    found["peak_bytes"] = (
        torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    )
    found["device_bytes"] = total
    found["fits"] = not found["error"] and found["peak_bytes"] <= _SHARE * total
    return found


def times(path: Path, candidate: Path | None, device: str) -> dict[str, Any]:
    """Milliseconds a call of the reference, eager and compiled, and of a candidate; what fails says why."""
    model, inputs = opened(path, device)
    found: dict[str, Any] = {"path": str(path), "ms": {}, "errors": {}}
    calls: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: model,
        "compile_default": lambda: torch.compile(model, dynamic=False),
    }
    if candidate is not None:
        calls["candidate"] = lambda: _candidate(candidate, path, model, device)
    for name, make in calls.items():
        try:
            call = make()
            if name == "candidate":
                found["max_abs_difference"] = _difference(call(*inputs), model(*inputs))
            found["ms"][name] = _milliseconds(partial(call, *inputs), device)
        except Exception as error:  # noqa: BLE001 - the others are timed all the same
            found["errors"][name] = f"{type(error).__name__}: {error}"[:500]
    return found


def _candidate(path: Path, reference: Path, model: torch.nn.Module, device: str) -> torch.nn.Module:
    """The candidate with the reference's weights."""
    made_by = module_from(reference.read_text(encoding="utf-8"), "arguments")
    kernel = module_from(path.read_text(encoding="utf-8"), "candidate").ModelNew
    if hasattr(kernel, "from_reference"):
        return kernel.from_reference(model).to(device).eval()
    new = kernel(*made_by.get_init_inputs()).to(device).eval()
    new.load_state_dict(model.state_dict())
    return new


def _difference(left: Any, right: Any) -> float:
    pairs = zip(tree_leaves(left), tree_leaves(right), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def _milliseconds(call: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(call, warmup=100, rep=500, return_mode="median"))
    seen: list[float] = []
    call()
    ends_at = time.perf_counter() + _CPU_SECONDS
    while time.perf_counter() < ends_at or len(seen) < 3:
        start = time.perf_counter()
        call()
        seen.append(1e3 * (time.perf_counter() - start))
    return statistics.median(seen)


def main(arguments: list[str]) -> None:
    """See the module."""
    what, device, *files = arguments
    with torch.no_grad():
        if what == "times":
            print(
                json.dumps(times(Path(files[0]), Path(files[1]) if files[1:] else None, device)), flush=True
            )
            return
        for file in files:
            print(json.dumps(fits(Path(file), device)), flush=True)
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
