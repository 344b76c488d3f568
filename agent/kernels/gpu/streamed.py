"""Attention of up to 16 queries at float32 accuracy, as in decoding: keys and values are read once and split in registers.

`attention.py` splits them in memory first, which pays where many queries read them again. Here a program has the queries of a head and
a chunk of its keys; where there is more than one chunk, a second kernel joins their sums.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.attention import LARGEST_SCORE, attend_exactly, exponentials, in_bytes
from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import empty_scales, power_of_two, scale_exponent, scale_pitch
from agent.kernels.gpu.products import with_launches

MOST_QUERIES = 16  # with 64, splitting takes as long as torch's whole attention


@triton.jit
def _in_parts(x, AXIS: tl.constexpr):
    """High and low float16 parts of x with a scale for what lies along an axis, the inverse scale, and whether one exists."""
    exponent, fits = scale_exponent(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=AXIS))
    scaled = x * tl.expand_dims(power_of_two(13 - exponent), AXIS)
    high = scaled.to(tl.float16)
    low = (scaled - high.to(tl.float32)).to(tl.float16)
    return high, low, power_of_two(exponent - 13), tl.min(fits.to(tl.int32), axis=0)


@triton.jit(do_not_specialize=["queries", "keys", "length"])
def _stream(q_ptr, k_ptr, v_ptr, mask_ptr, fits_ptr, part_ptr, sums_ptr, out_ptr, heads, queries, keys, dims, scale, length,
            q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
            mask_batch, mask_head, mask_row, mask_col, out_batch, out_head, out_row,
            HAS_MASK: tl.constexpr, SAFE: tl.constexpr, IN_CHUNKS: tl.constexpr,
            QUERIES: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr):  # fmt: skip
    """The queries of one head over a chunk of its keys."""
    all_heads, head, chunk = tl.num_programs(0), tl.program_id(0), tl.program_id(1)
    batch, of_batch = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    query, dim = tl.arange(0, QUERIES), tl.arange(0, DIMS)
    there = (query < queries)[:, None] & (dim < dims)[None, :]
    q_ptr += batch * q_batch + of_batch * q_head
    q = tl.load(q_ptr + query.to(tl.int64)[:, None] * q_row + dim[None, :], mask=there, other=0.0)
    qh, ql, q_scale, all_fit = _in_parts(q, 1)
    q_scale *= scale
    largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((QUERIES,), dtype=tl.float32)
    total = tl.zeros((QUERIES, DIMS), dtype=tl.float32)
    first, step = chunk * length, tl.arange(0, KEYS)
    end = tl.minimum(keys, first + length)
    k_ptr += batch * k_batch + of_batch * k_head
    v_ptr += batch * v_batch + of_batch * v_head
    mask_ptr += batch * mask_batch + of_batch * mask_head
    for at in tl.range(first, end, KEYS):
        key = at + step
        inside = (key < end)[:, None] & (dim < dims)[None, :]
        k = tl.load((k_ptr + key.to(tl.int64) * k_row)[:, None] + dim[None, :], mask=inside, other=0.0)
        kh, kl, k_scale, fits = _in_parts(k, 1)
        all_fit = tl.minimum(all_fit, fits)
        score = tl.dot(ql, kh.T)
        score = tl.dot(qh, kl.T, score)
        score = tl.dot(qh, kh.T, score)
        score = score * q_scale[:, None] * k_scale[None, :]
        counts = (key < end)[None, :]
        if HAS_MASK:
            of = query.to(tl.int64)[:, None] * mask_row + key.to(tl.int64)[None, :] * mask_col
            masked = tl.load(mask_ptr + of, mask=(query < queries)[:, None] & (key < end)[None, :], other=0)
            counts = counts & (masked == 0)
        p, faded, weight, largest = exponentials(score, counts, largest, weight)
        p *= 4096.0
        ph = p.to(tl.float16)
        pl = (p - ph.to(tl.float32)).to(tl.float16)
        v = tl.load((v_ptr + key.to(tl.int64) * v_row)[:, None] + dim[None, :], mask=inside, other=0.0)
        vh, vl, v_scale, fits = _in_parts(v, 0)
        all_fit = tl.minimum(all_fit, fits)
        part = tl.dot(pl, vh)
        part = tl.dot(ph, vl, part)
        part = tl.dot(ph, vh, part)
        total = total * faded[:, None] + part * v_scale[None, :]
    is_off = (tl.where(largest == float("-inf"), 0.0, tl.abs(largest)) > LARGEST_SCORE) | (all_fit == 0)
    at = (chunk * all_heads + head).to(tl.int64)
    tl.store(fits_ptr + at * scale_pitch(queries) + query, tl.where(is_off, -1.0, 1.0), mask=query < queries)
    if IN_CHUNKS:
        at = at * queries + query
        tl.store(sums_ptr + 2 * at, largest, mask=query < queries)
        tl.store(sums_ptr + 2 * at + 1, weight, mask=query < queries)
        tl.store(part_ptr + at[:, None] * dims + dim[None, :], total, mask=there)
    else:
        if SAFE:
            weight = tl.where(weight == 0.0, 1.0, weight)
        to = batch * out_batch + of_batch * out_head + query.to(tl.int64) * out_row
        tl.store(out_ptr + to[:, None] + dim[None, :], total / (4096.0 * weight)[:, None], mask=there)


@triton.jit(do_not_specialize=["queries", "chunks"])
def _join_chunks(part_ptr, sums_ptr, out_ptr, heads, queries, dims, chunks, out_batch, out_head, out_row,
                 SAFE: tl.constexpr, QUERIES: tl.constexpr, DIMS: tl.constexpr):  # fmt: skip
    """The queries of one head: the sums of all chunks, each as much as the largest score of its keys makes it count."""
    all_heads, head = tl.num_programs(0), tl.program_id(0)
    query, dim = tl.arange(0, QUERIES), tl.arange(0, DIMS)
    there = (query < queries)[:, None] & (dim < dims)[None, :]
    largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((QUERIES,), dtype=tl.float32)
    total = tl.zeros((QUERIES, DIMS), dtype=tl.float32)
    for chunk in range(chunks):
        at = (chunk * all_heads + head).to(tl.int64) * queries + query
        score = tl.load(sums_ptr + 2 * at, mask=query < queries, other=0.0)
        more = tl.load(sums_ptr + 2 * at + 1, mask=query < queries, other=1.0)
        part = tl.load(part_ptr + at[:, None] * dims + dim[None, :], mask=there, other=0.0)
        now = tl.maximum(largest, score)
        base = tl.where(now == float("-inf"), 0.0, now)
        faded, counted = tl.exp(largest - base), tl.exp(score - base)
        total = total * faded[:, None] + part * counted[:, None]
        weight, largest = weight * faded + more * counted, now
    if SAFE:
        weight = tl.where(weight == 0.0, 1.0, weight)
    to = (
        (head // heads).to(tl.int64) * out_batch
        + (head % heads).to(tl.int64) * out_head
        + query.to(tl.int64) * out_row
    )
    tl.store(out_ptr + to[:, None] + dim[None, :], total / (4096.0 * weight)[:, None], mask=there)


def streaming_pays(q, k):
    """Whether `streamed_attention` computes with these, for which `attention_applies`, and is faster than torch's.

    On an H200, torch's reads keys and values at 1.35 TB/s, and this at 2.8.
    """
    seconds = with_launches(8 * k.numel() / 2.8e12, 3)
    return q.shape[2] <= MOST_QUERIES and q.shape[3] >= 64 and seconds < 0.95 * 8 * k.numel() / 1.35e12


def _chunks(device, heads, keys):
    """Into how many chunks keys are cut: a few programs for each processor, each with enough keys."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(4 * processors // heads, keys // 256))


def streamed_attention(q, k, v, mask, scale, safe, out):
    """As `attention.attention` for up to `MOST_QUERIES` queries, of which each may see all keys."""
    batch, heads, queries, dims = q.shape
    keys = k.shape[2]
    q, k, v = (one if one.stride(3) == 1 else one.contiguous() for one in (q, k, v))
    size, step = max(16, triton.next_power_of_2(dims)), 64 if dims <= 128 else 32
    length = -(-keys // (_chunks(q.device, batch * heads, keys) * step)) * step
    chunks = -(-keys // length)
    fits = empty_scales(chunks, batch * heads, queries, q.device)
    parts = sums = out
    if chunks > 1:
        parts, sums = out.new_empty(chunks * out.numel()), out.new_empty(2 * chunks * batch * heads * queries)
    places = (0, 0, 0, 0) if mask is None else mask.expand(batch, heads, queries, keys).stride()
    launch(
        _stream, (batch * heads, chunks), (q, k, v, in_bytes(out, mask), fits, parts, sums, out),
        (heads, queries, keys, dims, scale, length, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *places, *out.stride()[:3]),
        HAS_MASK=mask is not None, SAFE=safe, IN_CHUNKS=chunks > 1, QUERIES=MOST_QUERIES, KEYS=step, DIMS=size,
        num_warps=4 if size <= 128 else 8, num_stages=1,
    )  # fmt: skip
    if chunks > 1:
        launch(
            _join_chunks, (batch * heads,), (parts, sums, out), (heads, queries, dims, chunks, *out.stride()[:3]),
            SAFE=safe, QUERIES=MOST_QUERIES, DIMS=size, num_warps=4,
        )  # fmt: skip
    return attend_exactly(q, k, v, (fits, fits, fits), chunks, mask, scale, False, safe, None, out)
