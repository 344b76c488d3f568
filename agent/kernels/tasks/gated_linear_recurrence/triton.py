"""The recurrence in chunks: each is scanned on its own, and where a chunk begins is found from summaries of those before.

With enough channels and sequences one chunk is the whole sequence and there is one launch. Otherwise a first launch
leaves each chunk's product of gates and last value, and the second starts from them; what it reads again is in a cache.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROGRAMS = 264  # two for each multiprocessor of a large GPU
MOST_CHUNKS = 64


@triton.jit
def _follow(left_a, left_h, right_a, right_h):
    return left_a * right_a, right_h + right_a * left_h


@triton.jit
def _scan(
    gate_ptr, b_ptr, h_ptr, product_ptr, last_ptr, length, channels, chunk, chunks,
    SUMMARY: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    number = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    base = batch * length * channels
    summary = batch * chunks * channels + channel
    of_channel = channel < channels
    h = tl.zeros((1, CHANNELS), tl.float32)
    product = tl.full((1, CHANNELS), 1.0, tl.float32)
    if not SUMMARY:
        for before in range(number):
            a = tl.load(product_ptr + summary + before * channels, mask=of_channel, other=0.0)
            h = a * h + tl.load(last_ptr + summary + before * channels, mask=of_channel, other=0.0)
    begin = number * chunk
    end = tl.minimum(begin + chunk, length)
    for start in range(begin, end, TIME):
        time = start + tl.arange(0, TIME)[:, None]
        inside = (time < end) & of_channel
        place = base + time.to(tl.int64) * channels + channel
        gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + place, mask=inside, other=0.0).to(tl.float32)
        # Beyond the end a step changes nothing.
        a = tl.where(inside, tl.sigmoid(gate), 1.0)
        a, here = tl.associative_scan((a, b), 0, _follow)
        here += a * h
        final = tl.arange(0, TIME)[:, None] == TIME - 1
        h = tl.sum(tl.where(final, here, 0.0), axis=0, keep_dims=True)
        if SUMMARY:
            product *= tl.sum(tl.where(final, a, 0.0), axis=0, keep_dims=True)
        else:
            tl.store(h_ptr + place, here.to(h_ptr.dtype.element_ty), mask=inside)
    if SUMMARY:
        tl.store(product_ptr + summary + number * channels, product, mask=of_channel)
        tl.store(last_ptr + summary + number * channels, h, mask=of_channel)


class ModelNew(nn.Module):
    def forward(self, gate: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        gate, b = gate.contiguous(), b.contiguous()
        batch, length, channels = b.shape
        h = torch.empty_like(b)
        tile_channels = min(triton.next_power_of_2(channels), 32)
        tile_time = min(2048 // tile_channels, max(triton.next_power_of_2(length), 2))
        columns = triton.cdiv(channels, tile_channels)
        chunks = min(PROGRAMS // (batch * columns), triton.cdiv(length, tile_time), MOST_CHUNKS)
        chunk = triton.cdiv(triton.cdiv(length, max(chunks, 1)), tile_time) * tile_time
        chunks = triton.cdiv(length, chunk)
        summaries = torch.empty(2, batch, chunks, channels, dtype=torch.float32, device=b.device)
        arguments = (gate, b, h, summaries[0], summaries[1], length, channels, chunk, chunks)
        tile = {"TIME": tile_time, "CHANNELS": tile_channels, "num_warps": 4}
        if chunks > 1:
            _scan[(columns, chunks, batch)](*arguments, SUMMARY=True, **tile)
        _scan[(columns, chunks, batch)](*arguments, SUMMARY=False, **tile)
        return h
