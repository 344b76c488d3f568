"""The library's kernels on a GPU, through the functions that generated code calls."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tests.agent.kernels.errors import error
from tests.agent.kernels.recurrence import follow, follow_along

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("strict_float32")]


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (3000, 1024, 3000),
        (3000, 4096, 3000),
        (1000, 8192, 3000),
        (1000, 9000, 9000),
        (1024, 8192, 8192),
        (128, 16384, 16384),
        (1000, 9000, 1024),
        (256, 131000, 250),
        (600, 65536, 610),
    ],
)
@pytest.mark.parametrize("make", [torch.randn, torch.rand], ids=["of either sign", "positive"])
def test_a_product_is_no_less_accurate_than_cublas(
    m: int, k: int, n: int, make: Callable[..., torch.Tensor]
) -> None:
    from agent.kernels.gpu import calls, products

    torch.manual_seed(0)
    a, b = make(m, k, device="cuda"), make(n, k, device="cuda").t()
    assert products.product_pays(a[None], b[None])
    exact = a.double() @ b.double()
    out = torch.empty(m, n, device="cuda")
    # Where cuBLAS splits sums of numbers of one sign, its error is 1.8e-7.
    most = max(2.5e-7, error(a @ b, exact))
    assert error(calls.library_mm(a, b, out=out), exact) <= most
    bias = make(n, device="cuda")
    calls.library_addmm(bias, a, b, alpha=0.5, beta=2.0, out=out)
    assert error(out, 0.5 * exact + 2.0 * bias.double()) <= most


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_is_as_accurate_as_cudnn(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.kernels.gpu import calls, choice

    torch.manual_seed(0)
    x, w = torch.randn(64, 64, 128, 128, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    run, stride = (F.conv_transpose2d, 2) if transposed else (F.conv2d, 1)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "convolution", lambda *_: pytest.fail("cuDNN was called"))
        patch.setattr(choice, "_products_s", lambda *_: 0.0)
        out = calls.library_convolution(
            x, w, stride=(stride, stride), padding=(1, 1), dilation=(1, 1), transposed=transposed, output_padding=(0, 0),
            groups=1, bias=None,
        )  # fmt: skip
    exact = run(x[:4].double(), w.double(), None, stride, 1)
    assert out[:4].shape == exact.shape
    assert error(out[:4], exact) <= 2 * error(run(x, w, None, stride, 1)[:4], exact)


def test_a_transposed_convolution_of_a_long_stride_writes_each_place() -> None:
    """Every 16th element: a compiler that takes them for neighbors writes over others."""
    from agent.kernels.gpu import calls, choice

    torch.manual_seed(0)
    x, w = torch.randn(8, 256, 4096, device="cuda"), torch.randn(256, 128, 32, device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_products_s", lambda *_: 0.0)
        out = calls.library_convolution(x, w, [16], [0], [1], True, [0], 1)
    exact = F.conv_transpose1d(x.double(), w.double(), None, 16)
    assert out.shape == exact.shape and error(out, exact) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_convolutions_of_any_form(seed: int) -> None:
    """Sizes, strides, dilations and layouts drawn at random; many channels go by the copy engine, which nothing else can run."""
    from agent.kernels.gpu import convolutions

    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(6):
        axes, transposed = draw.choice([1, 2, 2, 3]), draw.random() < 0.5
        sizes = [draw.randint(1, (5000, 70, 20)[axes - 1]) for _ in range(axes)]
        taps, stride, dilation, padding = (
            [draw.choice(of) for _ in range(axes)]
            for of in ([1, 2, 3, 3, 5, 9], [1, 1, 2, 3, 4], [1, 1, 2, 3], [0, 1, 2])
        )
        channels, outs = draw.choice([5, 8, 9, 16, 48, 64, 100]), draw.choice([1, 8, 40, 64, 130])
        images, parts = draw.choice([1, 5]), draw.choice([1, 2, 2])
        shape = (channels, outs, *taps) if transposed else (outs, channels, *taps)
        # Of one sign, so that what tensor cores cut off adds up.
        x, w, bias = (torch.rand(*of, device="cuda") for of in ((images, channels, *sizes), shape, (outs,)))
        run = getattr(F, f"conv{'_transpose' if transposed else ''}{axes}d")
        args = (stride, padding, 0, 1, dilation) if transposed else (stride, padding, dilation)
        try:
            exact = run(x.double(), w.double(), bias.double(), *args)
        except RuntimeError:  # no output
            continue
        if not exact.numel():
            continue
        x = x.to(
            memory_format=draw.choice(
                [torch.contiguous_format, *([torch.channels_last] if axes == 2 else [])]
            )
        )
        most = 1e-3 if parts == 1 else max(5e-7, 2 * error(run(x, w, bias, *args), exact))
        for _ in range(2):  # the second launch goes past Triton's look-ups
            out = torch.full_like(exact, 7.0, dtype=torch.float32)
            convolutions.convolution(x, w, bias, stride, padding, dilation, transposed, out, parts)
            assert error(out, exact) <= most, (x.shape, w.shape, args, parts)


@triton.jit
def _silu_and_more(x, a, b):  # type: ignore[no-untyped-def]
    return x * tl.sigmoid(x) * a + b


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize(("transposed", "dilation"), [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize("whole", [False, True])
def test_pointwise_operations_after_a_convolution(
    whole: bool, transposed: bool, dilation: int, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the operations make something of the bias alone: outputs that no input reaches, of a dilation like the stride."""
    from agent.kernels.gpu import calls, choice

    torch.manual_seed(0)
    x, w, bias = torch.randn(8, 16, 6, 40, 44), torch.randn(16, 16, 3, 3, 3), torch.randn(16)
    x[5, 3, 2, 7, 8] = float("inf")
    x, w, bias = x.cuda(), w.cuda(), bias.cuda()
    stride = 2 if transposed else 1
    run = F.conv_transpose3d if transposed else F.conv3d
    more = (0, 1, dilation) if transposed else ()
    exact = run(x.double(), w.double(), bias.double(), stride, 1, *more)
    one = torch.randn(exact.shape if whole else (16, 1, 1, 1), device="cuda")
    two = None if whole else torch.randn(16, 1, 1, 1, device="cuda")
    exact = F.silu(exact) * one + (0.0 if two is None else two)
    monkeypatch.setattr(choice, "_products_s", lambda *_: 0.0 if pays else float("inf"))
    args = (x, w, [stride] * 3, [1] * 3, [dilation] * 3, transposed, [0] * 3, 1, bias)
    for _ in range(2):  # the second launch goes past Triton's look-ups
        got = calls.library_convolution(*args, _silu_and_more, one, two)
        finite = exact.isfinite()
        assert torch.equal(got.isnan(), exact.isnan()) and torch.equal(got.isfinite(), finite)
        assert error(got[finite], exact[finite]) < 1e-6


@triton.jit
def _relu(x, a, b):  # type: ignore[no-untyped-def]
    return tl.where(x < 0.0, 0.0, x)


@pytest.mark.parametrize("pays", [True, False])
def test_convolutions_side_by_side_write_to_one_tensor(pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By multiply-adds where channels are few, by tensor cores, and by cuDNN."""
    from agent.kernels.gpu import calls, choice

    torch.manual_seed(0)
    x, y = torch.randn(64, 6, 90, 128, device="cuda"), torch.randn(64, 16, 180, 256, device="cuda")
    weights = [torch.randn(*shape, device="cuda") for shape in ((40, 6, 1, 1), (64, 6, 3, 3), (24, 16, 3, 3))]
    biases = [torch.randn(40, device="cuda"), None, torch.randn(24, device="cuda")]
    forms = [1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1]
    exact = [
        F.conv2d(x.double(), weights[0].double(), biases[0].double()),
        F.conv2d(x.double(), weights[1].double(), None, 1, 1),
        F.conv2d(y.double(), weights[2].double(), biases[2].double(), 2, 1),
    ]
    monkeypatch.setattr(choice, "_products_s", lambda *_: 0.0 if pays else float("inf"))
    for _ in range(3):
        got = calls.library_convolutions([x, y], [0, 0, 1], weights, biases, forms, _relu)
        assert error(got, torch.cat(exact, 1).relu()) < 1e-6


@pytest.mark.parametrize("images", [8, 64])
def test_a_convolution_of_few_channels_adds_its_terms_in_float32(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.kernels.gpu import calls, choice

    torch.manual_seed(0)
    x, w, bias = torch.randn(images, 3, 16, 40, 44), torch.randn(12, 3, 3, 3, 3), torch.randn(12)
    x[1, 2, 3, 7, 8] = float("inf")
    x, w, bias, one, two = (each.cuda() for each in (x, w, bias, torch.randn(12), torch.randn(12)))
    exact = F.conv3d(x.double(), w.double(), bias.double(), (1, 2, 1), 1)
    exact = F.silu(exact) * one.view(-1, 1, 1, 1) + two.view(-1, 1, 1, 1)
    monkeypatch.setattr(torch, "convolution", lambda *_: pytest.fail("cuDNN was called"))
    monkeypatch.setattr(choice, "convolution", lambda *_: pytest.fail("tensor cores were asked for"))
    for _ in range(3):  # the third repeats the notes of the second
        got = calls.library_convolution(
            x, w, [1, 2, 1], [1] * 3, [1] * 3, False, [0] * 3, 1, bias, _silu_and_more, one, two
        )
        finite = exact.isfinite()
        assert torch.equal(got.isnan(), exact.isnan()) and torch.equal(got.isfinite(), finite)
        assert error(got[finite], exact[finite]) < 5e-7


@pytest.mark.parametrize("cols", [393216, 100000, 20000, 9000])
def test_softmax_of_long_rows_waits_for_all_pieces(cols: int) -> None:
    from agent.kernels.gpu import rows

    torch.manual_seed(0)
    x = torch.randn(700, cols, device="cuda") * 5
    x[3], x[4, 7], x[5, -1] = -float("inf"), float("inf"), float("nan")
    assert rows.softmax_applies(x)
    for log, run in ((False, torch.softmax), (True, torch.log_softmax)):
        for _ in range(3):
            out = rows.softmax(x, torch.full_like(x, 7.0), log)
            assert torch.allclose(out, run(x, -1), atol=1e-6, rtol=1e-5, equal_nan=True)


def test_windows_are_those_of_torch() -> None:
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    x = torch.randn(8, 64, 33, 130, 70, device="cuda")
    got = calls.library_mean_pool(x, [3, 3, 3], [2, 2, 2], [1, 1, 1], False, 0)
    assert torch.allclose(got, F.avg_pool3d(x, 3, 2, 1), atol=1e-6)
    plane = x[:, :, 0].contiguous().repeat(6, 1, 1, 1)
    plane[1, 2, 3, 4] = float("nan")
    got = calls.library_max_pool(plane, [4, 4], [1, 1], [1, 1], [1, 1])
    assert torch.equal(got.nan_to_num(9), F.max_pool2d(plane, 4, 1, 1).nan_to_num(9))
    weight = torch.randn(64, 1, 3, 7, device="cuda")
    got = calls.library_convolution(plane, weight, [1, 1], [1, 3], [1, 1], False, [0, 0], 64)
    exact = F.conv2d(plane.double(), weight.double(), None, 1, (1, 3), 1, 64)
    finite = exact.isfinite()
    assert torch.equal(finite, got.isfinite())
    assert error(got[finite], exact[finite]) < 2e-7


@triton.jit
def _capped(x, m):  # type: ignore[no-untyped-def]
    return 5.0 * tl.sigmoid(x / 5.0) - m


@pytest.mark.parametrize("capped", [False, True])
def test_queries_share_heads_of_keys_that_lie_in_pieces(capped: bool) -> None:
    from agent.kernels.gpu import calls, streamed

    torch.manual_seed(0)
    q = torch.randn(8, 32, 1, 128, device="cuda")
    pieces = [torch.randn(2, 8, 8, count, 128, device="cuda") for count in (4097, 1)]
    (keys, values) = ([one[at] for one in pieces] for at in (0, 1))
    excluded = (
        torch.arange(4098, device="cuda")
        >= torch.tensor([1, 700, 4098, 3000] * 2, device="cuda")[:, None, None, None]
    )
    keys[0][1, :, 900] = torch.nan  # excluded
    bias = 100 * torch.rand(32, 1, 4098, device="cuda") if capped else None

    def run(kind: torch.dtype) -> torch.Tensor:
        k, v = (torch.cat(one, 2).to(kind).repeat_interleave(4, 1) for one in (keys, values))
        scores = (q.to(kind) @ k.transpose(2, 3)) * 0.2
        scores = scores if bias is None else 5 * torch.sigmoid(scores / 5) - bias
        return scores.masked_fill(excluded, -torch.inf).softmax(-1) @ v

    assert streamed.streaming_applies(q, keys, values) and streamed.streaming_pays(q, keys)
    more = (bias, 0.2, not capped, _capped if capped else None)
    got = calls.library_decoding(q, keys, values, excluded, *more)
    assert error(got, run(torch.float64)) <= 2 * error(run(torch.float32), run(torch.float64))


@pytest.mark.parametrize("shape", [(8, 2048, 512), (2, 5000, 3), (300, 3000)])
def test_a_scan_of_pairs_is_the_recurrence(shape: tuple[int, ...]) -> None:
    """Also in chunks, where few sequences lie side by side."""
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    gate, b = torch.rand(shape, device="cuda"), torch.randn(shape, device="cuda")
    h, wanted = torch.zeros_like(b[:, 0], dtype=torch.float64), []
    for place in range(shape[1]):
        h = gate[:, place].double() * h + b[:, place]
        wanted.append(h)
    for _ in range(2):
        got = calls.library_scan(b, gate, 1, (follow, follow_along), None)
        assert error(got, torch.stack(wanted, 1)) < 2e-7


def test_gathered_matrices_are_multiplied_where_they_lie() -> None:
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    index = torch.randint(-64, 64, (512,), device="cuda")
    for m, ks in ((16, 4096), (4096, 16), (70, 300)):
        weights, x = torch.randn(64, m, ks, device="cuda"), torch.randn(512, ks, device="cuda")
        exact = torch.bmm(weights.double()[index], x.double()[:, :, None])[:, :, 0]
        for _ in range(2):
            assert error(calls.library_gathered(weights, index, x), exact) < 3e-7


@pytest.mark.parametrize(
    "sizes", [(64, 2, 64, 8, 64, 16), (33, 3, 40, 5, 70, 17), (2, 1, 100, 3, 9, 128), (9, 2, 64, 4, 64, 64)]
)
def test_einsums_of_small_matrices_have_the_accuracy_of_float32(sizes: tuple[int, ...]) -> None:
    """States of a state-space model in chunks, where torch copies all inputs into another order."""
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    batch, chunks, length, heads, dims, state = sizes
    equation = "bclhn,bclhp,bhcl->bchpn"
    given = [torch.rand(batch, chunks, length, heads, size, device="cuda") for size in (state, dims)]
    given.append(torch.rand(batch, heads, chunks, length, device="cuda"))
    exact = torch.einsum(equation, *(one.double() for one in given))
    for _ in range(3):
        assert error(calls.library_contraction(equation, *given), exact) < 3e-7
    given[1][0, 0, 1, 1, 2], given[2][1, 2, 0, 3] = torch.inf, torch.nan
    found, exact = calls.library_contraction(equation, *given), torch.einsum(equation, *given)
    assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found.isinf(), exact.isinf())
    assert torch.allclose(found, exact, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("last", [True, False])
def test_sums_of_bags_are_those_of_torch(last: bool) -> None:
    """Bags without a row, and one with many."""
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    for width in (1, 100, 256):
        table, ids = (
            torch.randn(5000, width, device="cuda"),
            torch.randint(-5000, 5000, (70_000,), device="cuda"),
        )
        ends = torch.randint(0, 60_000, (3000,), device="cuda").sort().values
        offsets = torch.cat([ends.new_zeros(2), ends, ends.new_full((int(last),), 70_000)])
        weight = torch.randn(70_000, device="cuda")
        rows = (table.double()[ids] * weight.double()[:, None]).float()
        places = torch.searchsorted(offsets, torch.arange(70_000, device="cuda"), right=True) - 1
        exact = torch.zeros(3002, width, dtype=torch.float64, device="cuda").index_add(
            0, places, rows.double()
        )
        for _ in range(2):
            assert error(calls.library_bags(table, ids, offsets, weight, last, True), exact) < 1e-6


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_thin_products_are_as_accurate_as_float32(m: int) -> None:
    from agent.kernels.gpu import thin

    torch.manual_seed(0)
    for ks, n in ((128, 4096), (4096, 128), (77, 1001), (5000, 33)):
        a, b = torch.randn(64, m, ks, device="cuda"), torch.randn(64, n, ks, device="cuda").transpose(1, 2)
        for right in (b, b.contiguous()):
            for _ in range(2):
                got = thin.thin_products(a, right, torch.empty(64, m, n, device="cuda"))
                assert error(got, a.double() @ b.double()) < 1e-6


@pytest.mark.parametrize("shape", [(4096, 32000), (65536, 256), (65536, 511), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_order_statistics_are_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from agent.kernels.gpu import ranks

    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda").to(dtype)
    x[0, ..., 1], x[1, ..., 2], x[2, ..., 3] = float("nan"), float("inf"), -float("inf")
    assert ranks.ranks_apply(x)
    for _ in range(2):  # the second launch goes past Triton's look-ups
        for largest in (True, False):
            values, places = ranks.top(x, 5, largest)
            wanted, at = x.sort(dim=-1, descending=largest, stable=True)
            assert torch.equal(places, at[..., :5])
            assert torch.allclose(values, wanted[..., :5], 0, 0, equal_nan=True)
        median = ranks.ranked(x, (shape[-1] - 1) // 2, True)
        assert torch.allclose(median, x.median(-1).values, 0, 0, equal_nan=True)
        assert torch.allclose(ranks.ranked(x, 2, False), x.kthvalue(3, -1).values, 0, 0, equal_nan=True)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_distances_are_as_accurate_as_torch_s(p: float) -> None:
    from agent.kernels.gpu import distances

    torch.manual_seed(0)
    x, z = torch.randn(3, 700, 33, device="cuda"), torch.randn(3, 33, 1000, device="cuda").transpose(1, 2)
    exact = torch.cdist(x.double(), z.double(), p, "donot_use_mm_for_euclid_dist")
    out = distances.distances(x, z, p == 2.0)
    theirs = torch.cdist(x, z, p, "donot_use_mm_for_euclid_dist")
    assert error(out, exact) <= max(1e-7, 2 * error(theirs, exact))


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_scatters_are_those_of_torch(kind: str, is_ordered: bool) -> None:
    from agent.kernels.gpu import scatters

    torch.manual_seed(0)
    for count, places, cols in ((1 << 20, 700, None), (100_000, 3000, 130), (5, 2, 300)):
        index = torch.randint(0, places, (count,), device="cuda")
        index = index.sort().values if is_ordered else index
        x = torch.randn(count, *[] if cols is None else [cols], device="cuda")
        whole = torch.randint(-1000, 1000, x.shape, device="cuda")
        if kind != "sum":
            x[1], x[3], x[4] = float("nan"), -float("nan"), float("inf")
        start = {"sum": 0.5, "max": -float("inf"), "min": float("inf")}[kind]
        for values, out in (
            (x, x.new_full((places, *x.shape[1:]), start)),
            (whole, whole.new_zeros((places, *x.shape[1:]))),
        ):
            assert scatters.scatter_applies(out, index, values)
            for _ in range(2):
                got = scatters.scatter(out.clone(), index, values, kind)
                if kind == "sum":
                    wanted = out.double().index_add(0, index, values.double())
                    assert torch.allclose(got.double(), wanted, rtol=1e-4, atol=1e-3)
                else:
                    each = index.view(-1, *[1] * (x.dim() - 1)).expand_as(values)
                    wanted = out.scatter_reduce(0, each, values, f"a{kind}")
                    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(
                        got.nan_to_num(), wanted.nan_to_num()
                    )


def test_counts_tiny_products_and_small_groups_are_those_of_torch() -> None:
    from agent.kernels.gpu import calls, scatters, tiny

    torch.manual_seed(0)
    for rows, cols, bins in ((100, 16384, 256), (3, 1_000_000, 4000)):
        index, out = (
            torch.randint(0, bins, (rows, cols), device="cuda"),
            torch.randint(0, 9, (rows, bins), device="cuda"),
        )
        wanted = out.scatter_add(-1, index, torch.ones_like(index))
        for dtype in (torch.int32, torch.int64):
            assert torch.equal(scatters.count_values(out.clone(), index.to(dtype)), wanted)
    a, b = (
        torch.randn(100_000, 5, 7, device="cuda"),
        torch.randn(100_000, 3, 7, device="cuda").transpose(1, 2),
    )
    assert tiny.tiny_pays(a, b)
    got = calls.library_bmm(a, b, out=torch.empty(100_000, 5, 3, device="cuda"))
    assert error(got, a.double() @ b.double()) < 2e-7
    for sizes, stride in (((5000,), 1), ((64, 64), 1), ((20, 20, 20), 2)):
        dims = len(sizes)
        x, weight = torch.randn(64, 50, *sizes, device="cuda"), torch.randn(40, 5, *[3] * dims, device="cuda")
        exact = (F.conv1d, F.conv2d, F.conv3d)[dims - 1](x.double(), weight.double(), None, stride, 1, 1, 10)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "convolution", lambda *_: pytest.fail("torch's was called"))
            got = calls.library_convolution(
                x, weight, [stride] * dims, [1] * dims, [1] * dims, False, [0] * dims, 10
            )
        assert error(got, exact) < 3e-7


@pytest.mark.parametrize("taken", [17, 50])
def test_many_of_the_largest_of_a_long_row_are_those_of_a_sorted_row(taken: int) -> None:
    from agent.kernels.gpu import ranks

    torch.manual_seed(0)
    for x in (torch.randn(70, 128256, device="cuda"), torch.randn(5000, 300, device="cuda").bfloat16()):
        x[0, 1:200:3], x[1, 2], x[2, 3] = float("nan"), float("inf"), -float("inf")
        for _ in range(2):
            for largest in (True, False):
                values, places = ranks.top(x, taken, largest)
                wanted, at = x.sort(dim=-1, descending=largest, stable=True)
                assert torch.equal(places, at[:, :taken])
                assert torch.allclose(values, wanted[:, :taken], 0, 0, equal_nan=True)


@pytest.mark.parametrize("shape", [(4096, 8192), (3, 100000), (7000, 30)])
def test_a_running_logsumexp_is_torch_s(shape: tuple[int, int]) -> None:
    from agent.kernels.gpu import scans

    torch.manual_seed(0)
    x = 20 * torch.randn(shape, device="cuda")
    x[1, :5], x[2, 20] = -float("inf"), float("inf")
    for _ in range(2):
        out = scans.running_logsumexp(x, torch.empty_like(x))
        assert torch.allclose(out.double(), x.double().logcumsumexp(-1), 1e-6, 1e-5, equal_nan=True)


@triton.jit
def _four_bits(row, j, first, there, row_there, p0, p1, p2, p3):  # type: ignore[no-untyped-def]
    codes = tl.load(p0 + row * 2048 + j, mask=there, other=0)
    code = tl.join((codes & 15).to(tl.float32), (codes >> 4).to(tl.float32))
    return code - 8.0, tl.load(p1 + row * 64 + first // 64, mask=row_there, other=0)


@pytest.mark.parametrize("rows", [1, 16, 100, 700])
def test_packed_weights_are_multiplied_as_accurately_as_those_in_memory(rows: int) -> None:
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    x = torch.randn(rows, 4096, device="cuda")
    codes = torch.randint(0, 256, (5000, 2048), dtype=torch.uint8, device="cuda")
    scale = torch.rand(5000, 64, device="cuda") + 0.1
    scale[3, 5] = float("inf")
    code = torch.stack([codes & 15, codes >> 4], -1).flatten(1).float() - 8
    weight = code * scale.repeat_interleave(64, 1)
    exact, single = x.double() @ weight.double().t(), x @ weight.t()
    finite = single.isfinite()
    with pytest.MonkeyPatch.context() as patch:
        if rows < 128:
            patch.setattr(torch, "mm", lambda *_, **__: pytest.fail("torch's was called"))
        for _ in range(2):
            out = calls.library_packed(x, [codes, scale], 5000, _four_bits, 2)
            assert torch.equal(out.isfinite(), finite)
            assert error(out[finite], exact[finite]) <= max(3e-7, error(single[finite], exact[finite]))


@pytest.mark.parametrize("norm", [False, True])
def test_sums_of_many_tensors_are_torch_s_also_in_a_graph(norm: bool) -> None:
    from agent.kernels.gpu import calls, lists

    torch.manual_seed(0)
    sizes = [1, 64, 0, 70000, 200001, 4096] * 40
    many = [torch.randn(size + 1, device="cuda")[1:] for size in sizes]  # not aligned
    many[7][3] = torch.nan
    run = torch.linalg.vector_norm if norm else torch.sum

    def wanted() -> torch.Tensor:
        return torch.stack([run(one.double()) for one in many]).float()

    def check(got: torch.Tensor) -> None:
        torch.testing.assert_close(got, wanted(), rtol=1e-4, atol=2e-3, equal_nan=True)

    check(calls.library_sums(many, norm))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = calls.library_sums(many, norm)
    for one in many:
        one.mul_(0.5)
    graph.replay()
    check(out)
    lists._places.clear()
    lists._tables.clear()
    _ = [torch.zeros(len(many), dtype=torch.int64, device="cuda") for _ in range(99)]  # where tables were
    for one in many:
        one.mul_(2.0)
    graph.replay()
    check(out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # no table of addresses is there yet
        out = calls.library_sums(many, norm)
    graph.replay()
    check(out)
