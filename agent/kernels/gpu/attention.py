"""Attention of float32 tensors by three float16 products for each of its two products, at float32 accuracy.

softmax(scale * q k^T, masked) v for heads of at most 256, without the matrix of scores in memory. Queries and keys are split by rows, values by
columns (`parts.py` says how two float16 parts hold 22 bits); weights of the softmax lie in 0 to 1 and are split in registers.
Heads with values that no scale can hold (Inf, NaN, beyond 2^75) are computed again in float32, and so are groups of queries with scores
so large that the tensor core's truncated sums would show in the weights.

Where weights are not a softmax but a pointwise function of the scores (of ReLU, or times a decay), they are split with a scale for each
query and step.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import BLOCK_K, has_misfits, power_of_two, scale_exponent, scale_pitch, split

#: A score is off by 3e-7 of itself; at this size, that is 4e-5 of a weight, about as much as float32's own error there (simulated).
LARGEST_SCORE = tl.constexpr(128.0)


@triton.jit
def exponentials(score, counts, largest):
    """A step of a softmax: exponentials of scores below their row's largest so far, what earlier ones fade by, and the new largest."""
    score = tl.where(counts, score, float("-inf"))
    now = tl.maximum(largest, tl.max(score, axis=1))
    base = tl.where(now == float("-inf"), 0.0, now)
    p = tl.exp(score - base[:, None])
    faded = tl.where(largest == float("-inf"), 0.0, tl.exp(largest - base))
    return p, faded, now


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend(q_tiles, k_tiles, v_tiles, q_scale_ptr, k_scale_ptr, v_scale_ptr, mask_ptr, out_ptr,
            heads, queries, keys, dims, scale, mask_batch, mask_head, mask_row, mask_col, out_batch, out_head, out_row,
            HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, SAFE: tl.constexpr, ELEMENT: tl.constexpr,
            QUERIES: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A tile of queries of one head; the mask has a byte, not zero for keys that do not count.

    With ELEMENT, weights are this function of a score and what the mask has.
    """
    head = tl.program_id(1)
    from_query = tl.program_id(0) * QUERIES
    query = from_query + tl.arange(0, QUERIES)
    dim = tl.arange(0, DIMS)
    all_heads = tl.num_programs(1)
    # Low parts begin at these rows.
    q_low, k_low, v_low = all_heads * queries, all_heads * keys, all_heads * dims
    q_row = (head * queries + from_query).to(tl.int32)
    qh, ql = q_tiles.load([q_row, 0]), q_tiles.load([q_low + q_row, 0])
    q_scale = scale * tl.load(
        q_scale_ptr + head * scale_pitch(queries) + query, mask=query < queries, other=0.0
    )
    largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((QUERIES,), dtype=tl.float32)
    all_fit = tl.full((QUERIES,), 1, dtype=tl.int32)
    total = tl.zeros((QUERIES, DIMS), dtype=tl.float32)
    mask_ptr += (head // heads).to(tl.int64) * mask_batch + (head % heads).to(tl.int64) * mask_head
    end = tl.minimum(keys, from_query + QUERIES) if CAUSAL else keys
    for first in tl.range(0, end, KEYS):
        key = first + tl.arange(0, KEYS)
        k_row = (head * keys + first).to(tl.int32)
        kh, kl = k_tiles.load([k_row, 0]).T, k_tiles.load([k_low + k_row, 0]).T
        score = tl.dot(ql, kh)
        score = tl.dot(qh, kl, score)
        score = tl.dot(qh, kh, score)
        k_scale = tl.load(k_scale_ptr + head * scale_pitch(keys) + key, mask=key < keys, other=0.0)
        score = score * q_scale[:, None] * k_scale[None, :]
        counts = (key < keys)[None, :]
        if CAUSAL:
            counts = counts & (key[None, :] <= query[:, None])
        if HAS_MASK:
            at = query.to(tl.int64)[:, None] * mask_row + key.to(tl.int64)[None, :] * mask_col
            masked = tl.load(mask_ptr + at, mask=(query < queries)[:, None] & (key < keys)[None, :], other=0)
        else:
            masked = score  # not read
        if ELEMENT is None:
            if HAS_MASK:
                counts = counts & (masked == 0)
            p, faded, largest = exponentials(score, counts, largest)
            weight = weight * faded + tl.sum(p, axis=1)
            p *= 4096.0
            total *= faded[:, None]
        else:
            p = tl.where(counts & (query < queries)[:, None], ELEMENT(score, masked), 0.0)
            exponent, fits = scale_exponent(tl.max(p.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1))
            all_fit = tl.minimum(all_fit, fits.to(tl.int32))
            p *= power_of_two(13 - exponent)[:, None]
        ph = p.to(tl.float16)
        pl = (p - ph.to(tl.float32)).to(tl.float16)
        vh, vl = v_tiles.load([head * dims, first]).T, v_tiles.load([v_low + head * dims, first]).T
        part = tl.dot(pl, vh)
        part = tl.dot(ph, vl, part)
        part = tl.dot(ph, vh, part)
        at = (first // BLOCK * all_heads + head).to(tl.int64) * scale_pitch(dims)
        v_scale = tl.load(v_scale_ptr + at + dim, mask=dim < dims, other=0.0)
        part *= v_scale[None, :]
        if ELEMENT is not None:
            part *= power_of_two(exponent - 13)[:, None]
        total += part
    is_off = tl.where(largest == float("-inf"), 0.0, tl.abs(largest)) > LARGEST_SCORE
    is_off = is_off | (all_fit == 0)
    if tl.max(is_off.to(tl.int32), axis=0) > 0:
        tl.store(q_scale_ptr + head * scale_pitch(queries) + query, -1.0, mask=query < queries)
    if ELEMENT is None:
        if SAFE:
            weight = tl.where(weight == 0.0, 1.0, weight)
        total = total / (4096.0 * weight)[:, None]
    to = (
        (head // heads).to(tl.int64) * out_batch
        + (head % heads).to(tl.int64) * out_head
        + query.to(tl.int64) * out_row
    )
    tl.store(
        out_ptr + to[:, None] + dim[None, :], total, mask=(query < queries)[:, None] & (dim < dims)[None, :]
    )


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend_exactly(q_ptr, k_ptr, v_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, mask_ptr, out_ptr, heads, queries, keys, dims, scale,
                    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, v_batch, v_head, v_row, v_dim,
                    mask_batch, mask_head, mask_row, mask_col, out_batch, out_head, out_row,
                    HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, SAFE: tl.constexpr, ELEMENT: tl.constexpr,
                    QUERIES: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Heads with negative scales at keys or values, and groups of queries with one, once more by float32 multiply-adds."""
    head = tl.program_id(1).to(tl.int64)
    all_heads = tl.num_programs(1)
    misfits = has_misfits(q_scale_ptr, 1, all_heads, head, tl.program_id(0) * QUERIES, queries, QUERIES, 1)
    misfits |= has_misfits(v_scale_ptr, tl.cdiv(keys, BLOCK), all_heads, head, 0, dims, DIMS, 16)
    for first in range(0, keys, 1024):
        misfits |= has_misfits(k_scale_ptr, 1, all_heads, head, first, keys, 1024, 1)
    if misfits:
        batch, of_batch = head // heads, head % heads
        query = (tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)).to(tl.int64)
        dim = tl.arange(0, DIMS)
        there = (query < queries)[:, None] & (dim < dims)[None, :]
        q_ptr += batch * q_batch + of_batch * q_head
        k_ptr += batch * k_batch + of_batch * k_head
        v_ptr += batch * v_batch + of_batch * v_head
        mask_ptr += batch * mask_batch + of_batch * mask_head
        q = tl.load(q_ptr + query[:, None] * q_row + dim[None, :] * q_dim, mask=there, other=0.0)
        largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
        weight = tl.zeros((QUERIES,), dtype=tl.float32)
        total = tl.zeros((QUERIES, DIMS), dtype=tl.float32)
        for first in range(0, keys, KEYS):
            key = (first + tl.arange(0, KEYS)).to(tl.int64)
            inside = (key < keys)[:, None] & (dim < dims)[None, :]
            k = tl.load(k_ptr + key[:, None] * k_row + dim[None, :] * k_dim, mask=inside, other=0.0)
            v = tl.load(v_ptr + key[:, None] * v_row + dim[None, :] * v_dim, mask=inside, other=0.0)
            score = tl.dot(q, k.T, input_precision="ieee") * scale
            counts = (key < keys)[None, :]
            if CAUSAL:
                counts = counts & (key[None, :] <= query[:, None])
            if HAS_MASK:
                at = query[:, None] * mask_row + key[None, :] * mask_col
                masked = tl.load(
                    mask_ptr + at, mask=(query < queries)[:, None] & (key < keys)[None, :], other=0
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
                p = tl.where(counts, ELEMENT(score, masked), 0.0)
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


def attend_exactly(q, k, v, scales, mask, scale, causal, safe, element, out):
    """Compute again in float32 what no scale of q, k and v can hold."""
    batch, heads, queries, dims = q.shape
    keys = k.shape[2]
    places = (0, 0, 0, 0) if mask is None else mask.expand(batch, heads, queries, keys).stride()
    launch(
        _attend_exactly, (-(-queries // 16), batch * heads), (q, k, v, *scales, in_bytes(out, mask), out),
        (heads, queries, keys, dims, scale, *q.stride(), *k.stride(), *v.stride(), *places, *out.stride()[:3]),
        HAS_MASK=mask is not None, CAUSAL=causal, SAFE=safe, ELEMENT=element,
        QUERIES=16, KEYS=32, DIMS=max(16, triton.next_power_of_2(dims)), BLOCK=BLOCK_K,
    )  # fmt: skip
    return out


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
    parts = [*split(q, k), *split(v.transpose(2, 3))]
    size = max(16, triton.next_power_of_2(dims))
    tile, step = (128, 64) if size <= 64 else (128, 32) if size == 128 else (64, 32)
    boxes = ([tile, size], [step, size], [size, step])
    tiles = [TensorDescriptor.from_tensor(one.halves, box) for one, box in zip(parts, boxes, strict=True)]
    scales = [one.scale for one in parts]
    mask_or_any = in_bytes(out, mask)
    places = (0, 0, 0, 0) if mask is None else mask.expand(batch, heads, queries, keys).stride()
    where = (*places, *out.stride()[:3])
    launch(
        _attend, (-(-queries // tile), batch * heads),
        (*tiles, *scales, mask_or_any, out), (heads, queries, keys, dims, scale, *where),
        HAS_MASK=mask is not None, CAUSAL=causal, SAFE=safe, ELEMENT=element,
        QUERIES=tile, KEYS=step, DIMS=size, BLOCK=BLOCK_K, num_warps=8, num_stages=2,
    )  # fmt: skip
    return attend_exactly(q, k, v, scales, mask, scale, causal, safe, element, out)


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
