"""Interventions on a call, each of which tells one cause apart; runs beside the untrusted module.

Times are the process's own and describe; no score ever rests on them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from evaluator.devices import is_accelerator
from evaluator.devices.accelerator import GPU_TYPE, torch_gpu

_LEAST_S, _MOST_CALLS, _ROUNDS = 0.03, 200, 5
_COLD_CALLS = 7
_WARM_CALLS = 3
Call = Callable[[], Any]


def steady_s(call: Call, device: str) -> float:
    """Seconds per call in the quickest of several streams of calls, the device idle before and after each.

    Whatever else runs on the machine only ever adds to a time.
    """
    wait = torch_gpu.synchronize if is_accelerator(device) else _nothing
    for _ in range(_WARM_CALLS):
        call()
    wait()
    started = time.perf_counter()
    call()
    wait()
    count = max(1, min(_MOST_CALLS, round(_LEAST_S / max(time.perf_counter() - started, 1e-7))))
    rates = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        rates.append((time.perf_counter() - started) / count)
    return min(rates)


def _nothing() -> None:
    """A CPU has done what it was asked to."""


def capture(call: Call) -> tuple[Call | None, str]:
    """A CUDA graph's replay of the call, or why there is none."""
    side = torch_gpu.Stream()
    side.wait_stream(torch_gpu.current_stream())
    with torch_gpu.stream(side):
        for _ in range(_WARM_CALLS):
            call()
    torch_gpu.current_stream().wait_stream(side)
    graph = torch_gpu.CUDAGraph()
    try:
        with torch_gpu.graph(graph):
            call()
    except Exception as error:  # noqa: BLE001 - whatever the module does under capture
        torch_gpu.synchronize()
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
    torch_gpu.synchronize()
    return graph.replay, ""


def cold_and_warm_s(call: Call, device: str, flush_bytes: int) -> tuple[float, float]:
    """Seconds of a call right after the caches were filled with something else, and right after the same call.

    On a GPU the call is a graph's replay: launches would fill the time between the events.
    """
    flush = torch.ones(flush_bytes // 4, device=device)
    cold: list[float] = []
    warm: list[float] = []
    for number in range(2 * _COLD_CALLS + 1):
        if number % 2:
            flush.add_(1.0)
        else:
            call()
        (cold if number % 2 else warm).append(_once_s(call, device))
    return statistics.median(cold), statistics.median(warm[1:])


def _once_s(call: Call, device: str) -> float:
    if not is_accelerator(device):
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = torch_gpu.Event(enable_timing=True), torch_gpu.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def kernels(call: Call, device: str) -> list[tuple[str, float, int]]:
    """Kernels of one call on a GPU (operations on a CPU) as the profiler sees them: name, seconds, calls; longest first."""
    from torch.autograd import profiler

    cuda = is_accelerator(device)
    with profiler.profile(use_device=GPU_TYPE if cuda else None, use_kineto=True) as seen:
        call()
        if cuda:
            torch_gpu.synchronize()
    rows = []
    for event in seen.key_averages():
        on_device = "CUDA" in str(event.device_type)
        time_us = event.self_device_time_total if on_device else event.self_cpu_time_total
        if on_device == cuda and (cuda or "::" in event.key):
            rows.append((str(event.key), float(time_us) / 1e6, int(event.count)))
    return sorted(rows, key=lambda row: -row[1])
