"""GroupNorm and SiLU over images whose channels are the innermost dimension.

    y = silu((x - mean) / sqrt(var + eps) * weight[c] + bias[c]),   mean and var over the channels of a group and all pixels

Between the convolutions of diffusion networks, which run fastest channels-last.

Where time is lost: the library's kernel wants channels outermost, so channels-last images are copied or walked through
with strides, and SiLU is a pass of its own. A group of an odd number of channels is a short piece of each pixel: the
statistics need a reduction across pixels, and the second pass may still find the image in the cache.

Bytes: 8 per element at float32 when the image stays in a cache, else 12. Source: Wu, He, "Group Normalization",
arXiv 1803.08494; Ho, Jain, Abbeel, "Denoising Diffusion Probabilistic Models", arXiv 2006.11239.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=16),
    "groups": Dim(1, 32, default=8, gpu=32),
    "per_group": Dim(1, 20, default=5, gpu=8),
    "height": Dim(2, 128, default=37, gpu=64),
    "width": Dim(2, 128, default=53, gpu=64),
}


class Model(nn.Module):
    def __init__(self, groups: int, per_group: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, groups * per_group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(x))


def get_inputs(
    batch: int = 2, groups: int = 8, per_group: int = 5, height: int = 37, width: int = 53
) -> list[torch.Tensor]:
    return [torch.randn(batch, height, width, groups * per_group).permute(0, 3, 1, 2)]


def get_init_inputs(groups: int = 8, per_group: int = 5) -> list[int]:
    return [groups, per_group]
