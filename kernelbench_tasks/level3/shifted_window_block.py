"""Attention inside shifted windows of an image.

    windows of 7 x 7 of the image rolled by 3;   a = attention of a window's pixels over each other with a learned bias
    y = x + (a put back, rolled back) @ out.T

Swin transformers; the bias depends on the offset between two pixels and on the head.

Where time is lost: rolling, cutting into windows and putting them back are four copies of the image around a small
attention of 49 x 49, and the bias is gathered into a matrix per head at each call. A block per window and head can read
its pixels where they lie and write them there; 49 is no friend of tiles of 16.

Operations: 8 * pixels * channels^2 + 196 * pixels * channels. Bytes at float32: 8 per pixel and channel besides the
weights. Source: Liu et al., "Swin Transformer", arXiv 2103.14030.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=1, gpu=32),
    "height": Dim(7, 84, multiple_of=7, default=28, gpu=56),
    "width": Dim(7, 84, multiple_of=7, default=21, gpu=56),
    "heads": Dim(1, 8, default=3),
    "lanes": Dim(8, 64, multiple_of=8, default=32),
}
WINDOW, SHIFT = 7, 3


class Model(nn.Module):
    def __init__(self, heads: int, lanes: int):
        super().__init__()
        width = heads * lanes
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        for linear in (self.qkv, self.out):
            nn.init.normal_(linear.weight, std=width**-0.5)
        side = 2 * WINDOW - 1
        self.bias = nn.Parameter(torch.randn(heads, side * side))
        place = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW))
        offset = place.unsqueeze(1) - place + WINDOW - 1
        self.register_buffer("offset", offset[..., 0] * side + offset[..., 1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        rows, columns = height // WINDOW, width // WINDOW
        rolled = torch.roll(self.norm(x), (-SHIFT, -SHIFT), dims=(1, 2))
        cut = rolled.view(batch, rows, WINDOW, columns, WINDOW, channels).transpose(2, 3)
        qkv = self.qkv(cut.reshape(-1, WINDOW * WINDOW, channels)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, self.offset].unsqueeze(0))
        attended = attended.transpose(1, 2).reshape(batch, rows, columns, WINDOW, WINDOW, channels)
        attended = attended.transpose(2, 3).reshape(x.shape)
        return x + self.out(torch.roll(attended, (SHIFT, SHIFT), dims=(1, 2)))


def get_inputs(
    batch: int = 1, height: int = 28, width: int = 21, heads: int = 3, lanes: int = 32
) -> list[torch.Tensor]:
    return [torch.randn(batch, height, width, heads * lanes)]


def get_init_inputs(heads: int = 3, lanes: int = 32) -> list[int]:
    return [heads, lanes]
