"""Products of matrices at many shapes: how long, and at what power. Only our own code runs, so there is no sandbox here.

Shapes follow the study that showed how irregular products are (see `agent/performance/features.py`): base points uniform in
the logarithm of each size, each on an alignment tier of its own, and after a quarter of them their consecutive neighbors. On
a GPU calls are replayed from a CUDA graph: CUDA events around at least 5 ms of them tell the time, NVML's counter the energy.
"""

from __future__ import annotations

import bisect
import collections
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gemm_kernels import short

Dims = dict[str, int]
Call = Callable[[], object]

_TIERS = (1, 2, 4, 8, 16, 64, 128)
_NEIGHBORS = (-1, 1, 8)
_RUN_SHARE = 0.25
_ROUNDS, _ROUND_S = 5, 0.005
_MOST_CALLS = 2000
_SPLITS = 4
#: Where energy is measured, replays are shorter, so that a window's calls can be counted, and so many wait for the device: enough
#: that it never runs dry.
_SHORT_S, _QUEUED = 0.001, 8


@dataclass(frozen=True)
class Range:
    """Which shapes: sizes from ``low`` to ``high``, and a product of at most so many operations."""

    low: int
    high: int
    operations: float


RANGES = {"cuda": Range(16, 8192, 2.0**41), "cpu": Range(8, 512, 2.0**28)}


def shapes(count: int, within: Range, seed: int) -> list[Dims]:
    """So many different shapes in random order, neighbors included."""
    generator = random.Random(seed)
    found: dict[tuple[int, ...], Dims] = {}
    for sizes in _base_points(within, seed):
        run = [sizes]
        if generator.random() < _RUN_SHARE:
            moved = generator.randrange(3)
            run += [
                tuple(size + step * (index == moved) for index, size in enumerate(sizes))
                for step in _NEIGHBORS
            ]
        for m, n, k in run:
            if min(m, n, k) >= within.low and max(m, n, k) <= within.high:
                found.setdefault((m, n, k), {"M": m, "N": n, "K": k})
        if len(found) >= count:
            break
    chosen = list(found.values())[:count]
    generator.shuffle(chosen)
    return chosen


def _base_points(within: Range, seed: int) -> Iterator[tuple[int, ...]]:
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=seed)
    generator = random.Random(seed + 1)
    while True:
        for point in engine.draw(256).tolist():
            tier = generator.choice(_TIERS)
            sizes = tuple(
                min(
                    max(round(within.low * (within.high / within.low) ** share / tier) * tier, within.low),
                    within.high,
                )
                for share in point
            )
            if 2.0 * math.prod(sizes) <= within.operations:
                yield sizes


def members(dims: Dims, dtype: torch.dtype, device: str) -> dict[str, Call]:
    """The ways to compute the product at a shape that make sense there; ``mm`` is the baseline and always there.

    ``padded`` copies operands to multiples of 8 first, ``split_k`` adds up the products of four parts.
    """
    m, n, k = dims["M"], dims["N"], dims["K"]
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    found: dict[str, Call] = {"mm": lambda: torch.mm(a, b, out=out)}
    if k % 8 or n % 8:

        def padded() -> torch.Tensor:
            more_k, more_n = -k % 8, -n % 8
            return torch.mm(F.pad(a, (0, more_k)), F.pad(b, (0, more_n, 0, more_k)))[:, :n]

        found["padded"] = padded
    if k % (8 * _SPLITS) == 0 and k >= 2 * max(m, n):

        def split_k() -> torch.Tensor:
            parts = a.view(m, _SPLITS, -1).transpose(0, 1)
            return torch.bmm(parts, b.view(_SPLITS, -1, n)).sum(0)

        found["split_k"] = split_k
    return found


def kernels(asked: list[Dims], dtype: torch.dtype) -> list[list[str]]:
    """Which kernels the library runs for ``mm`` at each shape on the current GPU, by name, in order; nothing is timed."""
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as seen:
        for dims in asked:
            members(dims, dtype, "cuda")["mm"]()
            torch.cuda.synchronize()
    events = sorted(seen.events() or (), key=lambda event: event.time_range.start)
    begins = [event.time_range.start for event in events if event.name == "aten::mm"]
    if len(begins) != len(asked):
        return [[] for _ in asked]
    found: list[list[str]] = [[] for _ in asked]
    for event in events:
        place = bisect.bisect_right(begins, event.time_range.start) - 1
        # Between two products are the operands of the second, which PyTorch's own kernels draw.
        if place >= 0 and "CUDA" in str(event.device_type) and "at::native" not in event.name:
            found[place].append(short(event.name))
    return found


class Bench:
    """Times and keeps busy; :class:`CudaBench` is the same on a GPU."""

    device = "cpu"

    def time_us(self, call: Call) -> float:
        """Microseconds per call: the median of some rounds of at least 5 ms."""
        call()
        started = time.perf_counter()
        call()
        repeats = max(1, math.ceil(_ROUND_S / max(time.perf_counter() - started, 1e-7)))
        rounds = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            rounds.append((time.perf_counter() - started) / repeats)
        return statistics.median(rounds) * 1e6

    def step(self, call: Call) -> Callable[[], int]:
        """What keeps the device busy with these calls, for :mod:`evaluator.energy.windows`."""
        repeats = max(1, math.ceil(_ROUND_S * 1e6 / self.time_us(call)))

        def run() -> int:
            for _ in range(repeats):
                call()
            return repeats

        return run

    def rest(self) -> None:
        """Nothing runs any more, and memory is given back."""


class CudaBench(Bench):
    """On the current GPU, from CUDA graphs."""

    device = "cuda"

    def time_us(self, call: Call) -> float:
        """As above, between CUDA events."""
        graph, repeats = self._captured(call)
        rounds = []
        graph.replay()
        for _ in range(_ROUNDS):
            rounds.append(self._between_events(graph.replay) / repeats)
        return statistics.median(rounds) * 1e6

    def step(self, call: Call) -> Callable[[], int]:
        """Some replays always wait for the device; each step fills them up and counts those that ended."""
        graph, repeats = self._captured(call, _SHORT_S)
        waiting: collections.deque[torch.cuda.Event] = collections.deque()

        def run() -> int:
            ended = 0
            while waiting and waiting[0].query():
                waiting.popleft()
                ended += repeats
            while len(waiting) < _QUEUED:
                graph.replay()
                event = torch.cuda.Event()
                event.record()
                waiting.append(event)
            time.sleep(0.0003)
            return ended

        return run

    def rest(self) -> None:
        """Nothing runs any more, and memory is given back."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _captured(self, call: Call, lasts_s: float = _ROUND_S) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph of calls that takes at least so long, and how many they are."""
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        # Eager calls wait for the host, so that a first graph has to say how long the device takes.
        few = self._graph(call, 8)
        few.replay()
        each_s = min(self._between_events(few.replay) for _ in range(2)) / 8
        repeats = min(max(math.ceil(lasts_s / max(each_s, 1e-7)), 1), _MOST_CALLS)
        return self._graph(call, repeats), repeats

    @staticmethod
    def _graph(call: Call, repeats: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                call()
        return graph

    @staticmethod
    def _between_events(replay: Call) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def bench(device: str) -> Bench:
    """For ``cpu`` or ``cuda``."""
    return CudaBench() if device == "cuda" else Bench()


def machine(device: str) -> dict[str, Any]:
    """What the models need of it: ``units`` and ``cache_bytes``."""
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        return {
            "units": int(properties.multi_processor_count),
            "cache_bytes": int(properties.L2_cache_size),
            "name": properties.name,
        }
    from evaluator.devices.cpu import core_cache_bytes

    threads = torch.get_num_threads()
    return {"units": threads, "cache_bytes": core_cache_bytes() * threads, "name": "cpu"}
