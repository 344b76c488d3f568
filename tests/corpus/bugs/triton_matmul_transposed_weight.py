# task: matmul_bias_relu
# slip: transposed weights that only work when square
"""The weight's strides are exchanged."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, w, bias, y, rows, inner, cols, stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, inner, K):
        k = start + tl.arange(0, K)
        left = tl.load(x + r[:, None] * inner + k[None, :], mask=(r < rows)[:, None] & (k < inner)[None, :], other=0.0)
        right = tl.load(w + k[:, None] * cols + c[None, :], mask=(c < cols)[None, :] & (k < inner)[:, None], other=0.0)
        total += tl.dot(left, right, input_precision="ieee")
    total += tl.load(bias + c, mask=c < cols)[None, :]
    tl.store(y + r[:, None] * cols + c[None, :], tl.maximum(total, 0.0), mask=(r < rows)[:, None] & (c < cols)[None, :])


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        rows, inner = x.shape
        cols = self.linear.out_features
        y = torch.empty(rows, cols, device=x.device)
        grid = (triton.cdiv(rows, 32), triton.cdiv(cols, 32))
        weight, bias = self.linear.weight, self.linear.bias
        kernel[grid](x, weight, bias, y, rows, inner, cols, inner, M=32, N=32, K=32)
        return y
