"""How convolutions are packed for Hopper's copy engine: zeros shared between rows and images, blocks of a stride, taps as shifts.

Packing runs through Triton's interpreter. In place of the kernel, which needs the GPU (`test_on_gpu.py`), torch multiplies the rows
that it would load; what it may not read is NaN.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.compiler.extraction import run_program

_PROGRAM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import json, math, random
import torch
import torch.nn.functional as F
from tests.agent.kernels import interpreting
interpreting.prepare()
from agent.kernels.gpu import convolutions

calls = 0
def multiply(images, w_parts, exponents, bias, taps, first, dilation, step, out, wide, after, plan, units):
    global calls
    calls += 1
    grid = [size // block for size, block in zip(images.sizes, images.step)]
    weights, count = (w_parts[0] + w_parts[1].double()), out.shape[0]
    channels, row = images.pixels.together * images.pixels.channels, math.prod(images.step) * images.pixels.channels
    width = math.prod(step) * channels
    rows = images.packed.as_strided((2 * images.rows + 64 - width // row + 1, width), (row, 1)).double()
    place = torch.arange(count * math.prod(grid))
    total = torch.zeros(len(place), len(weights), dtype=torch.double)
    for tap in range(math.prod(taps)):
        at = tap // (taps[1] * taps[2]), tap // taps[2] % taps[1], tap % taps[2]
        d, h, w = (begin + j * apart for begin, j, apart in zip(first, at, dilation))
        step_d, step_h, step_w = step
        row = place + (d // step_d * grid[1] + h // step_h) * grid[2] + w // step_w
        begin = ((d % step_d * step_h + h % step_h) * step_w + w % step_w) * channels
        low = (row + images.rows).clamp(max=len(rows) - 1)
        patch = rows[row, begin : begin + channels] + rows[low, begin : begin + channels]
        total += patch @ weights[:, tap * channels : (tap + 1) * channels].T
    largest = images.bits[:count].view(torch.float32).double()
    scale = 2.0 ** (largest.log2().floor()[place // math.prod(grid)][:, None] + exponents - 26.0)
    x, y, z = place % grid[2], place // grid[2] % grid[1], place // (grid[1] * grid[2]) % grid[0]
    for image in range(count):
        for column in range(out.shape[1] * wide):
            channel, along = column // wide, x * wide + column % wide
            there = (place // math.prod(grid) == image) & (z < out.shape[2]) & (y < out.shape[3]) & (along < out.shape[4])
            values = (total * scale)[there, column] + (0.0 if bias is None else bias[channel])
            out[image, channel, z[there], y[there], along[there]] = values.float()

convolutions.convolve_hopper = multiply
convolutions.on_hopper = lambda device: True
convolutions.processors = lambda device: 132
empty = torch.empty
def unwritten(*sizes, **more):
    made = empty(*sizes, **more)
    return made.fill_(float("nan")) if made.is_floating_point() else made

random.seed(SEED)
torch.manual_seed(0)
errors = {}
while len(errors) < COUNT:
    axes, is_transposed = random.choice([1, 2, 2, 3]), random.random() < 0.5
    def draw(*values):
        return [random.choice(values) for _ in range(axes)]
    sizes, taps, stride = draw(*range(1, 9)), draw(1, 2, 3, 4, 5), draw(1, 2, 3, 4)
    dilation, padding = draw(1, 1, 2, 3, 4), draw(0, 1, 2, 3)
    channels, outs, images = random.choice([3, 5, 8, 9, 20]), random.choice([1, 5]), random.choice([1, 2])
    x, w = torch.randn(images, channels, *sizes), torch.randn(outs, channels, *taps)
    bias = random.choice([None, torch.randn(outs)])
    more = [random.randrange(max(pair)) for pair in zip(stride, dilation)]
    run = getattr(F, f"conv{'_transpose' if is_transposed else ''}{axes}d")
    w = w.transpose(0, 1).contiguous() if is_transposed else w
    args = (stride, padding, more, 1, dilation) if is_transposed else (stride, padding, dilation)
    if images == 2 and random.random() < 0.5:  # nothing of it may reach the image before
        x[1].view(-1)[0] = random.choice([float("inf"), float("nan")])
    try:
        exact = run(x.double(), w.double(), None if bias is None else bias.double(), *args)
    except RuntimeError:  # no output
        continue
    out = torch.full(exact.shape, 7.0)
    torch.empty = unwritten
    convolutions.convolution(x, w, bias, stride, padding, dilation, is_transposed, out)
    torch.empty = empty
    name = f"{'transposed ' if is_transposed else ''}x {tuple(x.shape)} w {tuple(w.shape)} of {stride} {padding} {dilation} {more}"
    finite = exact.isfinite()
    out, exact = out[finite], exact[finite]
    errors[name] = ((out - exact).abs().max() / exact.abs().max().clamp(min=1e-9)).nan_to_num(1e9).item()
print(json.dumps({"calls": calls, "errors": errors}))
"""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_taps_read_what_was_packed_for_them(seed: int, tmp_path: Path) -> None:
    told = run_program(
        tmp_path, _PROGRAM.replace("SEED", str(seed)).replace("COUNT", "8" if not seed else "24")
    )
    assert told["calls"] >= len(told["errors"]) / 2  # fewer channels go by pointers
    assert {name: error for name, error in told["errors"].items() if error > 1e-6} == {}
