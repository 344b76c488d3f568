"""Own Triton variants of three operations: other tiles, other numbers of warps, rows in one piece or in a loop.

Every variant and every baseline is replayed as a CUDA graph of twenty calls, so that kernels are compared and not their launches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from benchmarks.dispatch_variants import Call, Operation, Variant, matmul, rmsnorm, softmax


@triton.jit
def norm_whole(x, w, y, rows, cols, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803
    """Some rows a program, each in one piece."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (col < cols)
    value = tl.load(x + row * cols + col, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, 1) / cols + eps)
    weight = tl.load(w + col, mask=col < cols, other=0.0)
    tl.store(y + row * cols + col, value * scale[:, None] * weight, mask=mask)


@triton.jit
def norm_loop(x, w, y, cols, eps, BLOCK: tl.constexpr):  # noqa: N803
    """A row a program, read twice in pieces."""
    start = tl.program_id(0).to(tl.int64) * cols
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, cols, BLOCK):
        col = begin + tl.arange(0, BLOCK)
        value = tl.load(x + start + col, mask=col < cols, other=0.0)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) / cols + eps)
    for begin in range(0, cols, BLOCK):
        col = begin + tl.arange(0, BLOCK)
        value = tl.load(x + start + col, mask=col < cols, other=0.0)
        weight = tl.load(w + col, mask=col < cols, other=0.0)
        tl.store(y + start + col, value * scale * weight, mask=col < cols)


@triton.jit
def soft_whole(x, y, rows, cols, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803
    """Some rows a program, each in one piece."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (col < cols)
    value = tl.load(x + row * cols + col, mask=mask, other=-float("inf"))
    # Rows beyond the last one hold nothing; a zero keeps their exponentials defined.
    value = tl.where(row < rows, value, 0.0)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    tl.store(y + row * cols + col, power / tl.sum(power, 1)[:, None], mask=mask)


@triton.jit
def product(
    a, b, bias, y, rows, inner, outer,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """A tile of relu(a @ b + bias) a program."""
    m = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    total = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, inner, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        left = tl.load(
            a + m[:, None] * inner + k[None, :], mask=(m[:, None] < rows) & (k[None, :] < inner), other=0.0
        )
        right = tl.load(
            b + k[:, None] * outer + n[None, :], mask=(k[:, None] < inner) & (n[None, :] < outer), other=0.0
        )
        total += tl.dot(left, right)
    total += tl.load(bias + n, mask=n < outer, other=0.0).to(tl.float32)[None, :]
    total = tl.maximum(total, 0.0)
    mask = (m[:, None] < rows) & (n[None, :] < outer)
    tl.store(y + m[:, None] * outer + n[None, :], total.to(y.dtype.element_ty), mask=mask)


_INSIDE = 20


def replayed(call: Call) -> Call:
    """A graph for the input tensors at hand, until others come; what it returns is overwritten by its next replay."""
    graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def replay(*inputs: torch.Tensor) -> torch.Tensor:
        key = tuple(value for tensor in inputs for value in (tensor.data_ptr(), *tensor.shape))
        if key not in graphs:
            torch.cuda.synchronize()
            graphs.clear()
            # By hand: torch.cuda.graph collects garbage first, which takes longer than all replays. What is collected during
            # a capture is a graph of an earlier shape, whose memory would stay taken for good.
            side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            gc.disable()
            try:
                with torch.cuda.stream(side):
                    for _ in range(2):
                        call(*inputs)
                    side.synchronize()
                    graph.capture_begin()
                    for _ in range(_INSIDE):
                        result = call(*inputs)
                    graph.capture_end()
            finally:
                gc.enable()
            graphs[key] = graph, result
        graph, result = graphs[key]
        graph.replay()
        return result

    return replay


def _fitting(block: int, rows: int, warps: int) -> tuple[int, int]:
    """Rows and warps with at most 64 values a thread: more would live in memory, and take minutes to compile."""
    rows = max(1, min(rows, 4096 // block))
    return rows, min(max(warps, block * rows // 2048), 32)


def _norm_whole(warps: int, rows: int) -> Call:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
        each, many = _fitting(block, rows, warps)
        norm_whole[(triton.cdiv(x.shape[0], each),)](
            x, w, y, x.shape[0], x.shape[1], 1e-6, BLOCK=block, ROWS=each, num_warps=many
        )
        return y

    return call


def _norm_loop(warps: int, block: int) -> Call:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        norm_loop[(x.shape[0],)](x, w, y, x.shape[1], 1e-6, BLOCK=block, num_warps=warps)
        return y

    return call


def _soft_whole(warps: int, rows: int) -> Call:
    def call(x: torch.Tensor) -> torch.Tensor:
        y, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
        each, many = _fitting(block, rows, warps)
        soft_whole[(triton.cdiv(x.shape[0], each),)](
            x, y, x.shape[0], x.shape[1], BLOCK=block, ROWS=each, num_warps=many
        )
        return y

    return call


def _product(m: int, n: int, k: int, warps: int, stages: int) -> Call:
    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0], w.shape[1])
        grid = (triton.cdiv(x.shape[0], m), triton.cdiv(w.shape[1], n))
        product[grid](
            x, w, b, y, x.shape[0], x.shape[1], w.shape[1],
            TILE_M=m, TILE_N=n, TILE_K=k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return y

    return call


def _graphs(reference: Call, own: dict[str, Call]) -> Callable[[], list[Variant]]:
    def variants() -> list[Variant]:
        found = [
            Variant("eager", replayed(reference), baseline=True, reference=True),
            Variant("compile dynamic", replayed(torch.compile(reference, dynamic=True)), baseline=True),
        ]
        return found + [Variant(name, replayed(call)) for name, call in own.items()]

    return variants


_NORMS = {
    f"whole, {warps} warps, {rows} rows": _norm_whole(warps, rows)
    for warps, rows in ((1, 1), (4, 1), (8, 1), (16, 1), (4, 8))
}
_NORMS |= {
    f"loop of {block}, {warps} warps": _norm_loop(warps, block) for block, warps in ((1024, 4), (4096, 8))
}
_SOFTS = {
    f"whole, {warps} warps, {rows} rows": _soft_whole(warps, rows)
    for warps, rows in ((1, 1), (4, 1), (8, 1), (16, 1), (4, 8))
}
_TILES = (
    (16, 64, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 128, 64, 4, 3),
    (128, 64, 64, 4, 3),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
)
_PRODUCTS: dict[str, Call] = {
    f"tiles of {m} x {n}": _product(m, n, k, warps, stages) for m, n, k, warps, stages in _TILES
}
_PRODUCTS["addmm"] = lambda x, w, b: torch.addmm(b, x, w).relu_()

CUDA = (
    Operation(
        "rmsnorm",
        {"rows": (1, 65536), "cols": (8, 8192)},
        [("rows", "cols"), ("cols",)],
        _graphs(rmsnorm, _NORMS),
        64 << 20,
        inside=_INSIDE,
    ),
    Operation(
        "softmax",
        {"rows": (1, 65536), "cols": (8, 8192)},
        [("rows", "cols")],
        _graphs(softmax, _SOFTS),
        64 << 20,
        inside=_INSIDE,
    ),
    Operation(
        "matmul_bias_relu",
        {"rows": (1, 8192), "inner": (64, 8192), "outer": (64, 8192)},
        [("rows", "inner"), ("inner", "outer"), ("outer",)],
        _graphs(matmul, _PRODUCTS),
        64 << 20,
        torch.bfloat16,
        _INSIDE,
    ),
)
