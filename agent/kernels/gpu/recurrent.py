"""Recurrent layers (LSTM, GRU, plain ones) of a few rows: one launch computes a step of all layers, or of both directions.

A step of one layer is a product of few rows with weights that fit in L2, so launches and their dependence take the time, not arithmetic.
Layer l therefore computes step t while layer l + 1 computes step t - 1 (Appleyard et al., 2016, arXiv:1604.01946): L layers of T steps
take T + L - 1 launches in place of a product and a pointwise pass for each step and layer. The next launch is the barrier, so nothing
has to wait inside a kernel. Products are sums of three products of TF32 parts, 32 terms at a time.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated

#: Rows beyond which a step is a product that fills the GPU, and bytes of weights that stay in L2; not measured.
MOST_AT_A_STEP, MOST_WEIGHT_BYTES = 128, 32 << 20


@triton.jit
def _tanh(x):
    """Where exponentials would cancel, its series."""
    y = x * x
    series = 0.13333333333333333 - y * (0.05396825396825397 - y * 0.021869488536155203)
    near = x * (1.0 - y * (0.3333333333333333 - y * series))
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _products(x, ptr, step, there, a, b, c, d, GATES: tl.constexpr):
    """Adds x @ w^T to the sums of up to four gates, whose weights lie ``step`` apart."""
    a += tl.dot(x, tl.load(ptr, mask=there, other=0.0), input_precision="tf32x3")
    if GATES > 1:
        b += tl.dot(x, tl.load(ptr + step, mask=there, other=0.0), input_precision="tf32x3")
        c += tl.dot(x, tl.load(ptr + 2 * step, mask=there, other=0.0), input_precision="tf32x3")
    if GATES > 3:
        d += tl.dot(x, tl.load(ptr + 3 * step, mask=there, other=0.0), input_precision="tf32x3")
    return a, b, c, d


@triton.jit
def _gates(ptr, step, unit, units, there, a, b, c, d, GATES: tl.constexpr):
    """Adds what lies at ``ptr`` for each gate, ``step`` apart for each row."""
    a += tl.load(ptr + step[:, None] + unit[None, :], mask=there, other=0.0)
    if GATES > 1:
        b += tl.load(ptr + step[:, None] + unit[None, :] + units, mask=there, other=0.0)
        c += tl.load(ptr + step[:, None] + unit[None, :] + 2 * units, mask=there, other=0.0)
    if GATES > 3:
        d += tl.load(ptr + step[:, None] + unit[None, :] + 3 * units, mask=there, other=0.0)
    return a, b, c, d


@triton.jit(do_not_specialize=["wave", "first", "steps", "rows", "cells"])
def _step(given_ptr, into_ptr, into_bias_ptr, over_ptr, over_bias_ptr, hidden_ptr, state_ptr, out_ptr, last_ptr,
          wave, first, steps, rows, units, cells,
          KIND: tl.constexpr, STACKED: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
          BK: tl.constexpr):  # fmt: skip
    """A step of each cell, which is a layer, or a direction of one layer.

    The hidden states (2, cells, rows, units) of the wave before are read, and those of this one are written beside them.
    """
    GATES: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    cell = first + tl.program_id(1)
    t = wave - cell if STACKED else wave
    place = steps - 1 - t if cell == 1 and not STACKED else t
    unit = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(2) * BM + tl.arange(0, BM)
    there = (row < rows)[:, None] & (unit < units)[None, :]
    size, no_step = rows * units, row * 0
    before, after = hidden_ptr + (wave + 1) % 2 * cells * size, hidden_ptr + wave % 2 * cells * size
    zero = tl.zeros((BM, BN), dtype=tl.float32)
    a, b, c, d = zero, zero, zero, zero
    mine, step = before + cell * size, units * units
    over_ptr += cell.to(tl.int64) * GATES * step
    into_ptr += (cell.to(tl.int64) - 1) * GATES * step
    # Sums of the step before and of the layer before side by side: they do not wait for each other.
    for k0 in tl.range(0, units, BK):
        k = k0 + tl.arange(0, BK)
        x_at, x_there = row[:, None] * units + k[None, :], (row < rows)[:, None] & (k < units)[None, :]
        w_at, w_there = unit[None, :] * units + k[:, None], (unit < units)[None, :] & (k < units)[:, None]
        h = tl.load(mine + x_at, mask=x_there, other=0.0)
        a, b, c, d = _products(h, over_ptr + w_at, step, w_there, a, b, c, d, GATES)
        if STACKED:
            x = tl.load(mine - size + x_at, mask=x_there & (cell > 0), other=0.0)
            at, there_too = into_ptr + w_at, w_there & (cell > 0)
            if KIND == "gru":  # of the third gate the parts are kept apart
                a, b, d, _ = _products(x, at, step, there_too, a, b, d, d, GATES)
            else:
                a, b, c, d = _products(x, at, step, there_too, a, b, c, d, GATES)
    if HAS_BIAS:
        a, b, c, d = _gates(
            over_bias_ptr + cell * GATES * units, no_step, unit, units, there, a, b, c, d, GATES
        )
    if STACKED and cell > 0:
        if HAS_BIAS:
            bias = into_bias_ptr + (cell - 1) * GATES * units
            if KIND == "gru":
                a, b, d, _ = _gates(bias, no_step, unit, units, there, a, b, d, d, GATES)
            else:
                a, b, c, d = _gates(bias, no_step, unit, units, there, a, b, c, d, GATES)
    else:
        which = 0 if STACKED else cell
        given = given_ptr + (which * steps + place).to(tl.int64) * rows * GATES * units
        apart = row * GATES * units
        if KIND == "gru":
            a, b, d, _ = _gates(given, apart, unit, units, there, a, b, d, d, GATES)
        else:
            a, b, c, d = _gates(given, apart, unit, units, there, a, b, c, d, GATES)
    at = row[:, None] * units + unit[None, :]
    if KIND == "lstm":
        state = tl.load(state_ptr + cell * size + at, mask=there, other=0.0)
        state = tl.sigmoid(b) * state + tl.sigmoid(a) * _tanh(c)
        tl.store(state_ptr + cell * size + at, state, mask=there)
        h = tl.sigmoid(d) * _tanh(state)
    elif KIND == "gru":
        new = _tanh(d + tl.sigmoid(a) * c)
        h = (tl.load(mine + at, mask=there, other=0.0) - new) * tl.sigmoid(b) + new
    elif KIND == "tanh":
        h = _tanh(a)
    else:
        h = tl.where(a < 0.0, 0.0, a)
    tl.store(after + cell * size + at, h, mask=there)
    if t == steps - 1:
        tl.store(last_ptr + cell * size + at, h, mask=there)
    if STACKED:
        if cell == cells - 1:
            tl.store(out_ptr + place.to(tl.int64) * size + at, h, mask=there)
    else:
        to = out_ptr + (place.to(tl.int64) * rows + row)[:, None] * (cells * units) + cell * units
        tl.store(to + unit[None, :], h, mask=there)


@repeated
def waves(given, into, into_bias, over, over_bias, hidden, state, kind):
    """All steps of layers, or of one layer's directions, the second of which goes backward.

    Args:
        given: (1 or directions, steps, rows, gates * units), the input's part of the gates of the first layer or of each direction,
            with its bias.
        into, into_bias: (layers - 1, gates * units, units) and (layers - 1, gates * units), the input weights of layers but the first;
            None for one layer.
        over, over_bias: (layers or directions, gates * units, units) and (.., gates * units), the recurrent weights; biases may be None.
        hidden: (2, layers or directions, rows, units), twice the states at the beginning; overwritten.
        state: (layers or directions, rows, units), an LSTM's cells, overwritten with the last ones; else None.
        kind: "lstm", "gru", "tanh" or "relu", gates in torch's order.

    Returns:
        The hidden states of the last layer or of both directions (steps, rows, directions * units) and the last ones (.., rows, units).
    """
    _, steps, rows, _ = given.shape
    _, cells, _, units = hidden.shape
    stacked = len(given) == 1
    out = given.new_empty((steps, rows, units if stacked else cells * units))
    last = given.new_empty((cells, rows, units))
    tile = max(16, min(64, triton.next_power_of_2(rows)))
    blocks = (-(-units // 16), -(-rows // tile))
    # A kernel reads no pointer of what is not there; any tensor may stand for it.
    tensors = [
        given if one is None else one for one in (given, into, into_bias, over, over_bias, hidden, state)
    ]
    for wave in range(steps + cells - 1 if stacked else steps):
        # Layers that have begun and not ended.
        first, end = (max(0, wave - steps + 1), min(cells, wave + 1)) if stacked else (0, cells)
        launch(
            _step, (blocks[0], end - first, blocks[1]), (*tensors, out, last), (wave, first, steps, rows, units, cells),
            KIND=kind, STACKED=stacked, HAS_BIAS=over_bias is not None, BM=tile, BN=16, BK=32, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out, last


def recurrent_applies(x, states, weights):
    """Whether a layer's tensors are such as `waves` takes, and few enough that launches take most of its time."""
    tensors = [x, *states, *weights]
    rows = states[0].shape[1]
    return (
        all(one.is_cuda and one.dtype == torch.float32 for one in tensors)
        and x.numel() > 0
        and 0 < states[0].numel() < 1 << 28
        and rows <= MOST_AT_A_STEP
        and all(one.shape == states[0].shape for one in states)
        and sum(one.numel() for one in weights) * 4 <= MOST_WEIGHT_BYTES
    )
