"""What a GPU reaches at best: memory, caches, tensor cores by dtype, launches, and what waiting for it costs.

Library calls wherever they reach the ceiling. Shared memory and plain multiply-adds have none, so two small kernels measure
those; torch compiles them with NVRTC. What a GPU or a version of torch lacks is None.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import torch

from evaluator.devices.sizes import Tried

_MIB = 1 << 20
_REPLAYED = 20
_ROUNDS = 7
_LOOPS = 4096
_THREADS = 1024
_CHAINS = 8
#: The library picks another kernel for each size, and the largest runs into the power limit.
_PRODUCT_SIZES = (2048, 4096, 8192, 16384)
#: Of a product in one of those sizes. Each takes about seventy: double precision is slow on most cards.
_LONGEST_S = 0.03
_KERNELS = {
    # 16 bytes per thread and step, consecutive threads beside each other: no bank is asked twice.
    "read_shared": r"""
extern "C" __global__ void read_shared(float* out, int loops) {
    __shared__ float4 line[1024];
    line[threadIdx.x] = make_float4(threadIdx.x, 1.0f, 2.0f, 3.0f);
    __syncthreads();
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    int at = threadIdx.x;
    #pragma unroll 8
    for (int i = 0; i < loops; i++) {
        float4 v = line[at];
        a += v.x; b += v.y; c += v.z; d += v.w;
        at = (at + 32) & 1023;
    }
    if (a + b + c + d == -1.0f) out[0] = a;
}
""",
    # Eight chains hide the four cycles of a multiply-add.
    "multiply_add": r"""
extern "C" __global__ void multiply_add(float* out, int loops) {
    float x[8], factor = 1.0f - 1e-7f * loops, term = 1e-3f * threadIdx.x;
    #pragma unroll
    for (int j = 0; j < 8; j++) x[j] = j + term;
    #pragma unroll 4
    for (int i = 0; i < loops; i++) {
        #pragma unroll
        for (int j = 0; j < 8; j++) x[j] = fmaf(x[j], factor, term);
    }
    float sum = 0.0f;
    #pragma unroll
    for (int j = 0; j < 8; j++) sum += x[j];
    if (sum == -1.0f) out[0] = sum;
}
""",
    # torch's own exponential of a tensor is bound by the cache before it is by arithmetic.
    "exponential": r"""
extern "C" __global__ void exponential(float* out, int loops) {
    float x[8];
    #pragma unroll
    for (int j = 0; j < 8; j++) x[j] = 0.125f * j + 1e-3f * threadIdx.x;
    #pragma unroll 4
    for (int i = 0; i < loops; i++) {
        #pragma unroll
        for (int j = 0; j < 8; j++) x[j] = expf(-x[j]);
    }
    float sum = 0.0f;
    #pragma unroll
    for (int j = 0; j < 8; j++) sum += x[j];
    if (sum == -1.0f) out[0] = sum;
}
""",
}


def device_s(call: Callable[[], object], rounds: int = _ROUNDS, repeats: int = _REPLAYED) -> float:
    """Seconds on the device of a call, in the best of several rounds.

    Calls are replayed from a CUDA graph, so that launching them costs nothing; where they cannot be captured, events
    stand around them.
    """
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    replay = _graph(call, repeats)
    if replay is None:
        replay = lambda: [call() for _ in range(repeats)]  # noqa: E731
    replay()
    rates = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        rates.append(float(begin.elapsed_time(end)) / 1e3 / repeats)
    return min(rates)


def _graph(call: Callable[[], object], repeats: int) -> Callable[[], object] | None:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def _host_s(call: Callable[[], object], count: int) -> float:
    """Seconds of the host per call, in the best of several rounds that each begin with an idle device."""
    rates = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(count):
            call()
        rates.append((time.perf_counter() - started) / count)
    torch.cuda.synchronize()
    return min(rates)


def measure() -> dict[str, Any]:
    """All ceilings of the current GPU by name (``rates``), and the sizes ``tried``; see :mod:`evaluator.profiling.ceilings`."""
    properties = torch.cuda.get_device_properties(0)
    cache = int(properties.L2_cache_size)
    tried = Tried()
    with torch.no_grad():
        memory = _memory_sizes(cache, torch.cuda.mem_get_info()[0])
        found: dict[str, Any] = {
            "dram_bytes_per_s": tried.best("dram_bytes_per_s", memory, lambda size: _copy_rate(size, 5)),
            "dram_read_bytes_per_s": tried.best("dram_read_bytes_per_s", memory, _read_rate),
            # Half of the cache: of all of it, a part lies on the far side.
            "l2_bytes_per_s": _update_rate(cache // 2),
            "shared_bytes_per_s": _own(
                "read_shared", 16.0 * _LOOPS * _THREADS, properties.multi_processor_count
            ),
            "vector_flops_per_s": _own(
                "multiply_add", 2.0 * _CHAINS * _LOOPS * _THREADS, properties.multi_processor_count
            ),
        }
        found.update(_products(tried))
        exponentials = _own(
            "exponential", 1.0 * _CHAINS * _LOOPS * _THREADS, properties.multi_processor_count
        )
        found["exp_per_s"] = exponentials or _library_exponentials(cache // 16)
        found.update(_launches())
        found.update(_transfers())
    found["cache_bytes"] = cache
    found["multiprocessors"] = properties.multi_processor_count
    return {"rates": found, "tried": tried.as_json}


def _memory_sizes(cache_bytes: int, free_bytes: int) -> list[int]:
    """Bytes of a copy, smallest first: sixteen times the cache at least, since what stays in it never saw memory."""
    largest = max(16 * cache_bytes, min(4096 * _MIB, free_bytes // 4))
    return [size for size in (largest // 4, largest // 2) if size >= 16 * cache_bytes] + [largest]


def _copy_rate(total_bytes: int, repeats: int) -> float:
    """Bytes read and written per second by a copy whose source and target take ``total_bytes`` together.

    The best of a copy, which a graph gives to a copy engine, and of a kernel that writes what it reads: on an H200 the engine
    reaches two thirds of the kernel.
    """
    source = torch.ones(total_bytes // 8, device="cuda")
    target = torch.empty_like(source)
    ways: tuple[Callable[[], object], ...] = (
        lambda: target.copy_(source),
        lambda: torch.neg(source, out=target),
    )
    return 2 * source.nbytes / min(device_s(way, repeats=repeats) for way in ways)


def _read_rate(total_bytes: int) -> float:
    source = torch.ones(total_bytes // 4, device="cuda")
    return source.nbytes / device_s(lambda: source.sum(), repeats=5)


def _update_rate(total_bytes: int) -> float:
    """Bytes read and written per second by an update in place."""
    values = torch.zeros(total_bytes // 4, device="cuda")
    return 2 * values.nbytes / device_s(lambda: values.add_(1.0), repeats=200)


def _library_exponentials(count: int) -> float:
    values = torch.randn(count, device="cuda")
    out = torch.empty_like(values)
    return count / device_s(lambda: torch.exp(values, out=out))


def _own(name: str, each_block: float, multiprocessors: int) -> float | None:
    """What one of the kernels above does per second, two blocks on each multiprocessor (2048 threads fill it)."""
    try:
        kernel = cast(Any, torch.cuda)._compile_kernel(_KERNELS[name], name)
        out, blocks = torch.zeros(1, device="cuda"), 2 * multiprocessors

        def call() -> None:
            kernel(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), args=[out, _LOOPS])

        call()
        torch.cuda.synchronize()
        # Long kernels: launching them takes no time worth a graph.
        rates = []
        for _ in range(_ROUNDS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(_REPLAYED):
                call()
            end.record()
            end.synchronize()
            rates.append(float(begin.elapsed_time(end)) / 1e3 / _REPLAYED)
        return each_block * blocks / min(rates)
    except (RuntimeError, AttributeError, OSError):
        return None


def _products(tried: Tried) -> dict[str, float | None]:
    """Operations per second of large products, the best over a few sizes, by dtype; one is TF32."""

    def best(name: str, make: Callable[[int], Callable[[], object]]) -> float | None:
        return tried.best(name, _PRODUCT_SIZES, lambda size: _product_rate(make, size), _LONGEST_S)

    before = torch.get_float32_matmul_precision()
    found: dict[str, float | None] = {}
    try:
        for name, precision in (("float32_flops_per_s", "highest"), ("tf32_flops_per_s", "high")):
            torch.set_float32_matmul_precision(precision)
            found[name] = best(name, lambda size: _plain(size, torch.float32))
    finally:
        torch.set_float32_matmul_precision(before)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        name = f"{str(dtype).removeprefix('torch.')}_flops_per_s"
        found[name] = best(name, lambda size, dtype=dtype: _plain(size, dtype))  # type: ignore[misc]
    found["float8_flops_per_s"] = best("float8_flops_per_s", _float8)
    found["int8_flops_per_s"] = best("int8_flops_per_s", _int8)
    return found


def _product_rate(make: Callable[[int], Callable[[], object]], size: int) -> float | None:
    try:
        return 2 * size**3 / device_s(make(size), rounds=5, repeats=10)
    except (RuntimeError, AttributeError, NotImplementedError, ValueError):
        return None


def _plain(size: int, dtype: torch.dtype) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _float8(size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device="cuda")
    # The second operand must be column-major.
    return lambda: cast(Any, torch)._scaled_mm(
        a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _int8(size: int) -> Callable[[], object]:
    a, b = (torch.randint(-8, 8, (size, size), device="cuda", dtype=torch.int8) for _ in range(2))
    return lambda: cast(Any, torch)._int_mm(a, b.t())


def _launches() -> dict[str, float]:
    one = torch.ones(1, device="cuda")

    def call() -> None:
        one.add_(1.0)

    def wait() -> None:
        call()
        torch.cuda.synchronize()

    # The queue of launches holds about a thousand: with fewer, the host never waits for the device.
    eager_s = _host_s(call, 500)
    return {
        "operation_s": eager_s,
        "graph_node_s": device_s(call, repeats=1000),
        "synchronize_s": _host_s(wait, 50),
        "item_s": _host_s(one.item, 50),
    }


def _transfers() -> dict[str, float]:
    device = torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda")
    pageable = torch.empty(64 * _MIB, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    found = {}
    for name, host in (("pinned", pinned), ("pageable", pageable)):
        for way, target, source in (("to_device", device, host), ("to_host", host, device)):

            def copy(target: torch.Tensor = target, source: torch.Tensor = source) -> None:
                target.copy_(source)
                torch.cuda.synchronize()

            copy()
            found[f"{way}_{name}_bytes_per_s"] = device.nbytes / _host_s(copy, 4)
    return found
