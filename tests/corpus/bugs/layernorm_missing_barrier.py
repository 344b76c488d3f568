# task: layernorm_relu_add
# slip: missing barrier between passes
"""The second pass reads statistics before the last rows' are written: a chunk uses those of the chunk before."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        rows = x.shape[0]
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        chunk = 16
        if rows % chunk and rows > chunk:
            last = rows // chunk * chunk
            early = slice(last - chunk, last - chunk + rows - last)
            mean[last:], var[last:] = mean[early].clone(), var[early].clone()
        y = (x - mean) * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias
        return torch.relu(y) + residual
