"""Distances between all pairs of two sets of points, by differences: no digits are lost where points are close."""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated


@triton.jit(do_not_specialize=["points", "others", "dims"])
def _distances(x_ptr, z_ptr, out_ptr, points, others, dims, x_batch, x_row, x_dim, z_batch, z_row, z_dim,
               EUCLID: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """A tile of out (batches, points, others); the others of one batch lie along the grid's first axis."""
    batch = tl.program_id(2).to(tl.int64)
    row, col = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    x_at = x_ptr + batch * x_batch + row.to(tl.int64) * x_row
    z_at = z_ptr + batch * z_batch + col.to(tl.int64) * z_row
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for dim in range(dims):
        x = tl.load(x_at + dim * x_dim, mask=row < points, other=0.0)
        z = tl.load(z_at + dim * z_dim, mask=col < others, other=0.0)
        difference = x[:, None] - z[None, :]
        total += difference * difference if EUCLID else tl.abs(difference)
    if EUCLID:
        total = tl.sqrt_rn(total)
    to = (batch * points + row)[:, None] * others + col[None, :]
    tl.store(out_ptr + to, total, mask=(row < points)[:, None] & (col < others)[None, :])


@repeated
def distances(x, z, euclid):
    """Distances (batches, points, others) of x (batches, points, dims) and z (batches, others, dims); float32.

    Args:
        euclid: the root of the sum of squares; else the sum of magnitudes.
    """
    batches, points, dims = x.shape
    others = z.shape[1]
    out = torch.empty((batches, points, others), dtype=x.dtype, device=x.device)
    launch(
        _distances, (-(-others // 128), -(-points // 64), batches), (x, z, out), (points, others, dims, *x.stride(), *z.stride()),
        EUCLID=euclid, BM=64, BN=128, num_warps=8,
    )  # fmt: skip
    return out
