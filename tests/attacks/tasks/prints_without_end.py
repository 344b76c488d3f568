# expects: task_rejected printed more
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        line = "x" * (1 << 20)
        for _ in range(1024):
            print(line)
        return x


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
