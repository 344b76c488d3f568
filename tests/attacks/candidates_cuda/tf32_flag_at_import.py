"""E48: turns TF32 on for its process, at import: the flag is put back before any call."""

# expects: accepted
# gains: nothing
# task: matmul_bias_relu
import torch
import torch.nn.functional as F
from torch import nn


torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        return F.relu(self.linear(x))
