# expects: out_of_memory memory
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.ones(100 << 30, dtype=torch.uint8)


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
