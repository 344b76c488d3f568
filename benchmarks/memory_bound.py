"""What share of the rate of a copy families reach that are bound by memory, on one GPU.

    python -m benchmarks.memory_bound

Each family reads its inputs and writes its outputs at least once; those bytes over its time are its rate. A copy of 480 MiB (half of it read,
half written) runs in turns with it, both in CUDA graphs, as `benchmarks.float32_products` says; the share is of the copy's rate. What the compiler
writes in a module runs as `torch.compile` has it; the rest is the library's. All sizes are far beyond the second cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import typer

from agent.kernels.gpu import calls
from benchmarks.float32_products import in_turns
from benchmarks.shared import MEASUREMENTS, Out, Seconds, environment, gpu_name, write_new

#: Of the copy, half of it read. Copies of power-of-two sizes ran at two thirds of the rate.
COPIED_BYTES = 480 << 20
#: A family's call, and the bytes that it cannot avoid; made when it is its turn.
Made = tuple[Callable[[], Any], int]


def _x(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda")


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def _compiled(function: Callable[..., Any], *given: torch.Tensor) -> Made:
    run = torch.compile(function, dynamic=False)
    out = run(*given)
    return lambda: run(*given), _bytes(*given, *(out if isinstance(out, tuple) else (out,)))


def _called(function: Callable[..., Any], *given: Any, reads: tuple[torch.Tensor, ...] = ()) -> Made:
    out = function(*given)
    tensors = reads or tuple(one for one in given if isinstance(one, torch.Tensor))
    return lambda: function(*given), _bytes(*tensors, *(out if isinstance(out, tuple) else (out,)))


def _norm_of_channels() -> Made:
    weight, bias = _x(64), _x(64)
    return _compiled(lambda x: F.relu(F.group_norm(x, 8, weight, bias)), _x(32, 64, 256, 256))


def _segments() -> Made:
    index = torch.sort(torch.randint(0, 4096, (1 << 20,), device="cuda")).values
    return _called(calls.library_scatter, _x(4096, 64), index, _x(1 << 20, 64), "sum")


def _bags() -> Made:
    ids, offsets = (
        torch.randint(0, 1 << 20, (1 << 19,), device="cuda"),
        torch.arange(0, 1 << 19, 32, device="cuda"),
    )
    table = _x(1 << 20, 128)
    # Rows are read where ids say.
    reads = (ids, offsets, table[: 1 << 19])
    return _called(calls.library_bags, table, ids, offsets, None, False, False, reads=reads)


def _lists() -> Made:
    tensors = [_x(1 << 15) for _ in range(2048)]
    return lambda: calls.library_sums(tensors, False), _bytes(*tensors)


def _decoding() -> Made:
    q, k, v = _x(32, 16, 1, 128), _x(32, 16, 4096, 128), _x(32, 16, 4096, 128)
    return lambda: calls.library_decoding(q, [k], [v], None, None, None, True, None), _bytes(q, k, v, q)


FAMILIES: dict[str, Callable[[], Made]] = {
    "GELU with a bias": lambda: _compiled(lambda x, b: F.gelu(x + b), _x(8192, 8192), _x(8192)),
    "SwiGLU": lambda: _compiled(lambda x, y: F.silu(x) * y, _x(8192, 8192), _x(8192, 8192)),
    "RMSNorm of 4,096": lambda: _compiled(lambda x, w: F.rms_norm(x, (4096,), w), _x(16384, 4096), _x(4096)),
    "LayerNorm of 8,192 with residual": lambda: _compiled(lambda x, y: F.layer_norm(x + y, (8192,)), _x(8192, 8192), _x(8192, 8192)),
    "GroupNorm, ReLU": _norm_of_channels,
    "softmax of 4,096": lambda: _called(calls.library_softmax, _x(16384, 4096), False),
    "softmax of 393,216": lambda: _called(calls.library_softmax, _x(256, 393216), False),
    "sum of rows": lambda: _compiled(lambda x: x.sum(-1), _x(16384, 8192)),
    "sum of columns": lambda: _compiled(lambda x: x.sum(0), _x(65536, 2048)),
    "argmin over a middle axis": lambda: _compiled(lambda x: x.argmin(1), _x(128, 1024, 1024)),
    "running logsumexp": lambda: _called(calls.library_running_logsumexp, _x(8192, 8192)),
    "mean pool, 3x3x3, stride 2": lambda: _called(calls.library_mean_pool, _x(16, 32, 96, 96, 96), [3, 3, 3], [2, 2, 2], [1, 1, 1], False, 0),
    "maximum pool, 4x4": lambda: _called(calls.library_max_pool, _x(32, 64, 256, 256), [4, 4], [1, 1], [0, 0], [1, 1]),
    "depthwise convolution, 3x7": lambda: _called(
        lambda x, w: calls.library_convolution(x, w, [1, 1], [0, 0], [1, 1], False, [0, 0], 128), _x(32, 128, 128, 256), _x(128, 1, 3, 7)
    ),
    "sums of segments": _segments,
    "embedding bags of 32": _bags,
    "sums of 2,048 tensors": _lists,
    "the largest 8 of 32,768": lambda: _called(calls.library_top, _x(4096, 32768), 8, True, False),
    "attention of one query": _decoding,
    "products of 5 x 7 and 7 x 3": lambda: _called(
        lambda a, b: calls.library_bmm(a, b, out=a.new_empty(a.shape[0], 5, 3)), _x(1 << 21, 5, 7), _x(1 << 21, 7, 3)
    ),
    "einsum of chunks": lambda: _called(
        calls.library_contraction, "bclhn,bclhp->bchpn", _x(2048, 2, 64, 8, 16), _x(2048, 2, 64, 8, 64), None
    ),
}  # fmt: skip


def main(
    seconds: Seconds = 1e9,
    out: Out = MEASUREMENTS,
) -> None:
    """Compare, print a table, and write JSON."""
    gpu = gpu_name()
    torch.backends.cuda.matmul.allow_tf32 = False
    ends_at = time.monotonic() + seconds
    rows = []
    for name, make in FAMILIES.items():
        if time.monotonic() < ends_at:
            rows.append(compared(name, make))
            print(line(rows[-1]), flush=True)
            torch.cuda.empty_cache()
    if rows:
        print(
            f"median of {len(rows)}: {100 * statistics.median(row['share'] for row in rows):.0f} % of the copy"
        )
    write_new(out, "memory-bound-cuda", {"environment": environment() | {"gpu": gpu}, "rows": rows})


def compared(name: str, make: Callable[[], Made]) -> dict[str, Any]:
    """Times in ms of the family and of the copy, and the share that it reaches of the copy's rate, with its interval."""
    torch.manual_seed(0)
    call, size = make()
    source, target = torch.empty((2, COPIED_BYTES // 2), dtype=torch.uint8, device="cuda")
    sides = {"copy": lambda: target.copy_(source), "family": call}
    found = in_turns(sides, in_graph=True, least_calls=3)
    share, *interval = (one * size / COPIED_BYTES for one in (found["faster"], *found["interval"]))
    times = {"copy": found["copy"], "family": found["family"]}
    return {"name": name, "bytes": size, **times, "share": share, "interval": interval}


def line(row: dict[str, Any]) -> str:
    """Of the table."""
    low, high = row["interval"]
    rate = row["bytes"] / row["family"] / 1e9
    return (
        f"{row['name']:<36} {row['bytes'] / 2**20:>6.0f} MiB {row['copy']:>7.3f} ms {row['family']:>7.3f} ms {rate:>5.2f} TB/s  "
        f"{100 * row['share']:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
    )


if __name__ == "__main__":
    main.__doc__ = __doc__  # for --help
    typer.run(main)
