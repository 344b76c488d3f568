"""Recurrent layers (LSTM, GRU, plain ones) of a few rows: one launch computes all steps of all layers, or of both directions of one.

A step of one layer is a product of few rows with weights, so launches and their dependence would take the time, not arithmetic. Here a
program has some units of one cell (a layer, or a direction) for the whole sequence. Its weights stay in shared memory where they fit there.
Layer l computes step t while layer l + 1 computes step t - 1 (Appleyard et al., 2016, arXiv:1604.01946). Programs
wait for the states that they read: each cell counts the parts of its states that are written. All programs run at the same time, which a
cooperative launch ensures. The wait is bounded nevertheless, and what was not waited for is NaN.
Each warp sums a part of the terms; products are sums of six products of bfloat16 parts, which hold all bits of a float32.
"""

import functools

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.products import processors

WARPS, TILE = 8, 16
_GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
#: Bytes of a weight's three parts, and of shared memory that a program needs besides weights.
_PART_BYTES, _OTHER_BYTES = 6, 33 << 10
#: Looks at a count of about half a microsecond each.
MOST_LOOKS = 1 << 22


@triton.jit
def _tanh(x):
    """Where exponentials would cancel, its series."""
    y = x * x
    series = 0.13333333333333333 - y * (0.05396825396825397 - y * 0.021869488536155203)
    near = x * (1.0 - y * (0.3333333333333333 - y * series))
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _of_gates(ptr, step, there, GATES: tl.constexpr):
    """What lies at ``ptr`` for up to four gates, ``step`` apart."""
    a = tl.load(ptr, mask=there, other=0.0)
    b, c, d = a, a, a
    if GATES > 1:
        b = tl.load(ptr + step, mask=there, other=0.0)
        c = tl.load(ptr + 2 * step, mask=there, other=0.0)
    if GATES > 3:
        d = tl.load(ptr + 3 * step, mask=there, other=0.0)
    return a, b, c, d


@triton.jit
def _add_products(x, u, v, w, z, a, b, c, d, GATES: tl.constexpr):
    """Adds the products of x with the weights u, v, w, z of up to four gates to their sums."""
    a = tl.dot(x, u, a, input_precision="bf16x6")
    if GATES > 1:
        b = tl.dot(x, v, b, input_precision="bf16x6")
        c = tl.dot(x, w, c, input_precision="bf16x6")
    if GATES > 3:
        d = tl.dot(x, z, d, input_precision="bf16x6")
    return a, b, c, d


@triton.jit
def _await(own_ptr, own_least, other_ptr, other_least, MOST_LOOKS: tl.constexpr):
    """Whether two counts reach what is needed; what was written before they did can be read afterward."""
    looks = 0
    own, other = tl.load(own_ptr, volatile=True), tl.load(other_ptr, volatile=True)
    while ((own < own_least) | (other < other_least)) & (looks < MOST_LOOKS):
        own, other = tl.load(own_ptr, volatile=True), tl.load(other_ptr, volatile=True)
        looks += 1
    looks = tl.inline_asm_elementwise(
        "fence.acq_rel.gpu; mov.u32 $0, $1;", "=r,r", [looks], dtype=tl.int32, is_pure=False, pack=1
    )
    return looks < MOST_LOOKS


@triton.jit(do_not_specialize=["first", "end", "steps", "rows", "cells"])
def _steps(given_ptr, into_ptr, into_bias_ptr, over_ptr, over_bias_ptr, hidden_ptr, state_ptr, count_ptr, past_ptr, out_ptr, last_ptr,
           first, end, steps, rows, units, cells,
           KIND: tl.constexpr, STACKED: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
           SLICES: tl.constexpr, HELD: tl.constexpr, AT_ONCE: tl.constexpr, MOST_LOOKS: tl.constexpr):  # fmt: skip
    """Steps of a part of a cell: those from ``first`` to before ``end``, which the first layer counts; each layer is one behind.

    AT_ONCE: all steps, so that programs must wait for one another. Else no two steps of a launch depend on each other.
    """
    GATES: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    cell, blocks = tl.program_id(1), tl.num_programs(0)
    lag = cell if STACKED else 0
    size = rows * units
    unit = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(2) * BM + tl.arange(0, BM)
    there = (row < rows)[:, None] & (unit < units)[None, :]
    # Each warp has a slice of the terms.
    reach = tl.cdiv(units, SLICES * BK) * BK
    k = tl.arange(0, SLICES)[:, None] * reach + tl.arange(0, BK)[None, :]
    x_k, w_k, x_row, w_unit = k[:, None, :], k[:, :, None], row[None, :, None], unit[None, None, :]
    w_at, apart = w_unit * units + w_k, units * units
    over_ptr += cell.to(tl.int64) * GATES * apart
    into_ptr += (cell.to(tl.int64) - 1) * GATES * apart
    is_fed, all_units = STACKED and cell > 0, tl.full((SLICES, BK, BN), True, tl.int1)
    w_there = all_units & (w_unit < units) & (w_k < units)
    if HELD:
        u, v, w, z = _of_gates(over_ptr + w_at, apart, w_there, GATES)
        if STACKED:
            fed_u, fed_v, fed_w, fed_z = _of_gates(into_ptr + w_at, apart, w_there & (cell > 0), GATES)
    zero = tl.zeros((BM, BN), dtype=tl.float32)
    bias_a, bias_b, bias_c, bias_d = zero, zero, zero, zero
    bias_at = unit[None, :] + row[:, None] * 0
    if HAS_BIAS:
        bias_a, bias_b, bias_c, bias_d = _of_gates(
            over_bias_ptr + cell * GATES * units + bias_at, units, there, GATES
        )
    given_a, given_b, given_c, given_d = zero, zero, zero, zero
    if STACKED and HAS_BIAS:
        given_a, given_b, given_c, given_d = _of_gates(
            into_bias_ptr + (cell - 1) * GATES * units + bias_at, units, there & (cell > 0), GATES
        )
    # Where states of this cell and of the layer before it lie, and how far rows are apart.
    apart_rows = units if STACKED else cells * units
    if STACKED:
        below_ptr = past_ptr + (cell.to(tl.int64) - 1) * steps * size
        own_ptr = tl.where(cell < cells - 1, below_ptr + steps.to(tl.int64) * size, out_ptr)
    else:
        below_ptr, own_ptr = past_ptr, out_ptr + cell * units
    group_ptr = count_ptr + tl.program_id(2) * cells + cell
    at = row[:, None] * units + unit[None, :]
    state = zero
    if KIND == "lstm":
        state = tl.load(state_ptr + cell * size + at, mask=there, other=0.0)
    for t in range(tl.maximum(first - lag, 0), tl.minimum(end - lag, steps)):
        is_back = not STACKED and cell == 1
        place = tl.where(is_back, steps - 1 - t, t).to(tl.int64)
        if not STACKED or cell == 0:
            which = 0 if STACKED else cell
            begin = given_ptr + (which * steps + place) * rows * GATES * units
            given_a, given_b, given_c, given_d = _of_gates(
                begin + row[:, None] * GATES * units + unit[None, :], units, there, GATES
            )
        in_time = True
        if AT_ONCE:
            fed_ptr = tl.where(is_fed, group_ptr - 1, group_ptr)
            in_time = _await(group_ptr, t * blocks, fed_ptr, tl.where(is_fed, t + 1, t) * blocks, MOST_LOOKS)
        step = rows * apart_rows
        before_ptr = own_ptr + tl.where(is_back, place + 1, place - 1) * step
        before_ptr = tl.where(t == 0, hidden_ptr + cell * size, before_ptr)
        before_rows = tl.where(t == 0, units, apart_rows)
        sums = tl.zeros((SLICES, BM, BN), dtype=tl.float32)
        a, b, c, d = sums, sums, sums, sums
        if HELD:
            x_there = (x_row < rows) & (x_k < units)
            h = tl.load(before_ptr + x_row * before_rows + x_k, mask=x_there, other=0.0, cache_modifier=".cg")
            a, b, c, d = _add_products(h, u, v, w, z, a, b, c, d, GATES)
            if STACKED:
                x = tl.load(
                    below_ptr + place * size + x_row * units + x_k,
                    mask=x_there & (cell > 0),
                    other=0.0,
                    cache_modifier=".cg",
                )
                if KIND == "gru":  # of the third gate the parts are kept apart
                    a, b, d, _ = _add_products(x, fed_u, fed_v, fed_w, fed_z, a, b, d, d, GATES)
                else:
                    a, b, c, d = _add_products(x, fed_u, fed_v, fed_w, fed_z, a, b, c, d, GATES)
        else:
            for k0 in tl.range(0, reach, BK):
                x_there = (x_row < rows) & (x_k + k0 < units)
                w_there = all_units & (w_unit < units) & (w_k + k0 < units)
                h = tl.load(
                    before_ptr + x_row * before_rows + x_k + k0, mask=x_there, other=0.0, cache_modifier=".cg"
                )
                u, v, w, z = _of_gates(over_ptr + w_at + k0, apart, w_there, GATES)
                a, b, c, d = _add_products(h, u, v, w, z, a, b, c, d, GATES)
                if STACKED:
                    x = tl.load(
                        below_ptr + place * size + x_row * units + x_k + k0,
                        mask=x_there & (cell > 0),
                        other=0.0,
                        cache_modifier=".cg",
                    )
                    u, v, w, z = _of_gates(into_ptr + w_at + k0, apart, w_there & (cell > 0), GATES)
                    if KIND == "gru":
                        a, b, d, _ = _add_products(x, u, v, w, z, a, b, d, d, GATES)
                    else:
                        a, b, c, d = _add_products(x, u, v, w, z, a, b, c, d, GATES)
        a = tl.sum(a, 0) + bias_a + given_a
        if GATES > 1:
            b = tl.sum(b, 0) + bias_b + given_b
        if KIND == "lstm":
            c, d = tl.sum(c, 0) + bias_c + given_c, tl.sum(d, 0) + bias_d + given_d
            state = tl.sigmoid(b) * state + tl.sigmoid(a) * _tanh(c)
            now = tl.sigmoid(d) * _tanh(state)
        elif KIND == "gru":
            own = tl.load(
                before_ptr + row[:, None] * before_rows + unit[None, :],
                mask=there,
                other=0.0,
                cache_modifier=".cg",
            )
            new = _tanh(tl.sum(d, 0) + given_c + tl.sigmoid(a) * (tl.sum(c, 0) + bias_c))
            now = (own - new) * tl.sigmoid(b) + new
        elif KIND == "tanh":
            now = _tanh(a)
        else:
            now = tl.where(a < 0.0, 0.0, a)
        if AT_ONCE:
            now = tl.where(in_time, now, float("nan"))
        tl.store(own_ptr + place * step + row[:, None] * apart_rows + unit[None, :], now, mask=there)
        if t == steps - 1:
            tl.store(last_ptr + cell * size + at, now, mask=there)
        if AT_ONCE:
            tl.debug_barrier()
            tl.atomic_add(group_ptr, 1, sem="release")
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
    blocks, parts = -(-units // TILE), -(-rows // TILE)
    count = torch.zeros(parts * cells, dtype=torch.int32, device=given.device)
    terms = max(16, triton.next_power_of_2(-(-units // WARPS)))
    held_bytes = terms * WARPS * TILE * _GATES[kind] * (1 + stacked) * _PART_BYTES
    is_held = held_bytes + _OTHER_BYTES <= _shared_bytes(given.device)
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
            KIND=kind, STACKED=stacked, HAS_BIAS=over_bias is not None, BM=TILE, BN=TILE, BK=terms if is_held else 16,
            SLICES=WARPS, HELD=is_held, AT_ONCE=at_once, MOST_LOOKS=MOST_LOOKS, num_warps=WARPS, num_stages=1,
            launch_cooperative_grid=at_once,
        )  # fmt: skip
    return out, last


@functools.cache
def _shared_bytes(device):
    """That one program may have."""
    return (
        torch.cuda.get_device_properties(device).shared_memory_per_block_optin if device.type == "cuda" else 0
    )


def cells_at_once(device, rows, units):
    """Of how many cells all programs run at the same time."""
    return processors(device) // (-(-units // TILE) * -(-rows // TILE))


def recurrent_applies(x, states, weights, directions):
    """Whether a layer's tensors are such as `recurrent_steps` takes, and programs of one layer run at the same time."""
    tensors = [x, *states, *weights]
    cells, rows, units = states[0].shape
    return (
        all(one.is_cuda and one.dtype == torch.float32 for one in tensors)
        and x.numel() > 0
        and states[0].numel() > 0
        and x.shape[0] * x.shape[1] * units * cells < 1 << 31
        and all(one.shape == states[0].shape for one in states)
        and cells_at_once(x.device, rows, units) >= directions
    )
