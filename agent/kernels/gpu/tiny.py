"""Products of very many matrices of a few rows and columns, which are bound by memory; cuBLAS takes 3 ns for each (H100)."""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.products import with_launches


@triton.jit
def _multiply_tiny(a_ptr, b_ptr, out_ptr, count, a_batch, a_row, a_k, b_batch, b_k, b_col, out_batch, out_row, out_col,
                   M: tl.constexpr, N: tl.constexpr, KS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Neighboring elements of the result, whose operands the caches hold."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there, batch, row, col = at < count, at // (M * N), at % (M * N) // N, at % N
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in tl.static_range(KS):
        a = tl.load(a_ptr + batch * a_batch + row * a_row + k * a_k, mask=there, other=0.0)
        b = tl.load(b_ptr + batch * b_batch + k * b_k + col * b_col, mask=there, other=0.0)
        total += a * b
    tl.store(out_ptr + batch * out_batch + row * out_row + col * out_col, total, mask=there)


@repeated
def tiny_products(a, b, out):
    """out = a @ b for a (batch, m, k), b (batch, k, n); all float32."""
    batches, m, ks = a.shape
    n = b.shape[2]
    launch(
        _multiply_tiny, (-(-out.numel() // 1024),), (a, b, out), (out.numel(), *a.stride(), *b.stride(), *out.stride()),
        M=m, N=n, KS=ks, BLOCK=1024,
    )  # fmt: skip
    return out


def tiny_pays(a, b):
    """Whether `tiny_products` can multiply a (batch, m, k) and b (batch, k, n) and is faster than cuBLAS."""
    batches, m, ks = a.shape
    n = b.shape[2]
    if not (a.is_cuda and a.dtype == b.dtype == torch.float32 and 0 < ks <= 32 and 0 < m * n <= 256):
        return False
    return with_launches(4 * batches * (m * ks + ks * n + m * n) / 2e12, 1) < 0.95 * 2e-9 * batches
