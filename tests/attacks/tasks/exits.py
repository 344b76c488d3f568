# expects: task_rejected ended before
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        import os

        os._exit(0)


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
