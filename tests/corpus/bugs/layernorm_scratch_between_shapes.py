# task: layernorm_relu_add
# slip: stale scratch buffer between shapes
"""A scratch buffer that only grows; what an earlier shape left in its tail is summed as well."""

import torch
from torch import nn


SCRATCH = [torch.zeros(0)]


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        rows, cols = x.shape
        width = -(-cols // 8) * 8
        if SCRATCH[0].numel() < rows * width:
            SCRATCH[0] = torch.zeros(rows * width, device=x.device)
        padded = SCRATCH[0][: rows * width].view(rows, width)
        padded[:, :cols] = x
        mean = padded.sum(-1, keepdim=True) / cols
        centered = x - mean
        var = (centered * centered).mean(-1, keepdim=True)
        y = centered * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias
        return torch.relu(y) + residual
