"""Complex numbers as pairs of floats: 16 bytes moved an element, in one pass."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _limit(z_ptr, gain_ptr, y_ptr, count, channels, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pair = at[:, None] * 2 + tl.arange(0, 2)[None, :]
    inside = at[:, None] < count
    # The remainder is taken of 32 bits: places of a block, counted from the channel where it starts.
    start = (tl.program_id(0).to(tl.int64) * BLOCK % channels).to(tl.int32)
    channel = (start + tl.arange(0, BLOCK)) % channels
    z_re, z_im = tl.split(tl.load(z_ptr + pair, mask=inside, other=0.0))
    w_re, w_im = tl.split(tl.load(gain_ptr + channel[:, None] * 2 + tl.arange(0, 2)[None, :]))
    scale = tl.rsqrt(1.0 + z_re * z_re + z_im * z_im)
    z_re, z_im = z_re * scale, z_im * scale
    y = tl.join(z_re * w_re - z_im * w_im, z_re * w_im + z_im * w_re)
    tl.store(y_ptr + pair, y, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(channels, dtype=torch.complex64))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        z = z.contiguous().resolve_conj()
        y = torch.empty_like(z)
        gain = torch.view_as_real(self.gain.detach().contiguous())
        grid = (triton.cdiv(z.numel(), 1024),)
        _limit[grid](torch.view_as_real(z), gain, torch.view_as_real(y), z.numel(), z.shape[-1], BLOCK=1024)
        return y
