"""Sums of products of many small matrices, as in an einsum, bound by memory: operands are read where they lie.

torch copies operands whose axes lie in another order than cuBLAS takes, and multiplies by a factor in a pass of its own. Here each
program has a tile of one product, reads both operands once, multiplies one by the factor, and sums three products of their TF32 parts.
No scale is needed for these, which took as long as everything else; each sum of 32 terms is added to the rest with rounding.
"""

import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated


@triton.jit
def _place(batch, s1, s2, s3, t0, t1, t2, t3):
    """Where a tensor's matrix begins, from the sizes of the last three batch axes and its strides along all four."""
    first, second, third = batch // s3 // s2 // s1, batch // s3 // s2 % s1, batch // s3 % s2
    return first * t0 + second * t1 + third * t2 + (batch % s3) * t3


@triton.jit(do_not_specialize=["ks", "s1", "s2", "s3"])
def _contract(a_ptr, factor_ptr, b_ptr, out_ptr, m, n, ks, s1, s2, s3, a0, a1, a2, a3, a_k, a_m, factor0, factor1, factor2, factor3,
              factor_k, factor_m, b0, b1, b2, b3, b_k, b_n, out0, out1, out2, out3, out_m, out_n,
              HAS_FACTOR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """One tile of one product."""
    n_tiles = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * n_tiles
    batch, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    row, col = tile // n_tiles * BM + tl.arange(0, BM), tile % n_tiles * BN + tl.arange(0, BN)
    a_ptr += _place(batch, s1, s2, s3, a0, a1, a2, a3)
    factor_ptr += _place(batch, s1, s2, s3, factor0, factor1, factor2, factor3)
    b_ptr += _place(batch, s1, s2, s3, b0, b1, b2, b3)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in tl.range(0, ks, BK):
        k = first + tl.arange(0, BK)
        of_a = (k < ks)[:, None] & (row < m)[None, :]
        a = tl.load(a_ptr + k[:, None] * a_k + row[None, :] * a_m, mask=of_a, other=0.0)
        if HAS_FACTOR:
            a *= tl.load(factor_ptr + k[:, None] * factor_k + row[None, :] * factor_m, mask=of_a, other=0.0)
        of_b = (k < ks)[:, None] & (col < n)[None, :]
        b = tl.load(b_ptr + k[:, None] * b_k + col[None, :] * b_n, mask=of_b, other=0.0)
        total += tl.dot(a.T, b, input_precision="tf32x3")
    to = out_ptr + _place(batch, s1, s2, s3, out0, out1, out2, out3)
    tl.store(
        to + row[:, None] * out_m + col[None, :] * out_n, total, mask=(row < m)[:, None] & (col < n)[None, :]
    )


@repeated
def contracted(equation, a, b, factor):
    """torch.einsum(equation, a, b) or, with a factor, torch.einsum(equation, a, b, factor); contiguous float32.

    Args:
        equation: a and b have up to four axes of the result together, one summed axis, and each one of the result apart; the factor
            has some of a's.

    Returns:
        None for tensors whose places need 64 bits.
    """
    given, _, letters = equation.partition("->")
    of_a, of_b, *of_factor = given.split(",")
    [summed] = set(of_a) - set(letters)
    [of_m], [of_n] = set(of_a) & set(letters) - set(of_b), set(of_b) & set(letters) - set(of_a)
    batch = [axis for axis in letters if axis not in (of_m, of_n)]
    batch = ["", "", "", ""][len(batch) :] + batch
    sizes = dict(zip(of_a + of_b, (*a.shape, *b.shape), strict=True)) | {"": 1}
    out = a.new_empty([sizes[axis] for axis in letters])
    places = [
        sum((size - 1) * step for size, step in zip(one.shape, one.stride(), strict=True))
        for one in (a, b, out, factor)
        if one is not None
    ]
    if max(places) >= 1 << 31:
        return None
    m, n, ks = sizes[of_m], sizes[of_n], sizes[summed]
    tile_m, tile_n = (max(16, min(64, triton.next_power_of_2(size))) for size in (m, n))

    def strides(tensor, axes, own):
        along = dict(zip(axes, tensor.stride(), strict=True))
        return [along.get(axis, 0) for axis in (*batch, *own)]

    factor_strides = strides(factor, of_factor[0], (summed, of_m)) if of_factor else [0] * 6
    programs = out.numel() // (m * n) * -(-m // tile_m) * -(-n // tile_n)
    launch(
        _contract, (programs,), (a, factor if of_factor else a, b, out),
        (
            m, n, ks, *(sizes[axis] for axis in batch[1:]), *strides(a, of_a, (summed, of_m)), *factor_strides,
            *strides(b, of_b, (summed, of_n)), *strides(out, letters, (of_m, of_n)),
        ),
        HAS_FACTOR=bool(of_factor), BM=tile_m, BN=tile_n, BK=16 if ks <= 16 else 32, num_warps=4,
        num_stages={16: 3, 32: 2}.get(tile_m, 1),  # by trial on an H200
    )  # fmt: skip
    return out
