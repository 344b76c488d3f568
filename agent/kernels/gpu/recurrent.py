"""Recurrent layers (LSTM, GRU, plain ones) of a few rows: one launch computes all steps of all layers, or of both directions of one.

A step of one layer is a product of few rows with weights, so launches and their dependence would take the time, not arithmetic. Here a
program has some units of one cell (a layer, or a direction) for the whole sequence, and their weights in shared memory. Layer l
computes step t while layer l + 1 computes step t - 1 (Appleyard et al., 2016, arXiv:1604.01946). Programs wait for the states that they
read: each cell counts the parts of its states that are written. All programs run at the same time, which a cooperative launch ensures.
The wait is bounded nevertheless, and what was not waited for is NaN. Each warp sums a part of the terms; products are sums of six
products of bfloat16 parts, which hold all bits of a float32.
"""

import functools

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.products import LAUNCH_S, processors

STEP_WARPS, STEP_TILE = 8, 16
#: Seconds of a step, and rows below which cuDNN has a kernel of its own (H200).
STEP_S, FEWEST_ROWS = 10e-6, 5
_COLS = {"lstm": 4, "gru": 4, "tanh": 1, "relu": 1}
#: Bytes of a weight's three parts, and of shared memory that a program may need for what is not counted below.
_PART_BYTES, _SPARE_BYTES = 6, 1 << 10
#: Looks at a count of about half a microsecond each; after one wait that was too short there are no others.
LONGEST_WAIT = 1 << 21


@triton.jit
def _tanh(x):
    """Where exponentials would cancel, its series."""
    y = x * x
    series = 0.13333333333333333 - y * (0.05396825396825397 - y * 0.021869488536155203)
    near = x * (1.0 - y * (0.3333333333333333 - y * series))
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))


#: Threads 0 and 32 look at a count each until it is what they need, or have looked often enough; the other threads of their warps wait.
_LOOK = tl.constexpr("""{
    .reg .pred is_done;
    .reg .b32 thread, looks, seen, least;
    .reg .b64 at;
    mov.u32 thread, %tid.x;
    mov.b64 at, $1;
    mov.b32 least, $2;
    setp.eq.u32 is_done, thread, 32;
    @is_done mov.b64 at, $3;
    @is_done mov.b32 least, $4;
    mov.b32 looks, 0;
    and.b32 seen, thread, 0xffffffdf;
    setp.ne.u32 is_done, seen, 0;
    @is_done bra end;
again:
    ld.acquire.gpu.global.s32 seen, [at];
    setp.ge.s32 is_done, seen, least;
    @is_done bra end;
    add.u32 looks, looks, 1;
    setp.lt.u32 is_done, looks, $5;
    @is_done bra again;
end:
    bar.warp.sync 0xffffffff;
    mov.b32 $0, looks;
}""")


@triton.jit
def _await(own_ptr, own_least, fed_ptr, fed_least, most_looks):
    """Wait until both counts are what is needed; what was written before can be read then. Whether they are."""
    at = (own_ptr.to(tl.int64), own_least, fed_ptr.to(tl.int64), fed_least, most_looks)
    tl.inline_asm_elementwise(_LOOK, "=r,l,r,l,r,r", at, dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()
    return (tl.load(own_ptr, volatile=True) >= own_least) & (tl.load(fed_ptr, volatile=True) >= fed_least)


@triton.jit(do_not_specialize=["first", "end", "steps", "rows", "cells"])
def _steps(given_ptr, into_ptr, into_bias_ptr, over_ptr, over_bias_ptr, hidden_ptr, state_ptr, count_ptr, past_ptr, out_ptr, last_ptr,
           first, end, steps, rows, units, cells,
           KIND: tl.constexpr, STACKED: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
           SLICES: tl.constexpr, AT_ONCE: tl.constexpr, MOST_LOOKS: tl.constexpr):  # fmt: skip
    """Steps of a part of a cell: those from ``first`` to before ``end``, which the first layer counts; each layer is one behind.

    A product has a column for each gate of a unit. Its terms are the cell's own states and, above the first layer, those of the layer
    below. A GRU's third gate has two columns, since its parts are kept apart: own states in the third, what is fed in the fourth.

    AT_ONCE: all steps, so that programs must wait for one another. Else no two steps of a launch depend on each other.
    """
    GATES: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    COLS: tl.constexpr = 1 if GATES == 1 else 4
    cell, blocks = tl.program_id(1), tl.num_programs(0)
    lag = cell if STACKED else 0
    size = rows * units
    unit = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(2) * BM + tl.arange(0, BM)
    at, there = row[:, None] * units + unit[None, :], (row < rows)[:, None] & (unit < units)[None, :]
    col = tl.arange(0, BN * COLS) % COLS
    of_col = tl.program_id(0) * BN + tl.arange(0, BN * COLS) // COLS
    own_gate, fed_gate = col, col
    is_own, is_fed = (of_col < units) & (col < GATES), of_col < units
    if KIND == "gru":
        fed_gate, is_fed = tl.where(col == 3, 2, col), is_fed & (col != 2)
    own_line, fed_line = own_gate * units + of_col, fed_gate * units + of_col
    # Each warp sums a slice of the terms.
    terms = 2 * units if STACKED and cell > 0 else units
    k = tl.arange(0, SLICES)[:, None] * BK + tl.arange(0, BK)[None, :]
    w_k, x_k = k[:, :, None], k[:, None, :]
    w_ptr = over_ptr + cell.to(tl.int64) * GATES * units * units + own_line[None, None, :] * units + w_k
    w_there = is_own[None, None, :] & (w_k < units)
    if STACKED:
        from_ptr = into_ptr + (cell.to(tl.int64) - 1) * GATES * units * units
        w_ptr = tl.where(w_k < units, w_ptr, from_ptr + fed_line[None, None, :] * units + w_k - units)
        w_there = w_there | (is_fed[None, None, :] & (w_k >= units) & (w_k < terms))
    w = tl.load(w_ptr, mask=w_there, other=0.0)
    bias = tl.zeros((BN * COLS,), dtype=tl.float32)
    if HAS_BIAS:
        bias += tl.load(over_bias_ptr + cell * GATES * units + own_line, mask=is_own, other=0.0)
        if STACKED:
            there_too = is_fed & (cell > 0)
            bias += tl.load(into_bias_ptr + (cell - 1) * GATES * units + fed_line, mask=there_too, other=0.0)
    # Where states of this cell and of the layer below lie, and how far rows are apart.
    row_step = units if STACKED else cells * units
    step = rows * row_step
    own_ptr, below_ptr = out_ptr + cell * units, past_ptr
    if STACKED:
        below_ptr = past_ptr + (cell.to(tl.int64) - 1) * steps * size
        own_ptr = tl.where(cell < cells - 1, below_ptr + steps.to(tl.int64) * size, out_ptr)
    own_count_ptr = count_ptr + tl.program_id(2) * cells + cell
    below_count_ptr = tl.where(STACKED and cell > 0, own_count_ptr - 1, own_count_ptr)
    state = tl.zeros((BM, BN), dtype=tl.float32)
    if KIND == "lstm":
        state = tl.load(state_ptr + cell * size + at, mask=there, other=0.0)
    looks = tl.full((), MOST_LOOKS, tl.int32)
    for t in range(tl.maximum(first - lag, 0), tl.minimum(end - lag, steps)):
        is_back = not STACKED and cell == 1
        place = tl.where(is_back, steps - 1 - t, t).to(tl.int64)
        total = tl.zeros((BM, BN * COLS), dtype=tl.float32) + bias[None, :]
        if not STACKED or cell == 0:
            which = 0 if STACKED else cell
            line_ptr = given_ptr + ((which * steps + place) * rows + row)[:, None] * GATES * units
            total += tl.load(
                line_ptr + fed_line[None, :], mask=(row < rows)[:, None] & is_fed[None, :], other=0.0
            )
        in_time = True
        if AT_ONCE:
            needed = tl.where(STACKED and cell > 0, t + 1, t) * blocks
            in_time = _await(own_count_ptr, t * blocks, below_count_ptr, needed, looks)
            looks = tl.where(in_time, looks, 0)
        before_ptr = own_ptr + tl.where(is_back, place + 1, place - 1) * step
        before_ptr = tl.where(t == 0, hidden_ptr + cell * size, before_ptr)
        before_step = tl.where(t == 0, units, row_step)
        x_row = row[None, :, None]
        x_ptr = before_ptr + x_row * before_step + x_k
        if STACKED:
            x_ptr = tl.where(x_k < units, x_ptr, below_ptr + place * size + x_row * units + x_k - units)
        # Past the first cache, which may hold what was there before.
        x = tl.load(x_ptr, mask=(x_row < rows) & (x_k < terms), other=0.0, cache_modifier=".cg")
        total += tl.sum(tl.dot(x, w, input_precision="bf16x6"), 0)
        if AT_ONCE:
            total = tl.where(in_time, total, float("nan"))
        if COLS == 1:
            a = total
        else:
            even, odd = tl.split(tl.reshape(total, (BM, BN, 2, 2)))
            a, c = tl.split(even)
            b, d = tl.split(odd)
        if KIND == "lstm":
            state = tl.sigmoid(b) * state + tl.sigmoid(a) * _tanh(c)
            now = tl.sigmoid(d) * _tanh(state)
        elif KIND == "gru":
            own_at = before_ptr + row[:, None] * before_step + unit[None, :]
            own = tl.load(own_at, mask=there, other=0.0, cache_modifier=".cg")
            new = _tanh(d + tl.sigmoid(a) * c)
            now = (own - new) * tl.sigmoid(b) + new
        elif KIND == "tanh":
            now = _tanh(a)
        else:
            now = tl.where(a < 0.0, 0.0, a)
        tl.store(own_ptr + place * step + row[:, None] * row_step + unit[None, :], now, mask=there)
        if t == steps - 1:
            tl.store(last_ptr + cell * size + at, now, mask=there)
        if AT_ONCE:
            tl.debug_barrier()
            tl.atomic_add(own_count_ptr, 1, sem="release")
    if KIND == "lstm":
        tl.store(state_ptr + cell * size + at, state, mask=there)


@repeated
def recurrent_steps(given, into, into_bias, over, over_bias, hidden, state, kind):
    """All steps of layers, or of one layer's directions, the second of which goes backward.

    Args:
        given: (1 or directions, steps, rows, gates * units), the input's part of the gates of the first layer or of each direction,
            with its bias.
        into, into_bias: (layers - 1, gates * units, units) and (layers - 1, gates * units), the input weights of layers but the first;
            None for one layer.
        over, over_bias: (layers or directions, gates * units, units) and (.., gates * units), the recurrent weights; biases may be None.
        hidden: (layers or directions, rows, units), the states at the beginning.
        state: (layers or directions, rows, units), an LSTM's cells, overwritten with the last ones; else None.
        kind: "lstm", "gru", "tanh" or "relu", gates in torch's order.

    Returns:
        The hidden states of the last layer or of both directions (steps, rows, directions * units) and the last ones (.., rows, units).
    """
    _, steps, rows, _ = given.shape
    cells, _, units = hidden.shape
    stacked = cells > len(given)
    out = given.new_empty((steps, rows, units if stacked else cells * units))
    # States of layers but the last.
    past = given.new_empty((cells - 1, steps, rows, units)) if stacked else given
    last = given.new_empty((cells, rows, units))
    blocks, parts = -(-units // STEP_TILE), -(-rows // STEP_TILE)
    count = torch.zeros(parts * cells, dtype=torch.int32, device=given.device)
    # A kernel reads no pointer of what is not there; any tensor may stand for it.
    tensors = [
        given if one is None else one for one in (given, into, into_bias, over, over_bias, hidden, state)
    ]
    waves = steps + cells - 1 if stacked else steps
    at_once = given.is_cuda  # the interpreter runs one program after the other
    for first in range(0, waves, waves if at_once else 1):
        launch(
            _steps, (blocks, cells, parts), (*tensors, count, past, out, last),
            (first, waves if at_once else first + 1, steps, rows, units, cells),
            KIND=kind, STACKED=stacked, HAS_BIAS=over_bias is not None, BM=STEP_TILE, BN=STEP_TILE, BK=_terms(units, stacked),
            SLICES=STEP_WARPS, AT_ONCE=at_once, MOST_LOOKS=LONGEST_WAIT, num_warps=STEP_WARPS, num_stages=1,
            launch_cooperative_grid=at_once,
        )  # fmt: skip
    return out, last


def _terms(units, stacked):
    """Of a warp."""
    return max(16, triton.next_power_of_2(-(-units * (1 + stacked) // STEP_WARPS)))


@functools.cache
def _shared_bytes(device):
    """That one program may have; 0 where the kernel, which has PTX and products of bfloat16, does not run."""
    found = torch.cuda.get_device_properties(device)
    return found.shared_memory_per_block_optin if torch.version.hip is None and found.major >= 8 else 0


def needed_bytes(kind, units, stacked):
    """Of shared memory, for a program's weights beside a step's terms or their sums."""
    terms = _terms(units, stacked)
    held = terms * _COLS[kind] * _PART_BYTES
    passing = 4 * max(terms, STEP_TILE * _COLS[kind])
    return STEP_WARPS * STEP_TILE * (held + passing) + _SPARE_BYTES


def layers_at_once(device, kind, layers, directions, rows, units):
    """Of how many layers all programs run at the same time, with their weights in shared memory; 0 for none."""
    room = processors(device) // (-(-units // STEP_TILE) * -(-rows // STEP_TILE) * directions)
    if (
        directions == 1
        and layers > 1
        and room > 1
        and needed_bytes(kind, units, True) <= _shared_bytes(device)
    ):
        return min(layers, room)
    return min(1, room) * (needed_bytes(kind, units, False) <= _shared_bytes(device))


def recurrent_pays(x, states, weights, kind, layers, directions, batch_first):
    """Whether `recurrent_steps` can compute a layer, and is expected to be faster than cuDNN.

    cuDNN takes at least 1.4 launches for a step of a layer, in a CUDA graph (2.6 us) and out of it (11 us), and ours 10 us for a step of
    all (H200; 10 rows, 256 units). Of very few rows cuDNN has a kernel of its own, which takes 1 us.
    """
    tensors = [x, *states, *weights]
    _, rows, units = states[0].shape
    if not (
        all(one.is_cuda and one.dtype == torch.float32 for one in tensors)
        and x.numel() > 0
        and rows >= FEWEST_ROWS
        and all(one.shape == states[0].shape and one.numel() > 0 for one in states)
        and x.shape[0] * x.shape[1] * units * layers * directions < 1 << 31
    ):
        return False
    together = layers_at_once(x.device, kind, layers, directions, rows, units)
    if not together:
        return False
    steps = x.shape[1 if batch_first else 0]
    waves = sum(steps + min(together, layers - first) - 1 for first in range(0, layers, together))
    return STEP_S * waves < 1.4 * LAUNCH_S * steps * layers * directions
