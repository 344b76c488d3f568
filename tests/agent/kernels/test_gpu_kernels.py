"""The library's GPU kernels against float64, through Triton's interpreter: accuracy, odd sizes, Inf and NaN, wide ranges.

`test_on_gpu.py` and `test_attention_on_gpu.py` run them on a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.compiler.extraction import run_program

_START = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import json, warnings
warnings.simplefilter("ignore")
import torch
import torch.nn.functional as F
from agent.kernels.writing import function_text
from tests.agent.kernels import interpreting
interpreting.prepare()
from agent.kernels.gpu import attention, convolutions, direct, distances, lists, products, ranks, rows, scans, scatters, streamed, thin, tiny, windows
torch.manual_seed(0)
found = []
cases = []
def skipped(name):  # by day every seventh case runs (no loop here has seven), and those that a name of the tests promises
    cases.append(name)
    return not WHOLE and len(cases) % 7 != 1 and not any(word in name for word in ("inf", "nan", "one part", "means"))
def compare(name, out, exact, float32):
    finite = exact.isfinite() & (exact.abs() < 3e38)
    norm = exact[finite].norm()
    found.append({
        "name": name,
        "error": ((out - exact)[finite].norm() / norm).item(),
        "float32": ((float32 - exact)[finite].norm() / norm).item(),
        "same": bool(torch.equal(out[~finite].nan_to_num(8.0), float32[~finite].nan_to_num(8.0))),
    })
"""

PRODUCTS = """
def product(name, batches, m, k, n, spread=0.0, transposed=False, bias=False, change=None):
    if skipped(name):
        return
    a = torch.randn(batches, m, k) * torch.exp(spread * torch.randn(batches, m, k))
    b = torch.randn(batches, n, k).transpose(1, 2) if transposed else torch.randn(batches, k, n)
    if change:
        change(a, b)
    added = torch.randn(n) if bias else None
    out = torch.full((batches, m, n), 7.0)
    products.product(a, b, out, added, 0.5, 2.0)
    more = 0.0 if added is None else 2.0 * added
    compare(name, out, 0.5 * (a.double() @ b.double()) + more, 0.5 * (a @ b) + more)

def special(a, b):
    a[0, 3, 5], a[0, 4, 7], b[0, 2, 6] = float("inf"), float("nan"), -float("inf")

def tiny_rows(a, b):  # products of their scales are smaller than any float32, and results are not
    a *= 2.0**-63
    b *= 2.0**-63

def huge(a, b):
    a[0, 2, :] *= 1e30
    a[0, 5, :] *= 1e-30
    b[0, :, 1] *= 1e6

product("one step, in tiles, inf and nan", 1, 270, 40, 516, spread=1.0, change=special)
product("odd sizes", 1, 70, 600, 150)
product("batches, transposed, wide", 2, 33, 130, 40, spread=4.0, transposed=True, bias=True)
product("one row", 1, 1, 70, 3)
product("few rows, one step", 1, 3, 64, 140)
product("few rows", 1, 5, 600, 260, transposed=True, bias=True)
product("few columns, in two parts", 1, 140, 1100, 20, spread=2.0, bias=True)
for name, m, k, change in (("rows in three groups", 300, 300, None), ("rows in two groups, inf and nan", 140, 72, special)):
    if skipped(name):
        continue
    a, b, added = torch.randn(1, m, k), torch.randn(1, k, 150), torch.randn(m, 150)
    if change:
        change(a, b)
    out = products.few(a[0], b[0].t().contiguous(), torch.full((m, 150), 7.0), added, 0.5, 2.0)
    compare(name, out, 0.5 * (a[0].double() @ b[0].double()) + 2.0 * added, 0.5 * (a[0] @ b[0]) + 2.0 * added)
product("few rows, inf and nan", 1, 30, 72, 140, transposed=True, change=special)
product("few rows of other magnitudes", 1, 9, 128, 140, transposed=True, change=huge)
product("inf and nan", 1, 130, 300, 7, change=special)
def zeros_first(a, b):
    b[0, :64], b[0, 64:] = 0, b[0, 64:] * 1e-6

def large_first(a, b):
    a[0, :, :64], b[0, 64:] = 0, b[0, 64:] * 1e-6

product("few rows, zeros first", 1, 4, 512, 140, transposed=True, change=zeros_first)
product("few rows, unused large ones first", 1, 4, 512, 140, transposed=True, change=large_first)
product("rows of other magnitudes", 1, 9, 64, 20, change=huge)
product("tiny on both sides", 1, 9, 100, 20, change=tiny_rows)
product("tiny on both sides, one step", 1, 9, 64, 20, change=tiny_rows)

for m, k, n in ((5, 7, 3), (1, 1, 1), (4, 16, 9)):
    a, b = torch.randn(300, m, k), torch.randn(300, n, k).transpose(1, 2)
    a[3, 0, 0], b[5, 0, 0] = float("inf"), float("nan")
    compare(f"tiny {m} {k} {n}", tiny.tiny_products(a, b, torch.full((300, m, n), 7.0)), a.double() @ b.double(), a @ b)
for m, k, n in ((4, 130, 300), (1, 5000, 7), (7, 3, 20), (3, 3000, 1)):
    a, b = torch.randn(3, m, k), torch.randn(3, n, k).transpose(1, 2)
    a[1, 0, 0], b[2, 0, 0] = float("inf"), float("nan")
    for right, order in ((b, "columns"), (b.contiguous(), "rows")):
        if skipped(order):
            continue
        compare(f"thin {m} {k} {n} {order}", thin.thin_products(a, right, torch.full((3, m, n), 7.0)), a.double() @ b.double(), a @ b)
print(json.dumps(found))
"""

CONVOLUTIONS = """
def convolve(name, x, w, bias, stride, padding, dilation, parts=2):
    if skipped(name):
        return
    dims = x.dim() - 2
    run = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    stride, padding, dilation = (stride,) * dims, (padding,) * dims, (dilation,) * dims
    float32 = run(x, w, bias, stride, padding, dilation)
    out = torch.full_like(float32, 7.0)
    convolutions.convolution(x, w, bias, stride, padding, dilation, False, out, parts)
    exact = run(x.double(), w.double(), None if bias is None else bias.double(), stride, padding, dilation)
    compare(name, out, exact, float32)

def transposed(name, x, w, stride, padding, more, dilation=1):
    if skipped(name):
        return
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.dim() - 3]
    dilation, bias = (dilation,) * (x.dim() - 2), None if dilation == 1 else draw(w.shape[1])
    float32 = run(x, w, bias, stride, padding, more, 1, dilation)
    out = torch.full_like(float32, 7.0)
    convolutions.convolution(x, w, bias, stride, padding, dilation, True, out)
    exact = run(x.double(), w.double(), None if bias is None else bias.double(), stride, padding, more, 1, dilation)
    compare(name, out, exact, float32)

draw = torch.randn
convolve("2-D", draw(2, 3, 9, 11), draw(20, 3, 3, 3), draw(20), 1, 1, 1)
convolve("strides, dilation, channels last", draw(1, 70, 7, 8).to(memory_format=torch.channels_last), draw(70, 70, 3, 2), None, 2, 1, 2)
convolve("1-D", draw(2, 16, 30), draw(5, 16, 5), draw(5), 2, 3, 2)
x = draw(2, 4, 5, 6, 7)
x[1, 1, 2, 2, 2] = float("inf")
convolve("3-D, an image with inf", x, draw(6, 4, 3, 3, 3), None, 1, 1, 1)
w = draw(3, 2, 3)
w[1, 0, 1] = float("nan")
convolve("weights with nan", draw(1, 2, 9), w, None, 1, 1, 1)
odd = draw(4, 5, 3, 1).as_strided((4, 5, 3, 1), (15, 3, 1, 7))  # an axis of one tap may have any stride
convolve("weights with an odd stride", draw(2, 5, 8, 8), odd, None, 1, 1, 1)
convolve("tiny on both sides", draw(2, 5, 8, 8) * 2.0**-63, draw(4, 5, 3, 3) * 2.0**-63, None, 1, 0, 1)
convolve("images of other magnitudes", draw(3, 5, 8, 8) * torch.tensor([1e20, 1.0, 1e-20])[:, None, None, None], draw(4, 5, 3, 3), None, 1, 0, 1)
transposed("2-D", draw(1, 5, 6, 7), draw(5, 6, 3, 4), (2, 3), (1, 0), (1, 0))
transposed("3-D", draw(1, 3, 4, 3, 5), draw(3, 4, 3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
transposed("1-D, more stride than taps", draw(2, 8, 20), draw(8, 3, 2), (3,), (0,), (0,))
transposed("neighbors together", draw(2, 3, 4, 3, 5), draw(3, 5, 4, 4, 4), (2, 2, 2), (1, 1, 1), (0, 0, 0))
transposed("dilated by the stride", draw(2, 5, 6, 7), draw(5, 4, 3, 3), (2, 2), (1, 1), (0, 1), 2)
transposed("an odd row, many channels", draw(1, 8, 4, 5), draw(8, 70, 3, 3), (2, 2), (1, 1), (0, 0))
transposed("four neighbors", draw(2, 8, 20), draw(8, 3, 2), (4,), (0,), (0,))
transposed("dilated, prime to the stride", draw(2, 5, 9), draw(5, 4, 5), (3,), (2,), (1,), 2)
transposed("dilated by half the stride", draw(2, 5, 9), draw(5, 4, 5), (4,), (1,), (2,), 6)
y = draw(2, 4, 5, 6)
y[1, 1, 2, 2] = float("nan")
transposed("an image with nan", y, draw(4, 5, 3, 3), (2, 2), (1, 1), (1, 1))
convolve("one part", draw(2, 3, 9, 11), draw(20, 3, 3, 3), None, 1, 1, 1, parts=1)
print(json.dumps(found))
"""

DIRECT = """
functions = "import triton\\nimport triton.language as tl\\n" + function_text("after", "tl.maximum(x, 0.0) * a + b", "x, a, b")
open("functions.py", "w").write(functions)
import functions

def few(name, x, w, bias, stride, padding, dilation, after=False):
    if skipped(name):
        return
    dims = x.dim() - 2
    run = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    form = (stride,) * dims, (padding,) * dims, (dilation,) * dims
    exact, float32 = run(x.double(), w.double(), None if bias is None else bias.double(), *form), run(x, w, bias, *form)
    assert direct.direct_applies(x, w, False, exact.shape[2:])
    then = convolutions.NOTHING
    if after:
        one, two = torch.randn(w.shape[0]), torch.randn(exact.shape)
        then = convolutions.After(functions.after, one, two)
        exact, float32 = (each.clamp(min=0) * one.view(-1, *[1] * dims) + two for each in (exact, float32))
    compare(name, direct.direct(x, w, bias, *form, torch.full_like(float32, 7.0), then), exact, float32)
    if not after:  # among other channels of a larger tensor
        whole = torch.full((exact.shape[0], exact.shape[1] + 3, *exact.shape[2:]), 7.0)
        direct.direct(x, w, bias, *form, whole.narrow(1, 2, exact.shape[1]), then)
        compare(name, whole.narrow(1, 2, exact.shape[1]), exact, float32)
        assert (whole[:, :2] == 7.0).all() and (whole[:, -1] == 7.0).all()

draw = torch.randn
x = draw(2, 3, 7, 6, 9)
x[1, 1, 2, 2, 2], x[0, 0, 0, 0, 0] = float("inf"), float("nan")
few("3-D, then operations", x, draw(5, 3, 2, 3, 3), draw(5), 2, 1, 2, after=True)
few("2-D, tiles of several images", draw(3, 4, 13, 30), draw(16, 4, 3, 4), None, 1, 0, 1)
few("1-D", draw(2, 1, 700), draw(1, 1, 5), draw(1), 3, 4, 1)
few("several tiles of channels out", draw(2, 3, 9, 11), draw(37, 3, 3, 3), draw(37), 1, 1, 1, after=True)
few("one tap", draw(2, 7, 9, 11), draw(40, 7, 1, 1), draw(40), 1, 0, 1)
few("a row shorter than its taps", draw(2, 2, 5, 1), draw(3, 2, 1, 3), None, 1, 1, 1)
print(json.dumps(found))
"""

WINDOWS = """
draw = torch.randn
x = draw(2, 3, 5, 9, 11)
x[0, 1, 2, 3, 4], x[1, 1, 0, 0, 0] = float("nan"), float("inf")
def pool(name, x, run, kind, taps, stride, padding, dilation=1, *more):
    if skipped(name):
        return
    axes = x.dim() - 2
    exact = run(x.double())
    one = windows.windows(x, torch.full_like(exact, 7.0, dtype=x.dtype), kind, taps, stride, padding, [dilation] * axes, *more)
    compare(name, one, exact, run(x))
pool("mean", x, lambda x: F.avg_pool3d(x, 3, 2, 1), "mean", [3, 3, 3], [2, 2, 2], [1, 1, 1], 1, None, 27)
pool("mean inside", x, lambda x: F.avg_pool3d(x, (2, 3, 1), (1, 2, 1), (1, 1, 0), count_include_pad=False), "mean_inside", [2, 3, 1], [1, 2, 1], [1, 1, 0])
plane = draw(1, 1, 40, 300)
pool("max, with tiles inside", plane, lambda x: F.max_pool2d(x, 4, 1, 1), "max", [4, 4], [1, 1], [1, 1])
pool("max, nan", x[:, :, 2].contiguous(), lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, 2), "max", [3, 2], [2, 1], [1, 1], 2)
w = draw(12, 1, 3, 7)
pool("depthwise", draw(2, 6, 9, 11), lambda x: F.conv2d(x, w.to(x.dtype), None, (2, 1), (1, 3), 1, 6), "convolution", [3, 7], [2, 1], [1, 3], 1, w)
grouped = draw(9, 2, 3, 3)
pool("groups of two", draw(1, 6, 5, 40), lambda x: F.conv2d(x, grouped.to(x.dtype), None, 1, 1, 1, 3), "convolution", [3, 3], [1, 1], [1, 1], 1, grouped)
for cols in (5, 3000, 9000):
    z = draw(4, cols) * 20
    z[1], z[2, 1], z[3, 2] = -float("inf"), float("inf"), float("nan")
    for log, run in ((False, torch.softmax), (True, torch.log_softmax)):
        one = rows.softmax(z, torch.full_like(z, 7.0), log)
        compare(f"softmax of {cols}", one, run(z.double(), -1), run(z, -1))
rows.PIECE = 1024  # here programs run one after the other: all but a row's last give up waiting
rows.MOST_LOOKS = 2
z = draw(5, 3000) * 20
z[1], z[2, 1], z[3, 2], z[4, 1024:] = -float("inf"), float("inf"), float("nan"), -float("inf")
z[4, :1024] -= 1000
for log, run in ((False, torch.softmax), (True, torch.log_softmax)):
    if skipped("softmax in pieces"):
        continue
    compare("softmax in pieces", rows.softmax(z, torch.full_like(z, 7.0), log), run(z.double(), -1), run(z, -1))
print(json.dumps(found))
"""


ATTENTION = """
def attend(name, batch, heads, queries, keys, dims, causal=False, masked=False, change=None, scale=None):
    if skipped(name):
        return
    q = torch.randn(batch, queries, heads, dims).transpose(1, 2)
    k, v = torch.randn(2, batch, heads, keys, dims)
    if change:
        change(q, k, v)
    excluded = None
    if masked:
        excluded = torch.rand(1, 1, queries, keys) > 0.7
        excluded[..., 4, :] = True  # a row without keys is NaN
    scale = dims ** -0.5 if scale is None else scale
    def run(q, k, v):
        scores = (q @ k.transpose(2, 3)) * scale
        if causal:
            scores = scores.masked_fill(torch.ones(queries, keys).tril() == 0, -torch.inf)
        if masked:
            scores = scores.masked_fill(excluded, -torch.inf)
        return scores.softmax(-1) @ v
    out = torch.full((batch, heads, queries, dims), 7.0)
    attention.attention(q, k, v, excluded, scale, causal, False, out)
    compare(name, out, run(q.double(), k.double(), v.double()), run(q, k, v))
    if masked and change is None:  # torch's call has zeros for a row without keys
        exact = run(q.double(), k.double(), v.double()).nan_to_num(0.0)
        compare(name + ", safe", attention.attention(q, k, v, excluded, scale, causal, True, out), exact, exact.float())

def special(q, k, v):
    q[0, 0, 3, 2], k[0, 1, 5, 1], v[1, 0, 7, 3] = float("inf"), float("nan"), -float("inf")

attend("causal", 2, 2, 70, 70, 64, causal=True)
attend("other keys than queries", 1, 2, 33, 150, 40)
attend("masked", 1, 3, 40, 40, 16, masked=True)
attend("masked, inf and nan", 2, 2, 20, 40, 16, masked=True, change=special)
def shared(q, k, v):
    k += 1000 * torch.randn(k.shape[-1])

attend("large scores, near one another", 1, 2, 160, 128, 64, change=shared)
def means(q, k, v):
    q += 64
    k.mul_(0.02).add_(64)

attend("large means", 1, 1, 40, 77, 64, change=means)
attend("large heads", 1, 1, 20, 300, 136)
def beyond(q, k, v):
    q[0, 0, 3], k[0, 0] = 4e22, k[0, 0] * 1e-22

attend("large heads, a query beyond the scales", 1, 2, 20, 40, 72, change=beyond)
attend("no scale", 1, 2, 40, 70, 16, masked=True, scale=0.0)
attend("a negative scale", 1, 2, 150, 140, 16, causal=True, scale=-0.3)

def weigh(name, batch, heads, queries, keys, dims, element, run_element, mask=None, change=None):
    q = torch.randn(batch, queries, heads, dims).transpose(1, 2)
    k, v = torch.randn(2, batch, heads, keys, dims)
    if change:
        change(q, k, v)
    def run(q, k, v):
        return run_element((q @ k.transpose(2, 3)) * 0.3, mask) @ v
    out = torch.full((batch, heads, queries, dims), 7.0)
    attention.attention(q, k, v, mask, 0.3, False, False, out, element)
    compare(name, out, run(q.double(), k.double(), v.double()), run(q, k, v))
    apart = attention.weighed(((q @ k.transpose(2, 3)) * 0.3).contiguous(), mask, element) @ v
    compare(name + ", apart", apart, run(q.double(), k.double(), v.double()), run(q, k, v))

functions = "import triton\\nimport triton.language as tl\\n"
functions += function_text("relu", "t0 = tl.where((m != 0), 0.0, x); tl.where(t0 < 0.0, 0.0, t0)", "x, m")
functions += function_text("capped", "t0 = x / 5.0; t1 = tl.exp(t0); t2 = 5.0 * t1; t2 - m", "x, m")
functions += function_text("decay", "x * m", "x, m") + function_text("squared", "x * x * 1e-3", "x, m")
open("functions.py", "w").write(functions)
import functions
weigh("relu", 2, 2, 70, 130, 64, functions.relu, lambda x, m: x.masked_fill(m, 0.0).relu(), torch.rand(1, 1, 70, 130) > 0.7)
weigh("decay", 1, 3, 40, 40, 16, functions.decay, lambda x, m: x * m, torch.rand(3, 40, 40) ** 9)
weigh("squares", 1, 2, 33, 50, 40, functions.squared, lambda x, m: x * x * 1e-3)
weigh("squares, inf and nan", 2, 2, 20, 40, 16, functions.squared, lambda x, m: x * x * 1e-3, change=special)
weigh("large heads, squares beyond the scales", 1, 1, 20, 40, 72, functions.squared, lambda x, m: x * x * 1e-3, change=lambda q, k, v: q[0, 0, 3].mul_(1e24))
weigh("squares beyond the scales", 1, 1, 20, 40, 16, functions.squared, lambda x, m: x * x * 1e-3, change=lambda q, k, v: q[0, 0, 3].mul_(1e15))

def decode(name, batch, heads, queries, pieces, dims, group=1, masked=False, biased=False, change=None):
    if skipped(name):
        return
    q = torch.randn(batch, queries, heads * group, dims).transpose(1, 2)
    k, v = torch.randn(2, batch, heads, sum(pieces), dims)
    if change:
        change(q, k, v)
    mask = bias = None
    if masked:
        mask = torch.rand(batch, 1, queries, sum(pieces)) > 0.7
        mask[..., pieces[0] // 2 :] |= torch.rand(sum(pieces) - pieces[0] // 2) > 0.2  # of many, nobody wants the keys
        mask[-1, :, -1] = True  # a row without keys is NaN
    if biased:
        bias = 40 * torch.rand(heads * group, 1, sum(pieces))
    def run(q, k, v):
        scores = (q @ k.repeat_interleave(group, 1).transpose(2, 3)) * 0.2
        scores = 5.0 * torch.exp(scores / 5.0) - bias if biased else scores
        scores = scores.masked_fill(mask, -torch.inf) if masked else scores
        return scores.softmax(-1) @ v.repeat_interleave(group, 1)
    exact, theirs = run(q.double(), k.double(), v.double()), run(q, k, v)
    for chunks, safe in ((1, False), (3, change is None)):
        streamed._chunks = lambda *_: chunks
        out = torch.full((batch, queries, heads * group, dims), 7.0).transpose(1, 2)
        more = mask, bias, 0.2, safe, functions.capped if biased else None, out
        streamed.streamed_attention(q, k.split(pieces, 2), v.split(pieces, 2), *more)
        wanted = [one.nan_to_num(0.0) if safe else one for one in (exact, theirs)]
        compare(f"{name}, {chunks} chunks, safe {safe}", out, *wanted)

decode("few queries", 2, 2, 5, [150], 40)
decode("thin, shared keys in pieces", 2, 2, 1, [129, 1, 70], 72, group=3, masked=True)
decode("thin, inf and nan in pieces", 2, 2, 4, [100, 90], 16, change=special)
decode("thin, large scores", 1, 2, 2, [128], 128, change=shared)
decode("few queries, masked", 1, 3, 16, [140], 16, masked=True)
decode("few queries, inf and nan", 2, 2, 9, [140], 64, masked=True, change=special)
decode("few queries, large scores", 1, 2, 5, [128], 64, change=shared)
decode("shared keys in pieces", 2, 2, 3, [129, 1, 70], 24, group=5, masked=True)
decode("shared keys, inf and nan in pieces", 2, 2, 4, [100, 90], 16, group=2, change=special)
decode("capped, with a bias", 2, 2, 1, [300, 1], 64, group=4, biased=True)
decode("capped, with a bias, masked, scores beyond the limit", 2, 2, 3, [150], 16, group=2, masked=True, biased=True, change=lambda q, k, v: q[1, 0, 1].mul_(60.0))
attend("large heads, an infinite value", 1, 1, 20, 40, 136, change=lambda q, k, v: v[0, 0, 3, 130:131].fill_(torch.inf))
print(json.dumps(found))
"""


SCANS = """
for rows, cols in ((3, 1), (2, 100), (4, 700)):
    x = 20 * torch.randn(rows, cols)
    x[2:3] = -torch.inf
    if cols > 1:
        x[0, :5], x[1, 40:], x[0, 60] = -torch.inf, -torch.inf, torch.nan
        x[1, 30], x[-1, 0], x[-1, 70:90] = torch.inf, -torch.inf, 300.0
    if rows == 4:
        x[3, :256], x[3, 256:512] = -200.0, torch.linspace(-150, 150, 256)  # exp(-300) is zero
    scans.PART = 256
    compare(f"{rows} {cols}", scans.running_logsumexp(x, torch.full_like(x, 7.0)), x.double().logcumsumexp(-1), x.logcumsumexp(-1))
print(json.dumps(found))
"""


SPARSEMAX = """
import importlib
kernel = importlib.import_module("agent.kernels.tasks.sparsemax.triton").ModelNew()
reference = importlib.import_module("kernelbench_tasks.level1.sparsemax").Model()
x = torch.randn(9, 37)
x[1, 3], x[2, 4], x[3, 4], x[4], x[6] = torch.nan, torch.inf, -torch.inf, -torch.inf, 0.0
compare("rows with what is no number", kernel(x), reference(x.double()), reference(x))
print(json.dumps(found))
"""


#: At night all cases of a program run.
whole_or_by_day = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])


@whole_or_by_day
@pytest.mark.parametrize(
    "program",
    [PRODUCTS, CONVOLUTIONS, DIRECT, WINDOWS, ATTENTION, SCANS, SPARSEMAX],
    ids=["products", "convolutions", "direct", "windows", "attention", "scans", "sparsemax"],
)
def test_kernels_are_as_accurate_as_float32_and_keep_inf_and_nan(
    tmp_path: Path, program: str, whole: bool
) -> None:
    rows = run_program(tmp_path, f"WHOLE = {whole}" + _START + program)
    assert rows
    for row in rows:
        assert row["same"], row
        if row["name"] == "one part":  # as TF32; also shows that a lost low part would be seen
            assert 1e-5 < row["error"] < 1e-3, row
        elif row["name"] == "large means":  # float32's rounded scores show in the weights
            assert row["error"] < 2.5e-7 < row["float32"] / 10, row
        else:
            assert row["error"] < max(2.5e-7, 2 * row["float32"]), row


RANKS = """
def same(a, b):
    return torch.equal(a.nan_to_num(9.0, 8.0, 7.0), b.nan_to_num(9.0, 8.0, 7.0))

SHAPES = (5, 7), (3, 2, 100), (1, 1)
for dtype, shapes in ((torch.float32, (*SHAPES, (2, 3000), (33, 64))), (torch.float16, SHAPES), (torch.bfloat16, SHAPES)):
    for shape in shapes:
        if skipped(f"{dtype} {shape}"):
            continue
        x = torch.randn(shape).to(dtype)
        if x.numel() > 20:
            x[0, ..., 1], x[1, ..., 4], x[0, ..., 3], x[1, ..., 3] = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf])
            x[-1, ..., 0], x[-1, ..., 2], x[-1, ..., 4] = -0.0, 0.0, x[-1, ..., 5]
        wrong = []
        for taken in (1, 3, 7):
            if taken <= shape[-1]:
                for largest in (True, False):
                    values, places = ranks.top(x, taken, largest)
                    wanted, at = x.sort(dim=-1, descending=largest, stable=True)
                    if not same(values, wanted[..., :taken]) or not torch.equal(places, at[..., :taken]):
                        wrong.append((taken, largest))
                if not same(ranks.ranked(x, taken - 1, False), x.kthvalue(taken, -1).values):
                    wrong.append(taken)
        if not same(ranks.ranked(x, (shape[-1] - 1) // 2, True), x.median(-1).values):
            wrong.append("median")
        found.append({"name": f"{dtype} {shape}", "wrong": wrong})
ranks.SORTED_PIECE, ranks.MOST_COLS = 256, 1024
x = torch.randn(3, 700).round(decimals=1)
x[0, 7:650:7], x[1, 9], x[1, 500], x[2, 3:] = torch.nan, torch.inf, -torch.inf, -torch.inf
lengths = x[:, :300].contiguous(), x.bfloat16(), torch.cat([x] * 2, 1)
for taken, several in ((17, lengths), (50, (x,)), (64, (x[:, :300].contiguous(), x[:, :64].contiguous()))):
    for largest in (True, False):
        for each in several:
            if skipped(f"{taken} of {each.shape[1]} {largest}"):
                continue
            values, places = ranks.top(each, taken, largest)
            wanted, at = each.sort(dim=-1, descending=largest, stable=True)
            right = same(values, wanted[:, :taken]) and torch.equal(places, at[:, :taken])
            found.append({"name": f"{taken} of {each.shape[1]}", "wrong": [] if right else [largest]})
values, places = ranks.top(torch.cat([x] * 2, 1), 3, True)
wanted, at = torch.cat([x] * 2, 1).sort(dim=-1, descending=True, stable=True)
found.append({"name": "few of a long row", "wrong": [] if torch.equal(places, at[:, :3]) else [3]})
print(json.dumps(found))
"""

DISTANCES = """
for batches, points, others, dims in ((1, 5, 7, 3), (2, 70, 130, 33), (1, 1, 1, 1)):
    x, z = torch.randn(batches, points, dims) * 3, torch.randn(batches, dims, others).transpose(1, 2)
    z[:, 0] = x[:, 0] + 1e-5
    if points > 5:
        x[0, 3, 0], z[0, 4, 0] = torch.inf, torch.nan
    for p in (1.0, 2.0):
        out = distances.distances(x, z, p == 2.0)
        wanted = torch.cdist(x.double(), z.double(), p, "donot_use_mm_for_euclid_dist")
        wrong = not torch.allclose(out.double(), wanted, rtol=1e-6, atol=1e-12, equal_nan=True)
        found.append({"name": f"{p} {dims}", "wrong": ["values"] * wrong})
print(json.dumps(found))
"""


SCATTERS = """
def check(name, out, index, x, kind):
    if skipped(name + kind):
        return
    wanted = out.double().index_add(0, index, x.double()) if kind == "sum" else out.scatter_reduce(
        0, index.view(-1, *[1] * (x.dim() - 1)).expand_as(x), x, "a" + kind)
    got = scatters.scatter(out.clone(), index, x, kind)
    wrong = got.dtype != x.dtype or not torch.allclose(got.double(), wanted.double(), rtol=1e-5, atol=1e-5, equal_nan=True)
    found.append({"name": name + kind, "wrong": ["values"] * wrong})

def special(x):
    x[3], x[9], x[20], x[31] = torch.nan, -torch.nan, torch.inf, -torch.inf

for count, places in ((2100, 7), (77, 200), (1, 1)):
    for ordered in (True, False):
        index = torch.randint(0, places, (count,))
        index = index.sort().values if ordered else index
        for kind in ("sum", "max", "min"):
            for shape in ((count,), (min(count, 40), 5)):
                x, to = torch.randn(shape), index[:shape[0]]
                if count == 77:
                    special(x)
                start = torch.full((places, *shape[1:]), {"sum": 0.5, "max": -torch.inf, "min": torch.inf}[kind])
                check(f"{shape} {places} {ordered} ", start, to, x, kind)
                whole = torch.randint(-99, 99, shape)
                check(f"{shape} {places} {ordered} whole ", torch.zeros(places, *shape[1:], dtype=torch.int64), to, whole, kind)

for kind in ("max", "min"):
    for nan in (torch.nan, -torch.nan):
        check("nan in out ", torch.tensor([nan, 1.0]), torch.tensor([0, 1]), torch.tensor([2.0, nan]), kind)

lists.PIECE, lists.BLOCK = 512, 128
for sizes in ([1], [5, 0, 512, 513], [3000, 40, 4]):
    for norm in (False, True):
        many = [torch.randn(size) for size in sizes]
        many[-1][:1] = torch.tensor(torch.nan if len(sizes) == 3 else 1e20)
        got = lists.sums_of_lists(many, norm)
        wanted = torch.stack([one.double().norm() if norm else one.double().sum() for one in many])
        if norm:
            wanted[[bool((one.abs() > 1e19).any()) for one in many]] = torch.inf  # squares of float32
        wrong = not torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
        found.append({"name": f"sums {sizes} {norm}", "wrong": [str(got), str(wanted)] * wrong})

for shape, bins in (((3, 9000), 7), ((2, 5, 40), 300), ((1, 1), 1)):
    for dtype in (torch.int32, torch.int64):
        index, out = torch.randint(0, bins, shape), torch.randint(0, 9, (*shape[:-1], bins))
        got = scatters.count_values(out.clone(), index.to(dtype))
        wrong = not torch.equal(got, out.scatter_add(-1, index, torch.ones_like(index)))
        found.append({"name": f"count {shape}", "wrong": ["values"] * wrong})
print(json.dumps(found))
"""


@whole_or_by_day
@pytest.mark.parametrize("program", [RANKS, DISTANCES, SCATTERS], ids=["ranks", "distances", "scatters"])
def test_order_statistics_distances_and_scatters_are_torch_s(
    tmp_path: Path, program: str, whole: bool
) -> None:
    rows = run_program(tmp_path, f"WHOLE = {whole}" + _START + program)
    assert rows and [row for row in rows if row["wrong"]] == []
