"""Attention on a GPU: as accurate as torch's, by our kernels where that is asked."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tests.agent.kernels.errors import error

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("strict_float32")]


@pytest.mark.parametrize(("dims", "shared"), [(64, 0.0), (96, 0.0), (256, 0.0), (96, 1000.0)])
def test_attention_is_as_accurate_as_torch(dims: int, shared: float) -> None:
    """Also where large scores lie near one another: the tensor core's truncated sums would show there."""
    from agent.kernels.gpu import calls, products

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 8, 1024, 8, dims, device="cuda").transpose(2, 3)
    k += shared * torch.randn(dims, device="cuda")
    excluded = torch.ones(1024, 1024, device="cuda").tril()[None, None] == 0
    scale = dims**-0.5

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((q @ k.transpose(2, 3)) * scale).masked_fill(excluded, -torch.inf).softmax(-1) @ v

    exact = run(q.double(), k.double(), v.double())
    for mask, causal in ((excluded, False), (None, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "LAUNCH_S", 0.0)
            for owner, name in ((torch, "softmax"), (F, "scaled_dot_product_attention")):
                patch.setattr(owner, name, lambda *_, **__: pytest.fail("torch's was called"))
            got = calls.library_attention(q, k, v, mask, scale, causal)
        assert error(got, exact) <= 2 * error(run(q, k, v), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [64, 128, 80])
def test_fused_attention_of_halves_is_as_accurate_as_torch(dims: int, dtype: torch.dtype) -> None:
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 700, 6, dims, device="cuda", dtype=dtype).transpose(2, 3)
    excluded = torch.rand(4, 1, 700, 700, device="cuda") < 0.3
    excluded[1, 0, 5] = True
    for mask, causal, safe in (
        (None, False, True),
        (None, True, True),
        (excluded, False, True),
        (excluded, False, False),
    ):
        counts = None if mask is None else ~mask
        exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), counts, is_causal=causal)
        torch_s = F.scaled_dot_product_attention(q, k, v, counts, is_causal=causal)
        got = calls.library_attention(q, k, v, mask, None, causal, safe)
        assert got.transpose(1, 2).is_contiguous()
        assert got.isnan().any() == (not safe)
        if not safe:
            assert got[1, :, 5].isnan().all()
            assert got.isnan().sum() == 6 * dims
            got = got.nan_to_num(0.0)
        assert error(got, exact) <= 1.5 * error(torch_s, exact)


@pytest.mark.parametrize(("queries", "dims"), [(1, 128), (5, 64), (16, 256), (7, 72)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_few_queries_is_as_accurate_as_torch(queries: int, dims: int, masked: bool) -> None:
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    q = torch.randn(3, queries, 8, dims, device="cuda").transpose(1, 2)
    k, v = torch.randn(2, 3, 8, 20000, dims, device="cuda")
    excluded = torch.rand(3, 1, 1, 20000, device="cuda") < 0.4
    excluded[1] = True
    counts = ~excluded if masked else None
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), counts)
    torch_s = F.scaled_dot_product_attention(q, k, v, counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", lambda *_, **__: pytest.fail("torch's was called"))
        more = (None, None, True, None)
        got = calls.library_decoding(q, [k], [v], excluded if masked else None, *more)
        k[0, 1, 77, 3], v[2, 3, 5, 6] = torch.nan, torch.inf
        special = calls.library_decoding(q, [k], [v], None, *more)
    assert error(got, exact) <= 2 * error(torch_s, exact)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double()).float()
    torch.testing.assert_close(special, exact, rtol=1e-4, atol=1e-5, equal_nan=True)


@triton.jit
def _decayed(x, m):  # type: ignore[no-untyped-def]
    return tl.where(x < 0.0, 0.0, x) * m


@pytest.mark.parametrize("dims", [64, 96, 128])
def test_weights_that_are_no_softmax_are_as_accurate_as_torch(dims: int) -> None:
    from agent.kernels.gpu import calls, products

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 8, 1024, 8, dims, device="cuda").transpose(2, 3)
    decay = torch.rand(8, 1024, 1024, device="cuda") ** 4
    exact = ((q.double() @ k.double().transpose(2, 3)).relu() * decay) @ v.double()
    torch_s = error(((q @ k.transpose(2, 3)).relu() * decay) @ v, exact)
    for launch_s in (0.0, 1.0):  # in one kernel, and apart
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "LAUNCH_S", launch_s)
            calls._attention.known.clear()
            assert (
                error(calls.library_attention(q, k, v, decay, 1.0, False, False, _decayed), exact)
                <= 2 * torch_s
            )
    q[1, 2, 30] = float("nan")
    calls._attention.known.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "LAUNCH_S", 0.0)
        got = calls.library_attention(q, k, v, decay, 1.0, False, False, _decayed)
    assert got[1, 2, 30].isnan().all() and got.isnan().sum() == dims
