"""Attention of float32 tensors by three float16 products for each of its two products, at float32 accuracy.

softmax(scale * q k^T, masked) v for heads of at most 256, without the matrix of scores in memory. Queries and keys are split by rows, values by
columns (`parts.py` says how two float16 parts hold 22 bits); queries of heads up to 64 and weights are split in registers.
Heads with values that no scale can hold (Inf, NaN, beyond 2^75) are computed again by multiply-adds, with scores in float64 and the rest in
float32, and so are groups of queries with scores so large that the tensor core's truncated sums would show in the weights.

Where weights are not a softmax but a pointwise function of the scores (of ReLU, or times a decay), they are split with a scale for each
query and step.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import (
    BLOCK_K,
    empty_scales,
    has_misfits,
    power_of_two,
    scale_exponent,
    scale_pitch,
    split,
)
from agent.kernels.gpu.products import processors

#: A score is off by 3e-7 of itself; at this size, that is 4e-5 of a weight, about as much as float32's own error there (simulated).
LARGEST_SCORE = tl.constexpr(128.0)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def exponentials(score, counts, largest):
    """A step of a softmax: exponentials of scores below their row's largest so far, what earlier ones fade by, and the new largest."""
    score = tl.where(counts, score, float("-inf"))
    now = tl.maximum(largest, tl.max(score, axis=1))
    base = tl.where(now == float("-inf"), 0.0, now)
    p = tl.exp((score - base[:, None]).to(tl.float32))
    faded = tl.where(largest == float("-inf"), 0.0, tl.exp((largest - base).to(tl.float32)))
    return p, faded, now


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend(q_tiles, k_tiles, v_tiles, q_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, again_ptr, mask_ptr, out_ptr,
            heads, queries, keys, dims, scale, q_batch, q_head, q_row, q_dim, mask_batch, mask_head, mask_row, mask_col,
            out_batch, out_head, out_row, SPLITS: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, SAFE: tl.constexpr, ELEMENT: tl.constexpr,
            QUERIES: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A tile of queries of one head; the mask has a byte, not zero for keys that do not count.

    With ELEMENT, weights are this function of a score and what the mask has; else weights are 4096 times the softmax's until they are divided by
    their sum, and scores are exponents of two.
    """
    head = tl.program_id(1)
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile  # those with the most keys begin
    from_query = tile * QUERIES
    query = from_query + tl.arange(0, QUERIES)
    dim = tl.arange(0, DIMS)
    all_heads = tl.num_programs(1)
    # Low parts begin at these rows.
    q_low, k_low, v_low = all_heads * queries, all_heads * keys, all_heads * dims
    if SPLITS:  # a tile of queries is read once
        q_ptr += (head // heads).to(tl.int64) * q_batch + (head % heads).to(tl.int64) * q_head
        q_ptr += query.to(tl.int64)[:, None] * q_row + dim.to(tl.int64)[None, :] * q_dim
        q = tl.load(q_ptr, mask=(query < queries)[:, None] & (dim < dims)[None, :], other=0.0)
        q_exponent, has_scale = scale_exponent(tl.max(q.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1))
        q *= power_of_two(13 - q_exponent)[:, None]
        qh = q.to(tl.float16)
        ql = (q - qh.to(tl.float32)).to(tl.float16)
        q_scale = power_of_two(q_exponent - 13)
        all_fit = has_scale.to(tl.int32)
    else:
        first_row = (head * queries + from_query).to(tl.int32)
        qh, ql = q_tiles.load([first_row, 0]), q_tiles.load([q_low + first_row, 0])
        q_scale = tl.load(q_scale_ptr + head * scale_pitch(queries) + query, mask=query < queries, other=0.0)
        all_fit = (q_scale >= 0.0).to(tl.int32)
    sign = tl.where(scale < 0.0, -1.0, 1.0)
    if ELEMENT is None:
        q_scale *= tl.abs(scale) * LOG2_E
    else:
        q_scale *= tl.abs(scale)
    largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((QUERIES,), dtype=tl.float32)
    total = tl.zeros((QUERIES, DIMS), dtype=tl.float32)
    least_k, least_v = tl.zeros((KEYS,), dtype=tl.float32), tl.zeros((DIMS,), dtype=tl.float32)
    mask_ptr += (head // heads).to(tl.int64) * mask_batch + (head % heads).to(tl.int64) * mask_head
    end = tl.minimum(keys, from_query + QUERIES) if CAUSAL else keys
    # Up to here each key counts for each query, but for the mask.
    whole = (tl.minimum(keys, from_query + 1) if CAUSAL else keys) // KEYS * KEYS
    for part in tl.static_range(2):
        for first in tl.range(0 if part == 0 else whole, whole if part == 0 else end, KEYS):
            key = first + tl.arange(0, KEYS)
            k_row = (head * keys + first).to(tl.int32)
            kh, kl = k_tiles.load([k_row, 0]).T, k_tiles.load([k_low + k_row, 0]).T
            score = tl.dot(ql, kh)
            score = tl.dot(qh, kl, score)
            score = tl.dot(qh, kh, score)
            k_scale = tl.load(k_scale_ptr + head * scale_pitch(keys) + key, mask=key < keys, other=0.0)
            least_k = tl.minimum(least_k, k_scale)
            score = score * (sign * k_scale)[None, :]
            counts = tl.full((1, KEYS), 1, dtype=tl.int1)
            if part == 1:
                counts = (key < keys)[None, :]
                if CAUSAL:
                    counts = counts & (key[None, :] <= query[:, None])
            if HAS_MASK:
                at = query.to(tl.int64)[:, None] * mask_row + key.to(tl.int64)[None, :] * mask_col
                masked = tl.load(
                    mask_ptr + at, mask=(query < queries)[:, None] & (key < keys)[None, :], other=0
                )
            else:
                masked = score  # not read
            if ELEMENT is None:
                if HAS_MASK:
                    counts = counts & (masked == 0)
                # A scale may be zero, which would make NaN of a score of minus infinity.
                now = tl.max(tl.where(counts, score, float("-inf")), axis=1)
                now = tl.maximum(largest, tl.where(now == float("-inf"), now, now * q_scale))
                base = tl.where(now == float("-inf"), 0.0, now)
                # Near the maximum the exponent is near zero, and exact; with the factor's 12 in it, it would be rounded.
                p = tl.exp2(score * q_scale[:, None] - base[:, None]) * 4096.0
                p = tl.where(counts, p, 0.0)
                faded = tl.where(largest == float("-inf"), 0.0, tl.exp2(largest - base))
                largest = now
                weight = weight * faded + tl.sum(p, axis=1)
                total *= faded[:, None]
            else:
                p = ELEMENT(score * q_scale[:, None], masked)
                p = tl.where(counts & (query < queries)[:, None], p, 0.0)
                exponent, fits = scale_exponent(tl.max(p.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1))
                all_fit = tl.minimum(all_fit, fits.to(tl.int32))
                p *= power_of_two(13 - exponent)[:, None]
            ph = p.to(tl.float16)
            pl = (p - ph.to(tl.float32)).to(tl.float16)
            vh, vl = v_tiles.load([head * dims, first]).T, v_tiles.load([v_low + head * dims, first]).T
            share = tl.dot(pl, vh)
            share = tl.dot(ph, vl, share)
            share = tl.dot(ph, vh, share)
            at = (first // BLOCK * all_heads + head).to(tl.int64) * scale_pitch(dims)
            v_scale = tl.load(v_scale_ptr + at + dim, mask=dim < dims, other=0.0)
            least_v = tl.minimum(least_v, v_scale)
            share *= v_scale[None, :]
            if ELEMENT is not None:
                share *= power_of_two(exponent - 13)[:, None]
            total += share
    is_off = tl.where(largest == float("-inf"), 0.0, tl.abs(largest)) > LARGEST_SCORE * LOG2_E
    is_off = is_off | (all_fit == 0)
    is_wrong = tl.max(is_off.to(tl.int32), axis=0) > 0
    if is_wrong | (tl.min(least_k, axis=0) < 0.0) | (tl.min(least_v, axis=0) < 0.0):
        tl.store(again_ptr, 1)
    if SPLITS:
        tl.store(
            q_scale_ptr + head * scale_pitch(queries) + query,
            tl.where(is_off, -1.0, 1.0),
            mask=query < queries,
        )
    elif is_wrong:
        tl.store(q_scale_ptr + head * scale_pitch(queries) + query, -1.0, mask=query < queries)
    if ELEMENT is None:
        if SAFE:
            weight = tl.where(weight == 0.0, 1.0, weight)
        total = total / weight[:, None]
    to = (
        (head // heads).to(tl.int64) * out_batch
        + (head % heads).to(tl.int64) * out_head
        + query.to(tl.int64) * out_row
    )
    tl.store(
        out_ptr + to[:, None] + dim[None, :], total, mask=(query < queries)[:, None] & (dim < dims)[None, :]
    )


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend_exactly(q_ptr, k_ptr, v_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, again_ptr, mask_ptr, out_ptr, heads, queries, keys, dims,
                    scale, all_heads, q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, v_batch, v_head, v_row, v_dim,
                    mask_batch, mask_head, mask_row, mask_col, out_batch, out_head, out_row,
                    HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, SAFE: tl.constexpr, ELEMENT: tl.constexpr,
                    QUERIES: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Heads with negative scales at keys or values, and groups of queries with one, once more by multiply-adds; few programs."""
    if tl.load(again_ptr) > 0:
        groups = tl.cdiv(queries, QUERIES)
        for task in range(tl.program_id(0), groups * all_heads, tl.num_programs(0)):
            head, first_query = (task // groups).to(tl.int64), task % groups * QUERIES
            misfits = has_misfits(q_scale_ptr, 1, all_heads, head, first_query, queries, QUERIES, 1)
            misfits |= has_misfits(v_scale_ptr, tl.cdiv(keys, BLOCK), all_heads, head, 0, dims, DIMS, 16)
            for first in range(0, keys, 1024):
                misfits |= has_misfits(k_scale_ptr, 1, all_heads, head, first, keys, 1024, 1)
            if misfits:
                batch, of_batch = head // heads, head % heads
                query = (first_query + tl.arange(0, QUERIES)).to(tl.int64)
                dim = tl.arange(0, DIMS)
                there = (query < queries)[:, None] & (dim < dims)[None, :]
                q_at = q_ptr + batch * q_batch + of_batch * q_head
                k_at = k_ptr + batch * k_batch + of_batch * k_head
                v_at = v_ptr + batch * v_batch + of_batch * v_head
                mask_at = mask_ptr + batch * mask_batch + of_batch * mask_head
                largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float64)
                weight = tl.zeros((QUERIES,), dtype=tl.float32)
                total = tl.zeros((QUERIES, DIMS), dtype=tl.float32)
                for first in range(0, keys, KEYS):
                    key = (first + tl.arange(0, KEYS)).to(tl.int64)
                    inside = (key < keys)[:, None] & (dim < dims)[None, :]
                    v = tl.load(v_at + key[:, None] * v_row + dim[None, :] * v_dim, mask=inside, other=0.0)
                    # Of scores of thousands, float32's roundings show in the weights. There are few of these, and double precision is fast.
                    score = tl.zeros((QUERIES, KEYS), dtype=tl.float64)
                    for part in range(0, DIMS, 16):
                        some = (part + tl.arange(0, 16)).to(tl.int64)
                        q = tl.load(
                            q_at + query[:, None] * q_row + some[None, :] * q_dim,
                            mask=(query < queries)[:, None] & (some < dims)[None, :],
                            other=0.0,
                        )
                        k = tl.load(
                            k_at + key[:, None] * k_row + some[None, :] * k_dim,
                            mask=(key < keys)[:, None] & (some < dims)[None, :],
                            other=0.0,
                        )
                        score += tl.dot(q.to(tl.float64), k.to(tl.float64).T, out_dtype=tl.float64)
                    score *= scale
                    score = tl.where(tl.abs(score) > 3.4e38, score * float("inf"), score)  # as in float32
                    counts = (key < keys)[None, :]
                    if CAUSAL:
                        counts = counts & (key[None, :] <= query[:, None])
                    if HAS_MASK:
                        at = query[:, None] * mask_row + key[None, :] * mask_col
                        masked = tl.load(
                            mask_at + at, mask=(query < queries)[:, None] & (key < keys)[None, :], other=0
                        )
                    else:
                        masked = score  # not read
                    if ELEMENT is None:
                        if HAS_MASK:
                            counts = counts & (masked == 0)
                        p, faded, largest = exponentials(score, counts, largest)
                        weight = weight * faded + tl.sum(p, axis=1)
                        total *= faded[:, None]
                    else:
                        p = tl.where(counts, ELEMENT(score.to(tl.float32), masked), 0.0)
                    total += tl.dot(p, v, input_precision="ieee")
                if ELEMENT is None:
                    if SAFE:
                        weight = tl.where(weight == 0.0, 1.0, weight)
                    total = total / weight[:, None]
                to = batch * out_batch + of_batch * out_head + query * out_row
                tl.store(out_ptr + to[:, None] + dim[None, :], total, mask=there)


@triton.jit
def _weigh(score_ptr, mask_ptr, count, heads, queries, keys, mask_batch, mask_head, mask_row, mask_col, ELEMENT: tl.constexpr,
           HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """ELEMENT of dense scores (batch, heads, queries, keys), in place."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(score_ptr + at, mask=at < count, other=0.0)
    masked = score
    if HAS_MASK:
        row, key = at // keys, at % keys
        head = row // queries
        of = head // heads * mask_batch + head % heads * mask_head + row % queries * mask_row + key * mask_col
        masked = tl.load(mask_ptr + of, mask=at < count, other=0)
    tl.store(score_ptr + at, ELEMENT(score, masked), mask=at < count)


def weighed(scores, mask, element):
    """The dense scores (batch, heads, queries, keys) after ``element``, see `attention`; in place."""
    strides = (0, 0, 0, 0) if mask is None else mask.expand(scores.shape).stride()
    launch(
        _weigh, (-(-scores.numel() // 1024),), (scores, in_bytes(scores, mask)), (scores.numel(), *scores.shape[1:], *strides),
        ELEMENT=element, HAS_MASK=mask is not None, BLOCK=1024,
    )  # fmt: skip
    return scores


def in_bytes(otherwise, mask):
    """The mask with truth values as bytes; something for a kernel that reads none if there is none."""
    return otherwise if mask is None else mask.view(torch.uint8) if mask.dtype == torch.bool else mask


def attend_exactly(q, k, v, scales, again, mask, scale, causal, safe, element, out):
    """Compute again by multiply-adds what no scale of q, k and v can hold, if ``again`` says that there is any."""
    batch, heads, queries, dims = q.shape
    keys = k.shape[2]
    places = (0, 0, 0, 0) if mask is None else mask.expand(batch, heads, queries, keys).stride()
    programs = min(-(-queries // 16) * batch * heads, 4 * processors(q.device))
    launch(
        _attend_exactly, (programs,), (q, k, v, *scales, again, in_bytes(out, mask), out),
        (heads, queries, keys, dims, scale, batch * heads, *q.stride(), *k.stride(), *v.stride(), *places, *out.stride()[:3]),
        HAS_MASK=mask is not None, CAUSAL=causal, SAFE=safe, ELEMENT=element,
        QUERIES=16, KEYS=32, DIMS=max(16, triton.next_power_of_2(dims)), BLOCK=BLOCK_K,
    )  # fmt: skip
    return out


def tiles_of(size, masked):
    """Queries of a tile, keys of a step, warps and stages for heads of this size, a power of two."""
    if size <= 64:  # two programs share a multiprocessor: one multiplies while the other takes exponentials
        return 64, 64, 4, 2
    if size == 128:  # a mask takes registers
        return 128, 32 if masked else 64, 8, 2
    return 64, 32, 4, 2


def attention(q, k, v, mask, scale, causal, safe, out, element=None):
    """Write softmax(scale * q k^T) v to out (batch, heads, queries, dims), whose last axis is dense; q, k, v float32 like it.

    Args:
        mask: booleans that expand to (batch, heads, queries, keys), true for keys that do not count; or None.
        causal: whether a query sees only keys up to its own place.
        safe: zeros for queries that no key counts for, as torch's call has them; NaN otherwise, as softmax has it.
        element: in place of the softmax, a function of Triton's of scale * q k^T and the mask, which may be float32 then.
    """
    batch, heads, queries, dims = q.shape
    keys = k.shape[2]
    size = max(16, triton.next_power_of_2(dims))
    tile, step, warps, stages = tiles_of(size, mask is not None)
    # With larger heads registers do not suffice to split queries there.
    splits = size <= 64
    of_q, of_k = (None, *split(k)) if splits else split(q, k)
    parts = [of_k, *split(v.transpose(2, 3))]
    k_tiles, v_tiles = (
        TensorDescriptor.from_tensor(one.halves, box)
        for one, box in zip(parts, ([step, size], [size, step]), strict=True)
    )
    q_tiles = k_tiles if of_q is None else TensorDescriptor.from_tensor(of_q.halves, [tile, size])
    q_scale = empty_scales(1, batch * heads, queries, q.device) if of_q is None else of_q.scale
    scales = [q_scale, *(one.scale for one in parts)]
    again = torch.zeros(1, dtype=torch.int32, device=q.device)
    places = (0, 0, 0, 0) if mask is None else mask.expand(batch, heads, queries, keys).stride()
    launch(
        _attend, (-(-queries // tile), batch * heads),
        (q_tiles, k_tiles, v_tiles, q, *scales, again, in_bytes(out, mask), out),
        (heads, queries, keys, dims, scale, *q.stride(), *places, *out.stride()[:3]),
        SPLITS=splits, HAS_MASK=mask is not None, CAUSAL=causal, SAFE=safe, ELEMENT=element,
        QUERIES=tile, KEYS=step, DIMS=size, BLOCK=BLOCK_K, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return attend_exactly(q, k, v, scales, again, mask, scale, causal, safe, element, out)


def attention_applies(q, k, v):
    """Whether `attention` can compute with these."""
    return (
        all(one.is_cuda and one.dtype == torch.float32 and one.dim() == 4 for one in (q, k, v))
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and k.shape[2] == v.shape[2]
        and q.shape[3] == k.shape[3] == v.shape[3]
        and 8 <= q.shape[3] < 257
        and q.shape[3] % 8 == 0
        and min(q.numel(), k.numel()) > 0
        and q.shape[0] * q.shape[1] < 1 << 16
    )
