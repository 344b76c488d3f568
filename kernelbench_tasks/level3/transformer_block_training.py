"""A small pre-norm transformer block, forward and backward.

    x = x + attention(layer_norm(x)) @ out.T,   y = x + gelu(layer_norm(x) @ enter.T + b) @ leave.T,   causal

A layer in training a small language model, where launches and elementwise passes outweigh the products.

Where time is lost: some fifteen kernels forward and thirty backward; each norm, activation and addition moves its
tensors again, the gradients of gains and biases are column sums of their own. What is elementwise belongs into the
products beside it, and what is cheap to recompute need not be saved.

Operations: 72 * tokens * width^2 + 14 * tokens * length * width. Bytes at float32: about 150 per element in eager.
Source: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762; Xiong et al., "On Layer Normalization in the
Transformer Architecture", arXiv 2002.04745.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 8, default=2, gpu=8),
    "length": Dim(2, 512, default=60, gpu=512),
    "heads": Dim(1, 12, default=3, gpu=12),
    "lanes": Dim(8, 64, multiple_of=8, default=32, gpu=64),
}
DIRECTION = "forward_backward"
PRECISION = "tf32"


class Model(nn.Module):
    def __init__(self, heads: int, lanes: int):
        super().__init__()
        width = heads * lanes
        self.heads = heads
        self.first_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.second_norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 4 * width)
        self.leave = nn.Linear(4 * width, width, bias=False)
        for linear in (self.qkv, self.out, self.enter, self.leave):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.first_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.leave(F.gelu(self.enter(self.second_norm(x))))


def get_inputs(batch: int = 2, length: int = 60, heads: int = 3, lanes: int = 32) -> list[torch.Tensor]:
    return [torch.randn(batch, length, heads * lanes)]


def get_init_inputs(heads: int = 3, lanes: int = 32) -> list[int]:
    return [heads, lanes]
