"""The library's float32 convolutions against cuDNN on one GPU: time, and error against float64.

    python -m benchmarks.float32_convolutions

Both are called in turns in the same run, as `benchmarks.float32_products` says. cuDNN times its algorithms first
(`torch.backends.cudnn.benchmark`). The library computes all that it can, whether or not it expects to be faster.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import torch
import typer

from agent.kernels.gpu import calls
from agent.kernels.gpu.choice import by_products
from benchmarks.float32_products import in_turns
from benchmarks.shared import MEASUREMENTS, Out, Seconds, environment, gpu_name, write_new


class Form(NamedTuple):
    """A convolution with as many taps, strides and so on in each axis."""

    images: int
    channels: int
    sizes: tuple[int, ...]
    outs: int
    taps: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        more = [
            f"{name} {value}"
            for name, value, usual in (("stride", self.stride, 1), ("dilation", self.dilation, 1))
            if value != usual
        ]
        kind = "transposed " if self.transposed else ""
        return f"{kind}{self.images} of {self.channels} x {sizes} to {self.outs}, {self.taps} taps{''.join(f', {one}' for one in more)}"


FORMS = (
    Form(64, 3, (16, 32, 32), 16, 3), Form(128, 3, (16, 32, 32), 16, 4), Form(2, 256, (14, 14), 256, 3, padding=1),
    Form(16, 16, (1024, 1024), 128, 3), Form(32, 128, (128, 128), 256, 3, padding=1), Form(64, 64, (56, 56), 64, 3, padding=1),
    Form(64, 512, (7, 7), 512, 3, padding=1), Form(64, 128, (56, 56), 128, 3, stride=2, padding=1), Form(16, 64, (512, 512), 128, 1),
    Form(16, 96, (128, 128), 96, 5, padding=2), Form(16, 32, (224, 224), 64, 7, padding=3), Form(32, 3, (224, 224), 64, 7, stride=2, padding=3),
    Form(32, 8, (24, 48, 48), 32, 3), Form(16, 3, (512, 512), 64, 5, padding=2), Form(16, 3, (16, 32, 32), 16, 3, 2, 1, transposed=True),
    Form(32, 64, (65536,), 128, 3), Form(8, 32, (32, 64, 64), 64, 3, padding=1),
    Form(8, 48, (64, 64, 64), 48, 3, transposed=True), Form(16, 32, (16, 32, 32), 64, 3, 2, 1, 2, transposed=True),
    Form(16, 32, (32, 32, 32), 64, 5, 2, 2, transposed=True), Form(16, 64, (256, 256), 64, 4, 2, 1, transposed=True),
)  # fmt: skip


def main(
    seconds: Seconds = 1e9,
    out: Out = MEASUREMENTS,
) -> None:
    """Compare, print a table, and write JSON."""
    gpu = gpu_name()
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True
    ends_at = time.monotonic() + seconds
    rows = []
    for form in FORMS:
        if time.monotonic() < ends_at:
            rows.append(compared(form))
            print(line(rows[-1]), flush=True)
    if rows:
        print(f"{len(rows)} together: {statistics.geometric_mean(row['faster'] for row in rows):.2f}x")
    write_new(out, "float32-convolutions-cuda", {"environment": environment() | {"gpu": gpu}, "rows": rows})


def compared(form: Form) -> dict[str, Any]:
    """Times of both, in ms, their errors over the first image relative to its norm, and whether the library computes it in a module."""
    torch.manual_seed(0)
    axes = len(form.sizes)
    shape = (form.channels, form.outs) if form.transposed else (form.outs, form.channels)
    x = torch.randn(form.images, form.channels, *form.sizes, device="cuda")
    weight = (
        torch.randn(*shape, *[form.taps] * axes, device="cuda") / (form.channels * form.taps**axes) ** 0.5
    )
    how = [form.stride] * axes, [form.padding] * axes, [form.dilation] * axes, form.transposed, [0] * axes, 1
    choose, chosen = calls.kernel_for, list[bool]()

    def ours(*given: Any) -> Any:
        kernel = choose(*given)
        chosen.append(kernel is not None)
        return kernel or by_products

    calls.kernel_for = ours
    try:
        sides = {
            "cudnn": lambda: torch.convolution(x, weight, None, *how),
            "library": lambda: calls.library_convolution(x, weight, *how),
        }
        exact = torch.convolution(x[:1].double(), weight.double(), None, *how)
        errors = [float((side()[:1] - exact).norm() / exact.norm()) for side in sides.values()]
        found = in_turns(sides, least_calls=3)
    finally:
        calls.kernel_for = choose
    return {"form": str(form), **form._asdict(), "ours": chosen[:1] == [True], "errors": errors, **found}


def line(row: dict[str, Any]) -> str:
    """Of the table."""
    low, high = row["interval"]
    errors = ", ".join(f"{one:.1e}" for one in row["errors"])
    chosen = "" if row["ours"] else "  left to cuDNN"
    return f"{row['form']:<60} {row['cudnn']:>7.3f} ms {row['library']:>7.3f} ms  {row['faster']:.2f}x [{low:.2f}, {high:.2f}]  {errors}{chosen}"


if __name__ == "__main__":
    main.__doc__ = __doc__  # for --help
    typer.run(main)
