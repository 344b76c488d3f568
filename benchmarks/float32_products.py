"""The library's float32 products against cuBLAS on one GPU: time, error against float64, and random sizes.

    python -m benchmarks.float32_products
    python -m benchmarks.float32_products --random 0

Both are called from Python as generated code calls them, in turns in the same run, `ROUNDS` times each; a ratio is the median of the
rounds', with the interval that holds the median in 95 of 100 runs (ranks 4 and 12 of 15). The second operand lies in memory as a linear
layer's weight does.

At random sizes (32 to 8192 in each dimension, evenly by their logarithm; a third of them not multiples of 16) the library chooses
for itself, as it does in a module: for what it leaves to cuBLAS it adds a look at the sizes, about 1 us of the host's time. So both
are timed there twice: called from Python, and recorded in CUDA graphs, where only the GPU's time counts. Of so many sizes some look
slower by chance; counted are those that were slower in each of the rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
import typer

from agent.kernels.gpu.calls import library_mm
from agent.kernels.gpu.products import product_pays
from benchmarks.shared import MEASUREMENTS, Out, Seconds, environment, gpu_name, write_new

ROUNDS = 15
#: Rows, columns, terms.
SIZES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (1024, 8192, 8192), (2048, 2048, 2048), (4096, 4096, 1024), (128, 32768, 32768),
    (32, 16384, 16384), (1024, 1024, 65536), (256, 256, 524288), (32768, 16384, 64),
)  # fmt: skip
#: Rows whose errors are computed: float64 products are slow.
CHECKED_ROWS = 256


def main(
    random_sizes: Annotated[int, typer.Option("--random", help="Random sizes.")] = 200,
    seconds: Seconds = 1e9,
    out: Out = MEASUREMENTS,
) -> None:
    """Compare, print a table, and write JSON."""
    gpu = gpu_name()
    torch.backends.cuda.matmul.allow_tf32 = False
    ends_at = time.monotonic() + seconds
    rows = []
    print(
        f"{'m':>6} {'n':>6} {'k':>6}  {'cuBLAS':>9} {'library':>9} {'TFLOP/s':>8}  faster, 95 %         error of cuBLAS, library; positive"
    )
    for m, n, k in SIZES:
        rows.append(compared(m, n, k, errors=True))
        print(line(rows[-1]), flush=True)
    draw = random.Random(3)
    drawn = []
    for place in range(random_sizes):
        sizes = [round(2 ** draw.uniform(5, 13)) for _ in range(3)]
        m, n, k = sizes if place % 3 == 0 else [max(16, size // 16 * 16) for size in sizes]
        if time.monotonic() < ends_at:
            drawn.append(compared(m, n, k) | {"in_graph": compared(m, n, k, in_graph=True)})
    print_random("called from Python", drawn)
    print_random("in a CUDA graph", [row["in_graph"] for row in drawn])
    report = {"environment": environment() | {"gpu": gpu}, "sizes": rows, "random": drawn}
    write_new(out, "float32-products-cuda", report)


def print_random(how: str, rows: list[dict[str, Any]]) -> None:
    """A sentence about the random sizes, and the five at which the library does worst."""
    if not rows:
        return
    mean = statistics.geometric_mean(row["faster"] for row in rows)
    ours, slower = sum(row["ours"] for row in rows), sum(row["slower"] for row in rows)
    print(
        f"{len(rows)} random sizes {how}: {mean:.2f}x together; {ours} by the library's kernels; {slower} slower in each round"
    )
    for row in sorted(rows, key=lambda row: row["faster"])[:5]:
        print(line(row), "" if row["ours"] else " cuBLAS on both sides")


def compared(m: int, n: int, k: int, *, errors: bool = False, in_graph: bool = False) -> dict[str, Any]:
    """Times of both, in ms, and with ``errors`` their relative errors for numbers of either sign and for positive ones."""
    torch.manual_seed(0)
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda").t()
    out = torch.empty(m, n, device="cuda")
    row: dict[str, Any] = {"m": m, "n": n, "k": k, "ours": bool(product_pays(a[None], b[None]))}
    sides = {"cublas": lambda: torch.mm(a, b, out=out), "library": lambda: library_mm(a, b, out=out)}
    if errors:
        row["errors"] = [error(each, a, b, out) for each in sides.values()]
        positive = a.abs(), b.abs()
        row["errors"] += [
            error(lambda: torch.mm(*positive, out=out), *positive, out),
            error(lambda: library_mm(*positive, out=out), *positive, out),
        ]
    return row | in_turns(sides, in_graph=in_graph)


def in_turns(
    sides: Mapping[str, Callable[[], object]], *, in_graph: bool = False, least_calls: int = 10
) -> dict[str, Any]:
    """Each side's time in ms by its name, how much faster the second is, with the interval, and whether it was slower in each round."""
    calls = {}
    for name, side in sides.items():
        side()
        calls[name] = max(least_calls, min(200, round(10.0 / max(elapsed_ms(side, 3), 1e-3))))
    if in_graph:
        graphs = {name: recorded(side, calls[name]) for name, side in sides.items()}
    times = {name: list[float]() for name in sides}
    for place in range(ROUNDS):
        for name in sorted(sides, reverse=bool(place % 2)):
            if in_graph:
                times[name].append(elapsed_ms(graphs[name].replay, 1) / calls[name])
            else:
                times[name].append(elapsed_ms(sides[name], calls[name]))
    ratios = sorted(one / two for one, two in zip(*times.values(), strict=True))
    middle = ROUNDS // 2
    row: dict[str, Any] = {name: sorted(each)[middle] for name, each in times.items()}
    return row | {"faster": ratios[middle], "interval": [ratios[3], ratios[11]], "slower": ratios[-1] < 1}


def recorded(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of some calls in a row, replayed once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    return graph


def elapsed_ms(call: Callable[[], object], calls: int) -> float:
    """Of one of some calls in a row."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / calls


def error(call: Callable[[], object], a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
    """Of the result's first rows, relative to their norm."""
    call()
    exact = a[:CHECKED_ROWS].double() @ b.double()
    return float((out[:CHECKED_ROWS] - exact).norm() / exact.norm())


def line(row: dict[str, Any]) -> str:
    """Of the table."""
    m, n, k = row["m"], row["n"], row["k"]
    rate = 2 * m * n * k / row["library"] / 1e9
    low, high = row["interval"]
    found = ", ".join(f"{one:.1e}" for one in row.get("errors", ()))
    return f"{m:>6} {n:>6} {k:>6}  {row['cublas']:>6.3f} ms {row['library']:>6.3f} ms {rate:>8.1f}  {row['faster']:.2f}x [{low:.2f}, {high:.2f}]  {found}"


if __name__ == "__main__":
    main.__doc__ = __doc__  # for --help
    typer.run(main)
