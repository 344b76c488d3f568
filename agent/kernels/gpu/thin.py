"""Batched products of up to four rows, bound by reading the other operand, as in decoding: 1.1x to 2x cuBLAS (H200).

With eight rows, sums take more registers than there are, and cuBLAS is faster; so it is where many columns lie next to one another.
"""

import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.products import add_parts, memory_rate, processors, with_launches

#: Rows; of more, a thread cannot hold the sums.
MOST_THIN = 4


@triton.jit(do_not_specialize=["m"])
def _multiply_thin(a_ptr, b_ptr, out_ptr, m, n, ks, per, a_batch, a_row, a_k, b_batch, b_k, b_col, out_split, out_batch,
                   ROWS: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, ALONG_K: tl.constexpr):  # fmt: skip
    """Some columns of one product, from the terms of one split. Sums of each row lie as the other operand does in memory."""
    tiles = tl.cdiv(n, BN)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    col = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    begin = tl.program_id(1) * per
    end = tl.minimum(begin + per, ks)
    a_ptr += batch * a_batch
    b_ptr += batch * b_batch
    none = tl.zeros((BN, BK) if ALONG_K else (BK, BN), dtype=tl.float32)
    totals = (none,) * ROWS
    for first in tl.range(begin, end, BK):
        k = first + tl.arange(0, BK)
        if ALONG_K:
            there = (col < n)[:, None] & (k < end)[None, :]
            b = tl.load(b_ptr + col.to(tl.int64)[:, None] * b_col + k[None, :], mask=there, other=0.0)
        else:
            there = (k < end)[:, None] & (col < n)[None, :]
            b = tl.load(b_ptr + k.to(tl.int64)[:, None] * b_k + col[None, :], mask=there, other=0.0)
        sums = ()
        for row in tl.static_range(ROWS):
            a = tl.load(a_ptr + row * a_row + k.to(tl.int64) * a_k, mask=(k < end) & (row < m), other=0.0)
            more = totals[row] + b * (a[None, :] if ALONG_K else a[:, None])
            sums = sums + (more,)  # noqa: RUF005 - Triton knows no unpacking
        totals = sums
    at = tl.program_id(1).to(tl.int64) * out_split + batch * out_batch + col
    for row in tl.static_range(ROWS):
        tl.store(
            out_ptr + at + row * n, tl.sum(totals[row], axis=1 if ALONG_K else 0), mask=(col < n) & (row < m)
        )


@repeated
def thin_products(a, b, out):
    """out = a @ b for a (batch, m, k), b (batch, k, n) with k or n next to one another; out contiguous; all float32."""
    batches, m, ks = a.shape
    n, along_k = b.shape[2], b.stride(1) == 1
    rows = triton.next_power_of_2(m)
    if along_k:
        part, cols = min(triton.next_power_of_2(ks), 128), min(triton.next_power_of_2(n), 32)
    else:
        part, cols = (
            min(triton.next_power_of_2(ks), max(4, 256 // rows**2)),
            min(triton.next_power_of_2(n), 128),
        )
    tiles = batches * triton.cdiv(n, cols)
    splits = max(1, min(16 * processors(a.device) // tiles, ks // (8 * part), 64))
    per = triton.cdiv(triton.cdiv(ks, splits), part) * part
    splits = triton.cdiv(ks, per)
    sums = out if splits == 1 else out.new_empty((splits, *out.shape))
    launch(
        _multiply_thin, (tiles, splits), (a, b, sums), (m, n, ks, per, *a.stride(), *b.stride(), out.numel(), m * n),
        ROWS=rows, BK=part, BN=cols, ALONG_K=along_k, num_warps=8 if along_k else 4,
    )  # fmt: skip
    if splits > 1:
        add_parts(sums.view(splits, -1, n), None, out.view(-1, n), 1.0, 0.0)
    return out


def thin_pays(a, b, out):
    """Whether `thin_products` can multiply a (batch, m, k) and b (batch, k, n), both float32, and is faster than cuBLAS."""
    batches, m, ks = a.shape
    n = b.shape[2]
    if not 0 < m <= MOST_THIN or batches < 2 or ks * n == 0 or ks * n >= 1 << 31 or not out.is_contiguous():
        return False
    if b.stride(1) != 1 and not (b.stride(2) == 1 and m > 1 and n <= 256 < ks):
        return False
    read_s = 4 * batches * ks * n / memory_rate(b.device)
    return with_launches(read_s, 2) < 1.4 * read_s  # cuBLAS's, of the sizes that were timed on an H200
