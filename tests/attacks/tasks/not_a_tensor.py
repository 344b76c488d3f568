# expects: task_rejected not a tensor
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return 3.0


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
