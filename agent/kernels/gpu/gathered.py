"""Products of rows with matrices that an index picks for each, read where they lie: torch copies them next to one another first."""

import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated


@triton.jit(do_not_specialize=["rows", "m", "ks", "matrices"])
def _multiply_gathered(w_ptr, index_ptr, x_ptr, out_ptr, rows, m, ks, matrices, w_matrix, w_row, w_k,
                       BM: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Some results of one row of x; NaN where its index is of no matrix."""
    row = (tl.program_id(0) % rows).to(tl.int64)
    col = tl.program_id(0) // rows * BM + tl.arange(0, BM)
    which = tl.load(index_ptr + row).to(tl.int64)
    which = tl.where(which < 0, which + matrices, which)
    is_one = (which >= 0) & (which < matrices)
    base = w_ptr + which * w_matrix + col.to(tl.int64)[:, None] * w_row
    total = tl.zeros((BM, BK), dtype=tl.float32)
    for first in tl.range(0, ks, BK):
        k = first + tl.arange(0, BK)
        there = (col < m)[:, None] & (k < ks)[None, :] & is_one
        w = tl.load(base + k.to(tl.int64)[None, :] * w_k, mask=there, other=0.0)
        total += w * tl.load(x_ptr + row * ks + k, mask=k < ks, other=0.0)[None, :]
    result = tl.where(is_one, tl.sum(total, axis=1), float("nan"))
    tl.store(out_ptr + row * m + col, result, mask=col < m)


@repeated
def multiply_gathered(weights, index, x, out):
    """out[i] = weights[index[i]] @ x[i] for weights (matrices, m, k), x (rows, k), out (rows, m); float32, x and out contiguous."""
    matrices, m, ks = weights.shape
    part = min(triton.next_power_of_2(ks), 512)
    results = min(triton.next_power_of_2(m), max(1, 4096 // part))
    launch(
        _multiply_gathered, (x.shape[0] * -(-m // results),), (weights, index, x, out),
        (x.shape[0], m, ks, matrices, *weights.stride()),
        BM=results, BK=part,
    )  # fmt: skip
    return out
