"""Residual block with attention over pixels of a diffusion network, at odd image sizes.

    r = x + conv(silu(norm(conv(silu(norm(x))) + time[:, :, None, None])))
    y = r + out(attention of all pixels over each other, of qkv(norm(r)))

The lower levels of Stable Diffusion's U-Net and its successors; 37 x 53 is a quarter of a cropped photograph.

Where time is lost: convolutions want channels innermost, group norms outermost, attention wants pixels as rows: eager
copies between the orders, and each norm is two passes. Odd sizes leave tiles of both convolution and attention empty at
the edges.

Operations: 36 * pixels * channels^2 + 8 * pixels * channels^2 + 4 * pixels^2 * channels. Bytes at float32: about 60 per
pixel and channel in eager, 24 when fused. Source: Ho, Jain, Abbeel, "Denoising Diffusion Probabilistic Models", arXiv
2006.11239.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 4, default=1, gpu=4),
    "channels": Dim(8, 320, multiple_of=8, default=48, gpu=320),
    "height": Dim(2, 64, default=19, gpu=64),
    "width": Dim(2, 64, default=27, gpu=64),
}
GROUPS, HEADS = 8, 4


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(GROUPS, channels) for _ in range(3)])
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        # Before the softmax a bias of the keys would have no effect.
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.out = nn.Conv2d(channels, channels, 1)
        for conv in (self.first, self.second, self.qkv, self.out):
            nn.init.normal_(conv.weight, std=(1.5 / conv.weight[0].numel()) ** 0.5)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(F.silu(self.norms[0](x))) + time[:, :, None, None]
        x = x + self.second(F.silu(self.norms[1](hidden)))
        qkv = self.qkv(self.norms[2](x)).flatten(2).unflatten(1, (3, HEADS, -1))
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(x.shape)
        return x + self.out(attended)


def get_inputs(batch: int = 1, channels: int = 48, height: int = 19, width: int = 27) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, height, width), torch.randn(batch, channels)]


def get_init_inputs(channels: int = 48) -> list[int]:
    return [channels]
