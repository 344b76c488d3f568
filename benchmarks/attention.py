"""The library's attention against each back end of torch's on one GPU: time, and error against float64.

    python -m benchmarks.attention

Both sides are recorded in CUDA graphs and replayed in turns, as `benchmarks.float32_products` says: only the GPU's time counts. What the library
is compared with is the fastest back end that takes the tensors (flash, memory-efficient, cuDNN, math), found by a few calls before.
torch's own choice among them is told apart.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import typer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from agent.kernels.gpu import calls
from benchmarks.float32_products import elapsed_ms, in_turns, recorded
from benchmarks.shared import MEASUREMENTS, Out, Seconds, environment, gpu_name, write_new

BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)


class Form(NamedTuple):
    """An attention; keys are as many as queries unless told."""

    batch: int
    heads: int
    queries: int
    dims: int
    causal: bool = False
    keys: int = 0
    masked: bool = False

    def __str__(self) -> str:
        more = ", causal" * self.causal + ", with a mask" * self.masked
        keys = f" of {self.keys} keys" if self.keys else ""
        return f"{self.batch} x {self.heads} heads, {self.queries} queries{keys}, {self.dims}{more}"


FORMS = (
    Form(8, 16, 1024, 64), Form(8, 16, 1024, 64, causal=True), Form(8, 16, 1024, 64, masked=True), Form(4, 16, 4096, 64, causal=True),
    Form(4, 16, 4096, 128), Form(2, 16, 8192, 128, causal=True), Form(4, 8, 2048, 256), Form(8, 12, 2048, 96, causal=True),
    Form(32, 8, 512, 32), Form(16, 8, 4096, 64, keys=77), Form(16, 8, 1, 128, keys=8192), Form(64, 16, 256, 64), Form(1, 8, 16384, 128),
)  # fmt: skip


def main(
    seconds: Seconds = 1e9,
    out: Out = MEASUREMENTS,
) -> None:
    """Compare, print a table, and write JSON."""
    gpu = gpu_name()
    torch.backends.cuda.matmul.allow_tf32 = False
    ends_at = time.monotonic() + seconds
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for form in FORMS:
            if time.monotonic() < ends_at:
                rows.append(compared(form, dtype))
                print(line(rows[-1]), flush=True)
        of_dtype = [row["faster"] for row in rows if row["dtype"] == str(dtype)]
        if of_dtype:
            print(f"{len(of_dtype)} together: {statistics.geometric_mean(of_dtype):.2f}x")
    write_new(out, "attention-cuda", {"environment": environment() | {"gpu": gpu}, "rows": rows})


def compared(form: Form, dtype: torch.dtype) -> dict[str, Any]:
    """Times in ms of the library, the fastest back end and torch's own choice, and errors of the first head relative to its norm."""
    torch.manual_seed(0)
    keys = form.keys or form.queries

    def heads(length: int) -> torch.Tensor:
        # As a linear layer's output is viewed.
        x = torch.randn(form.batch, length, form.heads, form.dims, device="cuda", dtype=dtype)
        return x.transpose(1, 2)

    q, k, v = heads(form.queries), heads(keys), heads(keys)
    excluded = torch.rand(form.batch, 1, form.queries, keys, device="cuda") < 0.3 if form.masked else None
    counts = None if excluded is None else ~excluded

    def torchs() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, counts, is_causal=form.causal)

    def ours() -> Any:
        if form.queries <= 16 and dtype == torch.float32:
            return calls.library_decoding(q, [k], [v], excluded, None, None, True, None)
        return calls.library_attention(q, k, v, excluded, None, form.causal, True)

    def by(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return torchs()

    found = {}
    for backend in BACKENDS:
        try:
            by(backend)
            found[backend] = elapsed_ms(recorded(partial(by, backend), 3).replay, 2) / 3
        except RuntimeError:  # does not take these, or no memory for all scores
            torch.cuda.synchronize()
    best = min(found, key=lambda backend: found[backend])
    exact = reference(q, k, v, counts, form.causal)
    errors = [float((one[:1, :1].double() - exact).norm() / exact.norm()) for one in (by(best), ours())]
    sides: dict[str, Callable[[], object]] = {"torch": partial(by, best), "library": ours}
    row = {
        "form": str(form),
        **form._asdict(),
        "dtype": str(dtype),
        "backend": best.name,
        "errors": errors,
        "chosen_ms": elapsed_ms(recorded(torchs, 3).replay, 2) / 3,
        "backends_ms": {one.name: each for one, each in found.items()},
    }
    return row | in_turns(sides, in_graph=True, least_calls=1)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, counts: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    """The first head of the first sequence in float64."""
    q, k, v = (one[:1, :1].double() for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, None if counts is None else counts[:1], is_causal=causal)


def line(row: dict[str, Any]) -> str:
    """Of the table."""
    low, high = row["interval"]
    errors = ", ".join(f"{one:.1e}" for one in row["errors"])
    backend = row["backend"].removesuffix("_ATTENTION").lower()
    return (
        f"{row['dtype'].removeprefix('torch.'):<9} {row['form']:<52} {backend:<9} {row['torch']:>7.3f} ms {row['library']:>7.3f} ms  "
        f"{row['faster']:.2f}x [{low:.2f}, {high:.2f}]  torch's choice {row['chosen_ms']:.3f} ms  {errors}"
    )


if __name__ == "__main__":
    main.__doc__ = __doc__  # for --help
    typer.run(main)
