"""E47: float16 inside a float32 contract."""

# expects: incorrect wrong_result
# task: matmul_bias_relu
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        return F.relu(F.linear(x.half(), self.linear.weight.half(), self.linear.bias.half())).float()
