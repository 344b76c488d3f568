"""Attention of few queries at float32 accuracy, as in decoding: keys and values are read once and split in registers.

`attention.py` splits them in memory first, which pays where many queries read them again. Here a program has all queries that share
a head of keys, its rows, and a chunk of its keys; a second kernel joins the sums of all chunks. Up to four rows are summed by
multiply-adds, more by tensor cores. Keys may lie in several tensors, as those of a cache and of a new token do: their chunks are
joined as well, without a copy of all keys in one tensor.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.attention import LARGEST_SCORE, exponentials, in_bytes
from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import power_of_two, scale_exponent
from agent.kernels.gpu.products import four_of, processors, with_launches

MOST_ROWS = 16  # with 64, splitting takes as long as torch's whole attention
MOST_THIN_ROWS, MOST_THIN_DIMS = 4, 128  # a thread has registers for no more sums


@triton.jit
def _in_parts(x, AXIS: tl.constexpr):
    """High and low float16 parts of x with a scale for what lies along an axis, the inverse scales, and whether they exist."""
    exponent, fits = scale_exponent(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=AXIS))
    scaled = x * tl.expand_dims(power_of_two(13 - exponent), AXIS)
    high = scaled.to(tl.float16)
    low = (scaled - high.to(tl.float32)).to(tl.float16)
    return high, low, power_of_two(exponent - 13), fits.to(tl.int32)


@triton.jit
def _rows(batch, head, key, dim, there, end, p0, p1, p2, p3, at, ELEMENT: tl.constexpr):
    """Some keys or values of one head: at these places, or computed."""
    if ELEMENT is None:
        return tl.load((p0 + at)[:, None] + dim[None, :], mask=there, other=0.0)
    else:
        x = ELEMENT(batch, head, key[:, None], dim[None, :], there, (key < end)[:, None], p0, p1, p2, p3)
        return tl.where(there, x, 0.0)


class Computed(NamedTuple):
    """Keys or values (batch, heads, keys, dims) that a kernel computes where it needs them.

    Attributes:
        sources: up to four tensors.
        element: a function of Triton's of batch, head, key (KEYS, 1), place (1, DIMS), masks of both sizes and four pointers.
    """

    sources: list[torch.Tensor]
    element: object
    shape: torch.Size

    def tensor(self):
        """All of them in memory."""
        batch, heads, keys, dims = self.shape
        out = torch.empty(self.shape, dtype=torch.float32, device=self.sources[0].device)
        if out.numel():
            launch(
                _write_rows, (batch * heads, -(-keys // 64)), (*four_of(self.sources), out), (heads, keys, dims),
                ELEMENT=self.element, KEYS=64, DIMS=triton.next_power_of_2(dims),
            )  # fmt: skip
        return out


@triton.jit
def _write_rows(
    p0, p1, p2, p3, out_ptr, heads, keys, dims, ELEMENT: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr
):
    """Computed keys or values of one head."""
    batch, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    key, dim = tl.program_id(1) * KEYS + tl.arange(0, KEYS), tl.arange(0, DIMS)
    there = (key < keys)[:, None] & (dim < dims)[None, :]
    x = _rows(batch, head, key, dim, there, keys, p0, p1, p2, p3, 0, ELEMENT)
    at = (tl.program_id(0).to(tl.int64) * keys + key)[:, None] * dims + dim[None, :]
    tl.store(out_ptr + at, x, mask=there)


@triton.jit(do_not_specialize=["group", "queries", "keys", "length"])
def _stream(q_ptr, k_ptr, k1, k2, k3, v_ptr, v1, v2, v3, mask_ptr, bias_ptr, part_ptr, sums_ptr, heads, group, queries, keys, dims, scale, length,
            q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
            mask_batch, mask_head, mask_row, mask_col, bias_batch, bias_head, bias_row, bias_col,
            KEY: tl.constexpr, VALUE: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, CHANGE: tl.constexpr, EXACT: tl.constexpr,
            ROWS: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr):  # fmt: skip
    """The queries that share a head of keys, over a chunk of them: for each row its largest score, the weights' sum, and a mark.

    KEY, VALUE: they compute keys and values from what lies at four pointers.
    EXACT: by float32 multiply-adds, where the mark says that no scale holds the values or that scores are too large.
    """
    all_heads, head, chunk = tl.num_programs(0), tl.program_id(0), tl.program_id(1)
    batch, shared = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIMS)
    rows, first = group * queries, chunk * length
    end = tl.minimum(keys, first + length)
    at = (chunk * all_heads + head).to(tl.int64) * rows + row
    if EXACT:
        fine = tl.min(tl.load(sums_ptr + 3 * at + 2, mask=row < rows, other=1.0), axis=0) > 0
        rows, end = tl.where(fine, 0, rows), tl.where(fine, first, end)
    of_head, query = shared * group + row // queries, (row % queries).to(tl.int64)
    there = (row < rows)[:, None] & (dim < dims)[None, :]
    q_at = batch * q_batch + of_head * q_head + query * q_row
    q = tl.load((q_ptr + q_at)[:, None] + dim[None, :], mask=there, other=0.0)
    qh, ql, q_scale, q_fit = _in_parts(q, 1)
    q_scale *= scale
    largest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    # Of each place of a step; together at the end, since a reduction is a wait for all threads.
    weight = tl.zeros((ROWS, KEYS), dtype=tl.float32)
    extreme = tl.zeros((ROWS, KEYS), dtype=tl.float32)
    k_fit, v_fit = tl.full((KEYS,), 1, dtype=tl.int32), tl.full((DIMS,), 1, dtype=tl.int32)
    total = tl.zeros((ROWS, DIMS), dtype=tl.float32)
    mask_at = batch * mask_batch + of_head * mask_head + query * mask_row
    bias_at = batch * bias_batch + of_head * bias_head + query * bias_row
    for now in tl.range(first, end, KEYS):
        key = now + tl.arange(0, KEYS)
        far = key.to(tl.int64)
        counts = (row < rows)[:, None] & (key < end)[None, :]
        inside = (key < end)[:, None] & (dim < dims)[None, :]
        if HAS_BIAS:
            bias = tl.load(bias_ptr + bias_at[:, None] + far[None, :] * bias_col, mask=counts, other=0)
        if HAS_MASK:
            masked = tl.load(mask_ptr + mask_at[:, None] + far[None, :] * mask_col, mask=counts, other=1)
            counts = masked == 0
        k_at, v_at = batch * k_batch + shared * k_head, batch * v_batch + shared * v_head
        k = _rows(batch, shared, key, dim, inside, end, k_ptr, k1, k2, k3, k_at + far * k_row, KEY)
        v = _rows(batch, shared, key, dim, inside, end, v_ptr, v1, v2, v3, v_at + far * v_row, VALUE)
        if EXACT:
            score = tl.dot(q, k.T, input_precision="ieee") * scale
        else:
            kh, kl, k_scale, fits = _in_parts(k, 1)
            k_fit = tl.minimum(k_fit, fits)
            score = tl.dot(ql, kh.T)
            score = tl.dot(qh, kl.T, score)
            score = tl.dot(qh, kh.T, score)
            score = score * q_scale[:, None] * k_scale[None, :]
        if CHANGE is not None:
            extreme = tl.maximum(extreme, tl.where(counts, tl.abs(score), 0.0))
            score = CHANGE(score, bias if HAS_BIAS else score)
        p, faded, largest = exponentials(score, counts, largest)
        weight = weight * faded[:, None] + p
        if EXACT:
            total = total * faded[:, None] + tl.dot(p, v, input_precision="ieee")
        else:
            p *= 4096.0
            ph = p.to(tl.float16)
            pl = (p - ph.to(tl.float32)).to(tl.float16)
            vh, vl, v_scale, fits = _in_parts(v, 0)
            v_fit = tl.minimum(v_fit, fits)
            part = tl.dot(pl, vh)
            part = tl.dot(ph, vl, part)
            part = tl.dot(ph, vh, part)
            total = total * faded[:, None] + part * v_scale[None, :]
    if not EXACT:
        total *= 0.000244140625  # of the weights' 4096
    if CHANGE is None:
        most = tl.where(largest == float("-inf"), 0.0, tl.abs(largest))
    else:
        most = tl.max(extreme, axis=1)
    all_fit = tl.minimum(tl.min(k_fit, axis=0), tl.min(v_fit, axis=0))
    is_off = (most > LARGEST_SCORE) | (tl.minimum(all_fit, tl.min(q_fit, axis=0)) == 0)
    tl.store(sums_ptr + 3 * at, largest, mask=row < rows)
    tl.store(sums_ptr + 3 * at + 1, tl.sum(weight, axis=1), mask=row < rows)
    tl.store(sums_ptr + 3 * at + 2, tl.where(is_off, -1.0, 1.0), mask=row < rows)
    tl.store(part_ptr + at[:, None] * dims + dim[None, :], total, mask=there)


@triton.jit(do_not_specialize=["group", "queries", "keys", "length"])
def _stream_thin(q_ptr, k_ptr, k1, k2, k3, v_ptr, v1, v2, v3, mask_ptr, bias_ptr, part_ptr, sums_ptr, heads, group, queries, keys, dims, scale, length,
                 q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
                 mask_batch, mask_head, mask_row, mask_col, bias_batch, bias_head, bias_row, bias_col,
                 KEY: tl.constexpr, VALUE: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, CHANGE: tl.constexpr,
                 ROWS: tl.constexpr, KEYS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, SLICES: tl.constexpr):  # fmt: skip
    """As `_stream` for up to four rows, by multiply-adds, which take less time than a split then.

    Heads are cut in slices. All threads read SLOTS rows of a slice together, 16 bytes each. Every SLOTS-th key belongs to one slot,
    which has a largest score, a sum of weights and a total of its own, so that no thread waits for another before the end.
    """
    all_heads, head, chunk = tl.num_programs(0), tl.program_id(0), tl.program_id(1)
    batch, shared = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    rows, first = group * queries, chunk * length
    end = tl.minimum(keys, first + length)
    dim = tl.arange(0, WIDTH)
    q, largest, weight, total = (), (), (), ()
    for row in tl.static_range(ROWS):
        q_at = q_ptr + batch * q_batch + (shared * group + row // queries) * q_head + row % queries * q_row
        for part in tl.static_range(SLICES):
            inside = (part * WIDTH + dim < dims) & (row < rows)
            q = q + (tl.load(q_at + part * WIDTH + dim, mask=inside, other=0.0),)  # noqa: RUF005
            total = total + (tl.zeros((SLOTS, WIDTH), dtype=tl.float32),)  # noqa: RUF005
        largest = largest + (tl.full((SLOTS,), float("-inf"), dtype=tl.float32),)  # noqa: RUF005
        weight = weight + (tl.zeros((SLOTS,), dtype=tl.float32),)  # noqa: RUF005
    k_at, v_at = batch * k_batch + shared * k_head, batch * v_batch + shared * v_head
    for now in tl.range(first, end, KEYS):
        key = now + tl.arange(0, KEYS)
        far = key.to(tl.int64)
        k, v = (), ()
        for part in tl.static_range(SLICES):
            place = part * WIDTH + dim
            there = (key < end)[:, None] & (place < dims)[None, :]
            some = _rows(batch, shared, key, place, there, end, k_ptr, k1, k2, k3, k_at + far * k_row, KEY)
            k = k + (some,)  # noqa: RUF005 - Triton knows no unpacking
        for part in tl.static_range(SLICES):
            place = part * WIDTH + dim
            there = (key < end)[:, None] & (place < dims)[None, :]
            some = _rows(batch, shared, key, place, there, end, v_ptr, v1, v2, v3, v_at + far * v_row, VALUE)
            v = v + (some,)  # noqa: RUF005
        largest_now, weight_now, total_now = (), (), ()
        for row in tl.static_range(ROWS):
            of_head, query = shared * group + row // queries, row % queries
            products = k[0] * q[row * SLICES][None, :]
            for part in tl.static_range(1, SLICES):
                products += k[part] * q[row * SLICES + part][None, :]
            score = tl.sum(products, axis=1) * scale
            counts = (key < end) & (row < rows)
            if CHANGE is not None:
                bias = score
                if HAS_BIAS:
                    at = batch * bias_batch + of_head * bias_head + query * bias_row
                    bias = tl.load(bias_ptr + at + far * bias_col, mask=counts, other=0)
                score = CHANGE(score, bias)
            if HAS_MASK:
                at = batch * mask_batch + of_head * mask_head + query * mask_row
                counts = tl.load(mask_ptr + at + far * mask_col, mask=counts, other=1) == 0
            score = tl.reshape(tl.where(counts, score, float("-inf")), (KEYS // SLOTS, SLOTS))
            most = tl.maximum(largest[row], tl.max(score, axis=0))
            base = tl.where(most == float("-inf"), 0.0, most)
            p = tl.exp(score - base[None, :])
            faded = tl.where(largest[row] == float("-inf"), 0.0, tl.exp(largest[row] - base))
            largest_now = largest_now + (most,)  # noqa: RUF005
            weight_now = weight_now + (weight[row] * faded + tl.sum(p, axis=0),)  # noqa: RUF005
            p = tl.reshape(p, (KEYS,))
            for part in tl.static_range(SLICES):
                more = tl.sum(tl.reshape(p[:, None] * v[part], (KEYS // SLOTS, SLOTS, WIDTH)), axis=0)
                total_now = total_now + (total[row * SLICES + part] * faded[:, None] + more,)  # noqa: RUF005
        largest, weight, total = largest_now, weight_now, total_now
    for row in tl.static_range(ROWS):
        at = (chunk * all_heads + head).to(tl.int64) * rows + row
        most = tl.max(largest[row], axis=0)
        counted = tl.exp(largest[row] - tl.where(most == float("-inf"), 0.0, most))
        tl.store(sums_ptr + 3 * at, most, mask=row < rows)
        tl.store(sums_ptr + 3 * at + 1, tl.sum(weight[row] * counted, axis=0), mask=row < rows)
        for part in tl.static_range(SLICES):
            place = part * WIDTH + dim
            result = tl.sum(total[row * SLICES + part] * counted[:, None], axis=0)
            tl.store(part_ptr + at * dims + place, result, mask=(place < dims) & (row < rows))


@triton.jit(do_not_specialize=["group", "queries", "chunks"])
def _join_chunks(part_ptr, sums_ptr, out_ptr, heads, group, queries, dims, chunks, out_batch, out_head, out_row,
                 SAFE: tl.constexpr, ROWS: tl.constexpr, DIMS: tl.constexpr):  # fmt: skip
    """The queries that share a head of keys: the sums of all chunks, each as much as the largest score of its keys makes it count."""
    all_heads, head = tl.num_programs(0), tl.program_id(0)
    row, dim, rows = tl.arange(0, ROWS), tl.arange(0, DIMS), group * queries
    there = (row < rows)[:, None] & (dim < dims)[None, :]
    largest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, DIMS), dtype=tl.float32)
    for chunk in range(chunks):
        at = (chunk * all_heads + head).to(tl.int64) * rows + row
        score = tl.load(sums_ptr + 3 * at, mask=row < rows, other=0.0)
        more = tl.load(sums_ptr + 3 * at + 1, mask=row < rows, other=1.0)
        part = tl.load(part_ptr + at[:, None] * dims + dim[None, :], mask=there, other=0.0)
        now = tl.maximum(largest, score)
        base = tl.where(now == float("-inf"), 0.0, now)
        faded, counted = tl.exp(largest - base), tl.exp(score - base)
        total = total * faded[:, None] + part * counted[:, None]
        weight, largest = weight * faded + more * counted, now
    if SAFE:
        weight = tl.where(weight == 0.0, 1.0, weight)
    of_head = (head % heads).to(tl.int64) * group + row // queries
    to = (
        (head // heads).to(tl.int64) * out_batch + of_head * out_head + (row % queries).to(tl.int64) * out_row
    )
    tl.store((out_ptr + to)[:, None] + dim[None, :], total / weight[:, None], mask=there)


def streaming_applies(q, keys, values):
    """Whether `streamed_attention` can compute with these."""
    (batch, heads, queries, dims), first = q.shape, keys[0]
    return (
        all(
            one.is_cuda and one.dtype == torch.float32 and one.dim() == 4
            for one in _tensors(q, *keys, *values)
        )
        and all(k.shape == v.shape for k, v in zip(keys, values, strict=True))
        and all(k.shape[:2] == first.shape[:2] and k.shape[3] == dims for k in keys)
        and first.shape[0] == batch
        and min(q.numel(), max(k.shape.numel() for k in keys)) > 0
        and heads % first.shape[1] == 0
        and heads // first.shape[1] * queries <= MOST_ROWS
        and 64 <= dims <= 256
        and dims % 8 == 0
    )


def _tensors(*pieces):
    return [one for one in pieces if not isinstance(one, Computed)]


def _is_thin(q, keys):
    """Whether so few queries share a head of keys that multiply-adds take less time than a split."""
    return q.shape[1] // keys[0].shape[1] * q.shape[2] <= MOST_THIN_ROWS and q.shape[3] <= MOST_THIN_DIMS


def streaming_pays(q, keys):
    """Whether `streamed_attention` is faster than torch's, which reads keys and values at 1.35 TB/s (H200)."""
    moved = 8 * sum(k.shape.numel() for k in keys)
    rate, launches = (3.2e12, len(keys) + 3) if _is_thin(q, keys) else (2.6e12, 2 * len(keys) + 3)
    return with_launches(moved / rate, launches) < 0.95 * moved / 1.35e12


def _source(piece):
    """Of keys or values: four tensors, strides of the first three axes, what computes them, and bytes of an element in memory."""
    if isinstance(piece, Computed):
        return (
            four_of(piece.sources),
            (0, 0, 0),
            piece.element,
            min(one.element_size() for one in piece.sources),
        )
    piece = piece if piece.stride(3) == 1 else piece.contiguous()
    return [piece] * 4, piece.stride()[:3], None, 4


def _chunks(device, heads, keys, programs):
    """Into how many chunks keys are cut: so many programs for each processor, each with enough keys."""
    return max(1, min(programs * processors(device) // heads, keys // 256))


def streamed_attention(q, keys, values, mask, bias, scale, safe, change, out):
    """Write softmax(change(scale * q k^T, bias)) v to out (batch, heads, queries, dims), whose last axis is dense; all float32.

    Args:
        q: (batch, heads, queries, dims); up to `MOST_ROWS` queries share a head of keys.
        keys, values: tensors (batch, heads that queries' heads share, some of the keys, dims), or one that is `Computed`.
        mask: booleans that expand to (batch, heads, queries, all keys), true for keys that do not count; or None.
        bias: float32 or booleans that expand to the same; or None.
        safe: zeros for queries that no key counts for, as torch's call has them; NaN otherwise, as softmax has it.
        change: a function of Triton's of scores and the bias, or None.
    """
    batch, heads, queries, dims = q.shape
    shared, group = keys[0].shape[1], heads // keys[0].shape[1]
    rows, size, is_thin = group * queries, max(16, triton.next_power_of_2(dims)), _is_thin(q, keys)
    warps = 4 if size <= 128 else 8
    q = q if q.stride(3) == 1 else q.contiguous()
    pieces, chunks, first = [], 0, 0
    sizes = (batch, heads, queries, sum(k.shape[2] for k in keys))
    beside = [None if one is None else in_bytes(out, one.expand(sizes)) for one in (mask, bias)]
    for k, v in zip(keys, values, strict=True):
        count = k.shape[2]
        if count:
            pair = [_source(one) for one in (k, v)]
            here = [one if one is None or len(keys) == 1 else one.narrow(3, first, count) for one in beside]
            length = -(-count // (_chunks(q.device, batch * shared, count, 8 if is_thin else 4) * 64)) * 64
            pieces.append((pair, count, here, length, chunks))
            chunks += -(-count // length)
            first += count
    parts = out.new_empty((chunks, batch * shared, rows, dims))
    sums = out.new_empty((chunks, batch * shared, rows, 3))
    for exact in (False,) if is_thin else (False, True):
        for (k, v), count, here, length, chunk in pieces:
            strides = [(0, 0, 0, 0) if one is None else one.stride() for one in here]
            if is_thin:  # as many bytes of keys in registers, whatever their type
                width = 64 if k[3] >= 4 else 128
                sizes = {
                    "ROWS": triton.next_power_of_2(rows),
                    "KEYS": 64 // k[3],
                    "SLOTS": 2048 // (k[3] * width),
                }
                sizes |= {"WIDTH": width, "SLICES": -(-dims // width)}
            else:
                sizes = {"EXACT": exact, "ROWS": MOST_ROWS, "KEYS": 64 if size <= 128 else 32, "DIMS": size}
            launch(
                _stream_thin if is_thin else _stream, (batch * shared, -(-count // length)),
                (q, *k[0], *v[0], *(out if one is None else one for one in here), parts[chunk:], sums[chunk:]),
                (shared, group, queries, count, dims, scale, length, *q.stride()[:3], *k[1], *v[1], *strides[0], *strides[1]),
                KEY=k[2], VALUE=v[2], HAS_MASK=mask is not None, HAS_BIAS=bias is not None, CHANGE=change, **sizes,
                num_warps=warps, num_stages=1,
            )  # fmt: skip
    launch(
        _join_chunks, (batch * shared,), (parts, sums, out),
        (shared, group, queries, dims, chunks, *out.stride()[:3]),
        SAFE=safe, ROWS=MOST_ROWS, DIMS=size, num_warps=4,
    )  # fmt: skip
    return out
