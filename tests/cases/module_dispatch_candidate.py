import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x):
        return torch.relu_(torch.layer_norm(x, (32,), self.norm.weight, self.norm.bias))
