# expects: task_rejected processes
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        import os

        while True:
            os.fork()


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
